"""Every row equals plain decoding's: batches of trained pairs, with rows that end at different times.

    pytest -m slow tests/integration/calls/test_batches.py

takes about half an hour on one core, two thirds of it for the demo pair, whose target has 36 layers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import pytest
import torch

import uag
from tests.support.calls import GREEDY, compare
from tests.support.trained import PAIRS, STORY_PAIRS, prompts, trained

MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sample": {"do_sample": True, "temperature": 1.0, "top_k": 0},
    "top-p": {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.1},
}
KINDS = ("auto", 1, 5, 9, "lookup", "plain")
SIZES = (1, 2, 5, 16)
PAD = 0


@cache
def assistant_of(pair: tuple[str, str], kind: str | int) -> uag.Assistant:
    """Return one assistant for all tests of a pair: learned values must not change later outputs."""
    (_, tokenizer), (draft, draft_tokenizer) = trained(pair[0]), trained(pair[1])
    if kind == "lookup":
        return uag.Assistant.from_prompt_lookup(tokenizer)
    if kind == "plain":
        return uag.Assistant(None, None, tokenizer)
    length = kind if isinstance(kind, int) else None
    return uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=length)


@contextmanager
def without_eos(model: Any) -> Iterator[None]:
    """Remove a model's EOS ids, because `eos_token_id=None` would mean the model's own."""
    kept, model.generation_config.eos_token_id = model.generation_config.eos_token_id, None
    try:
        yield
    finally:
        model.generation_config.eos_token_id = kept


def lengths_of(name: str, num_rows: int, rng: random.Random, seed: int) -> list[int]:
    """Return random prompt lengths, from one id to the longest that fits; several rows always include both extremes."""
    longest = 400 if name.startswith("demo-") else 150
    if num_rows == 1:
        return [(1, longest, rng.randint(1, longest))[seed % 3]]
    return [1, longest, *(rng.randint(1, longest) for _ in range(num_rows))][:num_rows]


def run(generate: Any, seed: int, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Run one call and return its ids and the generator's final state."""
    torch.manual_seed(seed)
    return generate(**options), torch.get_rng_state()


def eos_that_occur(ids: torch.Tensor, prompt_length: int, rng: random.Random) -> list[int]:
    """Return ids from random positions of some rows, so that rows end at different times, or never."""
    rows = ids[:, prompt_length:].tolist()
    picked = {rng.choice(row[len(row) // 4 :]) for row in rng.sample(rows, max(1, len(rows) // 2))}
    return sorted(picked)[:3]


def check(
    pair: tuple[str, str], num_rows: int, mode: str, kinds: tuple[str | int, ...], eos: str, seed: int, new: int = 24,
    **options: Any,
) -> list[uag.Stats]:  # fmt: skip
    """Compare one batch with plain decoding for several sources of candidates, and return their statistics."""
    target = trained(pair[0])[0]
    rng = random.Random(seed)
    inputs = prompts(pair[0], lengths_of(pair[0], num_rows, rng, seed))
    width = inputs["input_ids"].shape[1]
    options = {**inputs, **MODES[mode], "max_new_tokens": new, "pad_token_id": PAD, **options}
    found = []
    with without_eos(target):
        expected, state = run(target.generate, seed, **options)
        if eos == "random":
            options["eos_token_id"] = eos_that_occur(expected, width, rng)
            expected, state = run(target.generate, seed, **options)
        for kind in kinds:
            assistant = assistant_of(pair, kind)
            output, state_after = run(partial(assistant.generate, target), seed, **options)
            assert output.tolist() == expected.tolist(), (kind, options.get("eos_token_id"))
            assert torch.equal(state, state_after), kind
            found.append(assistant.stats)
        if mode == "greedy" and "num_return_sequences" not in options:
            assert_rows_alone(target, expected, inputs, options)
    return found


def assert_rows_alone(target: Any, expected: torch.Tensor, inputs: dict[str, torch.Tensor], options: Any) -> None:
    """Assert that each row of the batch equals plain decoding of that row alone."""
    width = inputs["input_ids"].shape[1]
    for row in range(0, expected.shape[0], 3):
        ids = inputs["input_ids"][row][inputs["attention_mask"][row].bool()][None]
        alone = target.generate(**{**options, "input_ids": ids, "attention_mask": torch.ones_like(ids)})
        written = alone[0, ids.shape[1] :].tolist()
        assert expected[row, width : width + len(written)].tolist() == written
        assert set(expected[row, width + len(written) :].tolist()) <= {PAD}


# ---------------------------------------------------------------------- a sample, by default


@pytest.mark.parametrize("eos", ["none", "random"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pair", STORY_PAIRS[1:], ids=lambda pair: pair[0])
def test_five_rows(pair: tuple[str, str], mode: str, eos: str) -> None:
    stats = check(pair, 5, mode, ("auto", 5, "lookup"), eos, seed=len(mode) + len(eos))
    assert 0 < stats[1].num_accepted_tokens <= stats[1].num_candidate_tokens
    assert stats[1].num_accepted_tokens < stats[1].num_candidate_tokens or eos == "random"
    assert not stats[1].fallbacks
    lengths = [len(row) for row in stats[1].sources]
    assert len(set(lengths)) > 1 if eos == "random" else set(lengths) == {24}


@pytest.mark.parametrize("num_rows", [1, 2, 16])
def test_other_sizes(num_rows: int) -> None:
    pair = STORY_PAIRS[0]
    stats = check(pair, num_rows, "greedy", (5,), "random", seed=num_rows)
    stats += check(pair, num_rows, "sample", (5,), "random", seed=num_rows)
    assert sum(f.num_accepted_tokens for f in stats) > 0


def test_a_row_at_the_models_last_position() -> None:
    """The longest row fills the model's 256 positions when the shortest has only started."""
    pair = STORY_PAIRS[2]
    target = trained(pair[0])[0]
    inputs = prompts(pair[0], [236, 3, 180])
    with without_eos(target):
        for kind in (5, "auto", "lookup"):
            compare(target, inputs | GREEDY, assistant_of(pair, kind))


# ---------------------------------------------------------------------- stop strings


def straddling(tokenizer: Any, rows: list[list[int]], rng: random.Random) -> list[str]:
    """Return substrings at random positions of every second row's text."""
    found = []
    for row in rows[::2]:
        text = tokenizer.decode(row, skip_special_tokens=True)
        for _ in range(20):  # not of blanks alone
            start = rng.randint(len(text) // 4, max(len(text) // 4, len(text) - 8))
            string = text[start : start + rng.randint(3, 7)]
            if string.strip():
                found.append(string)
                break
    return found


def check_stop_strings(
    pair: tuple[str, str], num_rows: int, mode: str, has_eos: bool, seed: int,
    kinds: tuple[str | int, ...] = ("auto", 5, 9, "lookup", "plain"),
) -> bool:  # fmt: skip
    """Compare a batch with stop strings with plain decoding, and return whether any row ended early."""
    target, tokenizer = trained(pair[0])
    rng, new = random.Random(seed), 32
    inputs = prompts(pair[0], lengths_of(pair[0], num_rows, rng, seed))
    width = inputs["input_ids"].shape[1]
    options = {**inputs, **MODES[mode], "max_new_tokens": new, "pad_token_id": PAD}
    with without_eos(target):
        free, _ = run(target.generate, seed, **options)
        options["stop_strings"] = straddling(tokenizer, free[:, width:].tolist(), rng)
        if has_eos:
            options["eos_token_id"] = 2
        expected, state = run(target.generate, seed, tokenizer=tokenizer, **options)
        for kind in kinds:
            assistant = assistant_of(pair, kind)
            output, state_after = run(partial(assistant.generate, target), seed, **options)
            assert output.tolist() == expected.tolist(), (kind, options["stop_strings"])
            assert torch.equal(state, state_after)
    return min(map(len, assistant.stats.sources)) < new


@pytest.mark.parametrize("has_eos", [False, True])
@pytest.mark.parametrize("mode", ["greedy", "sample"])
def test_stop_strings_that_straddle_tokens(mode: str, has_eos: bool) -> None:
    assert check_stop_strings(STORY_PAIRS[2], 4, mode, has_eos, seed=4)
    longer_tokens = [check_stop_strings(STORY_PAIRS[1], 1, mode, has_eos, seed, kinds=(5,)) for seed in (3, 4, 5)]
    assert any(longer_tokens)


# ---------------------------------------------------------------------- the full grid


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_rows", SIZES)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0])
def test_the_grid(pair: tuple[str, str], num_rows: int, mode: str) -> None:
    for seed, eos in enumerate(("none", "random", "random")):
        check(pair, num_rows, mode, KINDS, eos, seed=100 * num_rows + seed, new=40)
    if mode != "greedy":
        check(pair, max(num_rows // 4, 1), mode, KINDS, "random", seed=num_rows, num_return_sequences=4)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_rows", SIZES)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0])
def test_the_grid_of_stop_strings(pair: tuple[str, str], num_rows: int, mode: str) -> None:
    assert any([check_stop_strings(pair, num_rows, mode, has_eos, seed=num_rows) for has_eos in (False, True)])
