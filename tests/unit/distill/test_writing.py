"""What is written is plain decoding's own, row by row, whatever the batch; and a replay is the assistant's rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import uag
from tests.support.models import tiny_target, twin
from uag.distill import BatchWriter, Replay, Task, Text, measure
from uag.distill.replay import Replayed
from uag.distill.rows import NOT_LEARNT, RowEncoder
from uag.drafting import Pairing

NUM_NEW = 20
PROMPTS = ("one two three four", "seven", "eight nine ten one two", "three, four. Five")


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any, Any, Any]:
    target, tokenizer = tiny_target("llama")
    return target, tokenizer, *twin(target, tokenizer, noise=0.03)


@pytest.fixture(scope="module")
def due(pair: Any) -> list[Task]:
    encoded = [tuple(pair[1](prompt)["input_ids"]) for prompt in PROMPTS]
    temperatures = (0.0, 0.5, 0.0, 1.0)
    return [Task(str(i), ids, t, 1000 + i) for i, (ids, t) in enumerate(zip(encoded, temperatures, strict=True))]


def plainly(target: Any, task: Task, generate: Any = None) -> list[int]:
    ids = torch.tensor([task.prompt_ids])
    sampling = {"temperature": task.temperature, "top_k": 0} if task.temperature else {}
    torch.manual_seed(task.seed)
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NUM_NEW, "do_sample": task.temperature > 0}
    sequences = (generate or target.generate)(inputs=ids, **options, **sampling)
    output: list[int] = sequences[0, ids.shape[1] :].tolist()
    return output


def test_rows_of_a_batch_are_plain_decoding_and_plain_sampling(pair: Any, due: list[Task]) -> None:
    texts = BatchWriter(pair[0], NUM_NEW).write(due)
    assert [list(text.output_ids) for text in texts] == [plainly(pair[0], task) for task in due]
    assert [text.text_id for text in texts] == [task.text_id for task in due]


def test_a_row_ends_with_its_end_of_text(pair: Any, due: list[Task]) -> None:
    target = pair[0]
    end = plainly(target, due[0])[7]
    before = target.generation_config.eos_token_id
    target.generation_config.eos_token_id = end
    try:
        texts = BatchWriter(target, NUM_NEW).write(due)
        assert list(texts[0].output_ids) == plainly(target, due[0])
        assert texts[0].output_ids[-1] == end
        assert all(end not in text.output_ids[:-1] for text in texts)
    finally:
        target.generation_config.eos_token_id = before


@pytest.mark.parametrize("row", [0, 1, 3])
def test_a_replay_is_what_the_assistant_does(pair: Any, due: list[Task], row: int) -> None:
    target, tokenizer, draft, draft_tokenizer = pair
    text = BatchWriter(target, NUM_NEW).write([due[row]])[0]
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3)
    assert plainly(target, due[row], lambda **kwargs: assistant.generate(target, **kwargs)) == list(text.output_ids)
    found = replayed(pair, [text], num_candidate_tokens=3)[0]
    stats = assistant.stats
    # The last rounds have no room for three candidates, and only those with room are replayed.
    assert found.accepted[0] > 0
    assert found.num_rounds > 3
    for ours, theirs in ((found.asked, stats.candidates_by_position), (found.accepted, stats.accepted_by_position)):
        assert all(0 <= b - a <= 3 for a, b in zip(ours, theirs, strict=True))


def test_a_replay_of_many_rows_is_that_of_each(pair: Any, due: list[Task]) -> None:
    texts = BatchWriter(pair[0], NUM_NEW).write(due)
    together, alone = replayed(pair, texts, num_together=4), replayed(pair, texts, num_together=1)
    assert [(f.asked, f.accepted) for f in together] == [(f.asked, f.accepted) for f in alone]
    assert all(f.num_forwards > 0 and f.draft_s > f.forward_s > 0 for f in alone)


def test_every_token_is_asked_for_once(pair: Any, due: list[Task]) -> None:
    texts = BatchWriter(pair[0], NUM_NEW).write(due)
    found = replayed(pair, texts, every_token=True)
    assert [f.num_rounds for f in found] == [len(text.output_ids) for text in texts]


def test_a_draft_that_is_the_target_agrees_always(pair: Any, due: list[Task]) -> None:
    target, tokenizer = pair[:2]
    texts = BatchWriter(target, NUM_NEW).write(due)
    drafter = Pairing(target, tokenizer, tokenizer, prompt_lookup=False).for_all
    assert drafter is not None
    for chosen in ([texts[0], texts[2]], [texts[1]], [texts[3]]):
        found = measure(Replay(drafter, len(tokenizer) + 5), chosen)
        assert found.agreement.value == 1.0
        assert found.tokens_per_pass.value == 5.0


def test_a_penalty_of_the_target_is_followed(pair: Any, due: list[Task]) -> None:
    target, tokenizer = pair[:2]
    drafter = Pairing(target, tokenizer, tokenizer, prompt_lookup=False).for_all
    assert drafter is not None
    before = target.generation_config.repetition_penalty
    target.generation_config.repetition_penalty = 1.5
    try:
        texts = BatchWriter(target, NUM_NEW).write([due[0], due[2]])
    finally:
        target.generation_config.repetition_penalty = before
    agreements = [
        measure(Replay(drafter, len(tokenizer) + 5, repetition_penalty=penalty), texts).agreement.value
        for penalty in (1.0, 1.5)
    ]
    assert agreements[0] < agreements[1] == 1.0


def replayed(pair: Any, texts: list[Text], **options: Any) -> list[Replayed]:
    target, tokenizer, draft, draft_tokenizer = pair
    drafter = Pairing(draft, tokenizer, draft_tokenizer, prompt_lookup=False).for_all
    assert drafter is not None
    return list(Replay(drafter, target.lm_head.weight.shape[0], **options).run(texts))


def test_rows_are_the_draft_s_own_tokens_and_only_what_follows_the_prompt_is_learnt(pair: Any, due: list[Task]) -> None:
    target, tokenizer, draft, draft_tokenizer = pair
    text = BatchWriter(target, NUM_NEW).write(due)[0]
    encoders = [
        RowEncoder(draft, draft_tokenizer, tokenizer, max_length=length, learns_prompts=learns)
        for length, learns in ((1024, False), (1024, True), (9, True))
    ]
    row, whole, cut = (encoder.encode([text])[0] for encoder in encoders)
    said = tokenizer.decode([*text.prompt_ids, *text.output_ids])
    assert draft_tokenizer.decode(row["input_ids"]) == said
    start = row["labels"].count(NOT_LEARNT)
    assert 0 < start < len(row["input_ids"])
    assert (
        draft_tokenizer.decode(row["input_ids"][:start])
        == PROMPTS[0][: len(draft_tokenizer.decode(row["input_ids"][:start]))]
    )
    assert row["labels"][start:] == row["input_ids"][start:]
    assert whole["labels"] == whole["input_ids"] == row["input_ids"]
    assert cut["input_ids"] == row["input_ids"][-9:]
