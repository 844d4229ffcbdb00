"""Every row equals plain decoding's: batches of trained pairs, with rows that end at different times.

    pytest -m slow tests/integration/calls/test_batches.py

takes about half an hour on one core, two thirds of it for the demo pair, whose target has 36 layers.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import pytest
import torch

import uag
from tests.support.grids import covering
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
    torch.manual_seed(seed)
    return generate(**options), torch.get_rng_state()


def eos_that_occur(_: Any, rows: list[list[int]], rng: random.Random) -> dict[str, Any]:
    """Return ids from random positions of some rows, so that rows end at different times, or never."""
    picked = {rng.choice(row[len(row) // 4 :]) for row in rng.sample(rows, max(1, len(rows) // 2))}
    return {"eos_token_id": sorted(picked)[:3]}


def straddling(tokenizer: Any, rows: list[list[int]], rng: random.Random) -> dict[str, Any]:
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
    return {"stop_strings": found}


ENDS: dict[str, Callable[[Any, list[list[int]], random.Random], dict[str, Any]]] = {
    "never": lambda *_: {},
    "eos": eos_that_occur,
    "strings": straddling,
    "strings and eos": lambda *given: straddling(*given) | {"eos_token_id": 2},
}
"""Ways to end rows: options, from the target's tokenizer and its output without them."""


def check(
    pair: tuple[str, str], num_rows: int, mode: str, kinds: tuple[str | int, ...], ends: str, seed: int, new: int = 24,
    **options: Any,
) -> list[uag.Stats]:  # fmt: skip
    target, tokenizer = trained(pair[0])
    rng = random.Random(seed)
    inputs = prompts(pair[0], lengths_of(pair[0], num_rows, rng, seed))
    width = inputs["input_ids"].shape[1]
    options = {**inputs, **MODES[mode], "max_new_tokens": new, "pad_token_id": PAD, **options}
    found = []
    with without_eos(target):
        expected, state = run(target.generate, seed, **options)
        ending = ENDS[ends](tokenizer, expected[:, width:].tolist(), rng)
        if ending:
            options |= ending
            expected, state = run(target.generate, seed, tokenizer=tokenizer, **options)
        for kind in kinds:
            assistant = assistant_of(pair, kind)
            output, state_after = run(partial(assistant.generate, target), seed, **options)
            assert output.tolist() == expected.tolist(), (kind, ending)
            assert torch.equal(state, state_after), kind
            found.append(assistant.stats)
    return found


def ended_early(stats: list[uag.Stats], new: int = 32) -> bool:
    return any(len(row) < new for row in stats[-1].sources)


@covering("mode, ends, pair", MODES, ("never", "eos"), STORY_PAIRS[1:], strength=1)
def test_five_rows(pair: tuple[str, str], mode: str, ends: str) -> None:
    stats = check(pair, 5, mode, ("auto", 5), ends, seed=len(mode) + len(ends))
    assert 0 < stats[1].num_accepted_tokens <= stats[1].num_candidate_tokens
    assert stats[1].num_accepted_tokens < stats[1].num_candidate_tokens or ends == "eos"
    assert not stats[1].fallbacks
    lengths = [len(row) for row in stats[1].sources]
    assert len(set(lengths)) > 1 if ends == "eos" else set(lengths) == {24}


@covering("num_rows, mode", (1, 2, 16), ("greedy", "sample"), strength=1)
def test_other_sizes(num_rows: int, mode: str) -> None:
    (stats,) = check(STORY_PAIRS[0], num_rows, mode, (5,), "eos", seed=num_rows)
    assert stats.num_accepted_tokens > 0


@covering("ends, mode", ("strings", "strings and eos"), ("greedy", "sample"), strength=1)
def test_stop_strings_that_straddle_tokens(mode: str, ends: str) -> None:
    assert ended_early(check(STORY_PAIRS[2], 4, mode, ("auto",), ends, seed=4, new=32))
    assert any(ended_early(check(STORY_PAIRS[1], 1, mode, (5,), ends, seed, new=32)) for seed in (3, 5))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_rows", SIZES)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0])
def test_the_grid(pair: tuple[str, str], num_rows: int, mode: str) -> None:
    for seed, ends in enumerate(("never", "eos", "eos")):
        check(pair, num_rows, mode, KINDS, ends, seed=100 * num_rows + seed, new=40)
    if mode != "greedy":
        check(pair, max(num_rows // 4, 1), mode, KINDS, "eos", seed=num_rows, num_return_sequences=4)
    strings = [check(pair, num_rows, mode, KINDS, ends, num_rows, new=32) for ends in ("strings", "strings and eos")]
    assert any(map(ended_early, strings))
