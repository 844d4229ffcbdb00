"""Rows equal plain decoding's, regardless of the batch; a replay has the same rounds as the assistant."""

from typing import Any

import pytest
import torch

import uag
from benchmarks.replay import Replay, Text, write
from tests.support.calls import pair
from uag.drafting import Pairing
from uag.lookahead import Lookahead

NUM_NEW = 20
PROMPTS = ("one two three four", "seven", "eight nine ten one two", "three, four. Five")


@pytest.fixture(scope="module")
def due() -> list[Text]:
    encoded = [tuple(pair()[1](prompt)["input_ids"]) for prompt in PROMPTS]
    temperatures = (0.0, 0.5, 0.0, 1.0)
    return [Text(str(i), ids, t, 1000 + i) for i, (ids, t) in enumerate(zip(encoded, temperatures, strict=True))]


@pytest.fixture(scope="module")
def texts(due: list[Text]) -> list[Text]:
    return list(write(pair()[0], due, NUM_NEW))


def plainly(target: Any, task: Text, generate: Any = None) -> list[int]:
    ids = torch.tensor([task.prompt_ids])
    sampling = {"temperature": task.temperature, "top_k": 0} if task.temperature else {}
    torch.manual_seed(task.seed)
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NUM_NEW, "do_sample": task.temperature > 0}
    sequences = (generate or target.generate)(inputs=ids, **options, **sampling)
    output: list[int] = sequences[0, ids.shape[1] :].tolist()
    return output


def test_rows_of_a_batch_are_plain_decoding_and_plain_sampling(due: list[Text], texts: list[Text]) -> None:
    assert [list(text.output_ids) for text in texts] == [plainly(pair()[0], task) for task in due]
    assert [text.text_id for text in texts] == [task.text_id for task in due]


def test_a_row_ends_with_its_end_of_text(due: list[Text], monkeypatch: pytest.MonkeyPatch) -> None:
    target = pair()[0]
    end = plainly(target, due[0])[7]
    monkeypatch.setattr(target.generation_config, "eos_token_id", end)
    texts = write(target, due, NUM_NEW)
    assert list(texts[0].output_ids) == plainly(target, due[0])
    assert texts[0].output_ids[-1] == end
    assert all(end not in text.output_ids[:-1] for text in texts)


@pytest.mark.parametrize("row", [0, 1, 3])
def test_a_replay_is_what_the_assistant_does(due: list[Text], texts: list[Text], row: int) -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    text = texts[row]
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3)
    assert plainly(target, due[row], lambda **kwargs: assistant.generate(target, **kwargs)) == list(text.output_ids)
    rounds = list(
        replay(*pair()).rounds(text, Lookahead(fixed=3), lambda num_left: 3 if num_left > 3 else None, start=1)
    )
    sizes = [len(drafting.candidates) for drafting in rounds], [drafting.num_accepted for drafting in rounds]
    drafted, accepted = map(sum, sizes)
    stats = assistant.stats
    # The assistant's last rounds have no budget for three candidates, and only full rounds are replayed.
    assert accepted > 0
    assert len(rounds) > 3
    assert all(drafting.draft_s > 0 for drafting in rounds)
    for ours, theirs in ((drafted, stats.num_candidate_tokens), (accepted, stats.num_accepted_tokens)):
        assert 0 <= theirs - ours <= 9


def test_tokens_are_counted_by_text(texts: list[Text]) -> None:
    counts = list(replay(*pair()).count(texts))
    assert [num_tokens for num_tokens, _ in counts] == [len(text.output_ids) for text in texts]
    assert all(0 < num_accepted < num_tokens for num_tokens, num_accepted in counts)


def test_a_draft_that_is_the_target_agrees_always(texts: list[Text]) -> None:
    for chosen in ([texts[0], texts[2]], [texts[1]], [texts[3]]):
        counts = replay(*pair()[:2], *pair()[:2]).count(chosen)
        assert all(num_tokens == num_agreed for num_tokens, num_agreed in counts)


def test_rounds_at_every_token_start_from_the_text(texts: list[Text]) -> None:
    """Only the text is kept, not the candidates behind it that would have been accepted."""
    drafting = replay(*pair()[:2], *pair()[:2])
    for done in drafting.rounds(texts[0], Lookahead(fixed=4), lambda left: left or None, every_token=True):
        assert done.num_accepted == len(done.candidates) > 0


def replay(target: Any, tokenizer: Any, draft: Any, draft_tokenizer: Any) -> Replay:
    drafter = Pairing(draft, tokenizer, draft_tokenizer, draft_weights="model").for_all
    assert drafter is not None
    return Replay(drafter, target.lm_head.weight.shape[0])
