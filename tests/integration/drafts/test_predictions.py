"""Predictions through every entry point: the output is plain decoding's, and correct parts are accepted."""

import copy
import pickle
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

import uag
from tests.support.callers import OracleDrafter
from tests.support.calls import GREEDY, NEW, PROMPTS, SAMPLED, assistant_of, compare, left_padded, pair, seeded
from tests.support.grids import covering
from tests.support.models import tiny_target
from tests.support.trained import demo, small
from uag.bench import heldout_prompts, spread
from uag.errors import OptionError, PairError
from uag.loading import Pair, encode

TOKENS = 64
FEW = 32
"""Of the demo pair, whose target has 36 layers."""


@cache
def written(load: Callable[[], Pair] = small) -> tuple[dict[str, Any], torch.Tensor, str]:
    inputs = encode(load(), [spread(heldout_prompts(), 3)[load is demo].text])
    ids = load().target.generate(**inputs, max_new_tokens=FEW if load is demo else TOKENS, do_sample=False)
    new = ids[0, inputs["input_ids"].shape[1] :]
    return inputs, ids, load().target_tokenizer.decode(new, skip_special_tokens=True)


def generate(prediction: Any, **options: Any) -> uag.Stats:
    """Generate with a prediction on the small target, and assert that the output is plain decoding's."""
    inputs, expected, _ = written()
    assistant = uag.Assistant(None, None, small().target_tokenizer, **options)
    ids = assistant.generate(small().target, **inputs, max_new_tokens=TOKENS, do_sample=False, prediction=prediction)
    assert ids.tolist() == expected.tolist()
    return assistant.stats


def edited(text: str, edit: str) -> str:
    lines = text.splitlines(keepends=True)
    middle = len(lines) // 2
    if edit == "word replaced":
        words = re.finditer(r"[A-Za-z]{3,}", text)
        word = min(words, key=lambda match: abs(match.start() - len(text) // 2))
        return f"{text[: word.start()]}something{text[word.end() :]}"
    if edit == "line inserted":  # the target writes a line that is not in the prediction
        del lines[middle]
    elif edit == "line deleted":
        lines.insert(middle, "    something_that_is_gone = 1\n")
    elif edit == "more in front":
        lines.insert(0, "Here is what you asked for:\n")
    return "".join(lines)


@pytest.mark.parametrize(
    ("edit", "num_passes"),
    [("none", 5), ("word replaced", 8), ("line inserted", 14), ("line deleted", 12), ("more in front", 8)],
)
def test_edits_are_followed(edit: str, num_passes: int) -> None:
    """The number of candidates is fixed, because it would depend on measured times otherwise."""
    stats = generate(edited(written()[2], edit), num_candidate_tokens=24)
    assert stats.num_target_forwards <= num_passes
    assert stats.strategy == "prediction"
    assert stats.accepted_by_source["prediction"] > TOKENS // 2


@pytest.mark.parametrize(
    "prediction", ["The quick brown fox jumps over the lazy dog. " * 20, "x", "\n" * 300, "日本語。" * 50]
)
def test_a_prediction_that_is_wrong_throughout_is_hardly_tried(prediction: str) -> None:
    stats = generate(prediction, prompt_lookup=False)
    assert stats.candidates_by_source.get("prediction", 0) <= 2 * TOKENS
    assert stats.num_target_forwards <= TOKENS


def spoiled(ids: list[int], every: int = 6) -> list[int]:
    out = []
    for place, token_id in enumerate(ids):
        if place % every == 3:
            out.append((token_id + 5) % 600)
        elif place % every == 5:
            out += [token_id, 17]
        elif place % (2 * every) != 4:
            out.append(token_id)
    return out


@covering("num_rows, options, eos, has_draft", (1, 3), (GREEDY, SAMPLED), (False, True), (False, True))
def test_ids_and_generator_are_plain(num_rows: int, options: dict[str, Any], eos: bool, has_draft: bool) -> None:
    target, tokenizer, *_ = pair(eos=eos)
    given = left_padded(PROMPTS[:num_rows]) | options
    output = seeded(7, target.generate, **given)[:, given["input_ids"].shape[1] :]
    known, text = [spoiled(row) for row in output.tolist()], tokenizer.decode(output[0])
    assistant = assistant_of(eos=eos, length=None) if has_draft else uag.Assistant(None, None, tokenizer)
    accepted = 0
    for prediction in (known, text, [text, *known[1:]], [known[0], *[None] * (num_rows - 1)]):
        assistant.options.prediction = prediction
        accepted += compare(target, given, assistant, seed=7).accepted_by_source.get("prediction", 0)
    assert accepted > 0


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_encoder_decoders(name: str) -> None:
    target, tokenizer = tiny_target(name)
    given = left_padded(PROMPTS[:2]) | GREEDY
    output = target.generate(**given)[:, 1:]
    accepted = 0
    for prediction in (output.tolist(), tokenizer.batch_decode(output, skip_special_tokens=True)):
        assistant = uag.Assistant(None, None, tokenizer, prediction=prediction)
        accepted += compare(target, given, assistant).accepted_by_source.get("prediction", 0)
    assert accepted > 4


def test_rows_of_returned_sequences_share_their_prompts_prediction() -> None:
    target, tokenizer, *_ = pair()
    given = left_padded(PROMPTS[:2]) | SAMPLED | {"num_return_sequences": 2}
    output = seeded(3, target.generate, **given)[::2, given["input_ids"].shape[1] :]
    assistant = uag.Assistant(None, None, tokenizer, prediction=output.tolist())
    for _ in range(2):
        stats = compare(target, given, assistant)
    assert stats.accepted_by_source["prediction"] > 0


def test_beside_a_drafter_of_ones_own_and_after_copies() -> None:
    target, tokenizer, *_ = pair()
    given = left_padded(PROMPTS[:1]) | GREEDY | {"max_new_tokens": 20}
    outputs = target.generate(**given)[:, given["input_ids"].shape[1] :].tolist()
    options: dict[str, Any] = {"drafter": OracleDrafter(outputs, 649, spoil=3), "num_candidate_tokens": 3}
    assistant = uag.Assistant(None, None, tokenizer, prediction=outputs[0][:12], **options)
    for _ in range(2):
        assert {"prediction", "source"} == set(compare(target, given, assistant).accepted_by_source)
        assistant = copy.deepcopy(assistant)
    alone = pickle.loads(pickle.dumps(uag.Assistant(None, None, tokenizer, prediction=outputs[0])))
    assert compare(target, given, alone).accepted_by_source["prediction"] > NEW // 2


def test_after_install_with_and_without_a_draft(installed: None) -> None:
    inputs, expected, text = written(demo)
    options = {"max_new_tokens": FEW, "do_sample": False}
    ids = demo().target.generate(**inputs, **options, prediction=text, tokenizer=demo().target_tokenizer)
    assert ids.tolist() == expected.tolist()
    stats = uag.last_stats(demo().target)
    assert stats.num_target_forwards < 12
    found = demo().target.generate(**inputs, max_new_tokens=2, do_sample=False, prediction=None)
    assert found.tolist() == expected[:, : found.shape[1]].tolist()
    assert uag.last_stats(demo().target) is stats  # no call of ours
    draft = {"assistant_model": demo().draft, "assistant_tokenizer": demo().draft_tokenizer}
    for given in ({}, draft):  # the target's tokenizer is found with its weights
        ids = demo().target.generate(**inputs, **options, **given, prediction=text)
        assert ids.tolist() == expected.tolist()
        assert uag.last_stats(demo().target).accepted_by_source["prediction"] > FEW // 2


@pytest.mark.parametrize("is_installed", [False, True])
def test_as_custom_generate(is_installed: bool, request: pytest.FixtureRequest) -> None:
    if is_installed:
        request.getfixturevalue("installed")
    inputs, expected, text = written()
    options = {"max_new_tokens": TOKENS, "do_sample": False}
    for assistant, given in (
        (uag.Assistant(None, None, small().target_tokenizer, prediction=text), {}),
        (uag.Assistant(None, None, small().target_tokenizer, prediction="x"), {"prediction": text}),
    ):
        ids = small().target.generate(**inputs, **options, custom_generate=assistant, **given)
        assert ids.tolist() == expected.tolist()
        assert assistant.stats.num_target_forwards < 12


def test_text_needs_a_tokenizer() -> None:
    target = pair()[0]
    assistant = uag.Assistant(None)
    with pytest.raises(PairError, match=r"text prediction requires the target's tokenizer. Pass it: uag.Assistant"):
        assistant.generate(target, **left_padded(PROMPTS[:1]), **GREEDY, prediction="text")
    expected = target.generate(**left_padded(PROMPTS[:1]), **GREEDY)
    found = assistant.generate(target, **left_padded(PROMPTS[:1]), **GREEDY, prediction=expected[0, 5:])
    assert found.tolist() == expected.tolist()


def test_ids_that_the_target_lacks_are_refused() -> None:
    target, tokenizer, *_ = pair()
    assistant = uag.Assistant(None, None, tokenizer)
    inputs = left_padded(PROMPTS[:1])
    with pytest.raises(OptionError, match=r"prediction contains the id 70000; the target's ids are 0 to \d+"):
        assistant.generate(target, **inputs, **GREEDY, prediction=[3, 70_000])
