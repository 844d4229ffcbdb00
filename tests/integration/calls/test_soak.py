"""Thousands of mixed calls in one process and in threads: all equal plain decoding, and no memory leaks."""

import gc
import random
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

import uag
from tests.support.callers import Puts, raises_at
from tests.support.calls import ids_of, left_padded, pair
from tests.support.models import tiny_draft
from uag.drafting import ModelDrafter
from uag.projection.pair import TargetReader
from uag.projection.vocabulary import VocabularyMap

MAX_NEW = 16

MOST_TRACED = 700_000
"""Bytes by which Python's memory may grow, because allocators keep freed memory."""


class OwnError(Exception):
    """An error raised by the caller's code."""


def assistants() -> list[uag.Assistant]:
    """Return assistants with an adaptive and a fixed number of candidates, and with different drafts."""
    target, tokenizer, draft, draft_tokenizer = pair(eos=True)
    other, other_tokenizer = tiny_draft("llama")
    return [
        uag.Assistant(draft, draft_tokenizer, tokenizer, generator=torch.Generator()),
        uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3, generator=torch.Generator()),
        uag.Assistant(other, other_tokenizer, tokenizer, num_candidate_tokens=2, generator=torch.Generator()),
        uag.Assistant(target, tokenizer, tokenizer, num_candidate_tokens=4, generator=torch.Generator()),
    ]


def options_of(rng: random.Random) -> dict[str, Any]:
    lengths = [rng.choice((1, 2, 9, 40)) for _ in range(rng.choice((1, 1, 1, 2, 5)))]
    rows = [[rng.randrange(3, 600) for _ in range(length)] for length in lengths]
    given: dict[str, Any] = {**left_padded(rows), "max_new_tokens": rng.randint(1, MAX_NEW), "pad_token_id": 0}
    given["do_sample"] = rng.random() < 0.5
    if given["do_sample"]:
        given |= {"temperature": rng.choice((0.7, 1.0, 1.5)), "top_k": rng.choice((0, 20))}
        given["top_p"] = rng.choice((1.0, 0.9))
        given["num_return_sequences"] = rng.choice((1, 1, 2))
    extras: tuple[dict[str, Any], ...] = (
        {}, {}, {"repetition_penalty": 1.2}, {"min_new_tokens": 3}, {"stop_strings": ["e", " th", "qu"]},
        {"return_dict_in_generate": True, "output_scores": True}, {"bad_words_ids": [[9], [14, 3]]},
        {"no_repeat_ngram_size": 3}, {"max_time": 60.0},
    )  # fmt: skip
    return given | rng.choice(extras)


@dataclass(frozen=True)
class Request:
    """Arguments of a call, and plain decoding's results: ids, and the generator's final state."""

    given: dict[str, Any]
    seed: int
    ids: list[list[int]]
    state: torch.Tensor


@cache
def requests(num: int) -> list[Request]:
    target, tokenizer, *_ = pair(eos=True)
    rng, found = random.Random(7), []
    for seed in range(num):
        given = options_of(rng)
        torch.manual_seed(seed)
        output = target.generate(**given, **({"tokenizer": tokenizer} if "stop_strings" in given else {}))
        found.append(Request(given, seed, ids_of(output).tolist(), torch.get_rng_state()))
    return found


def one_request(request: Request, assistant: uag.Assistant, rng: random.Random) -> None:
    generator, target = assistant.options.generator, pair(eos=True)[0]
    assert generator is not None
    if rng.random() < 1 / 6:
        fail(assistant, dict(request.given), rng)
        return
    generator.manual_seed(request.seed)
    if rng.random() < 0.3 and "stop_strings" not in request.given:
        output = target.generate(**request.given, custom_generate=assistant)
    else:
        output = assistant.generate(target, **request.given)
    assert ids_of(output).tolist() == request.ids
    assert torch.equal(generator.get_state(), request.state)


def fail(assistant: uag.Assistant, given: dict[str, Any], rng: random.Random) -> None:
    length = given["input_ids"].shape[1] + rng.randint(0, 6)
    place = rng.choice(("logits_processor", "stopping_criteria", "streamer"))
    given[place] = Puts(rng.randint(0, 5)) if place == "streamer" else [raises_at(length, OwnError, place)]
    try:
        assistant.generate(pair(eos=True)[0], **given)
    except (OwnError, ConnectionError) as error:
        error.__traceback__ = None


def is_idle(assistant: uag.Assistant) -> bool:
    """Whether an assistant keeps nothing from its last call except learned values."""
    drafter: Any = assistant._sessions[0].drafter
    is_busy = any(session.call for session in assistant._sessions)
    if any(getattr(drafter, name, None) for name in ("_rows", "_known")) or is_busy:
        return False
    passes: Any = drafter.model if isinstance(drafter, ModelDrafter) else None
    return passes is None or (not passes.books and not passes.rows)


def num_tensors() -> int:
    gc.collect()
    return sum(type(kept) is torch.Tensor for kept in gc.get_objects())


def traced_bytes() -> int:
    """Return Python's memory without the bounded caches of text."""
    for kept in gc.get_objects():
        if type(kept) is VocabularyMap:
            kept.target_sorted.neighbors.cache_clear()
        elif type(kept) is TargetReader and hasattr(kept, "of_text"):  # its copy has none
            kept.of_text.cache_clear()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("num", [30, pytest.param(10_000, marks=pytest.mark.slow)])
def test_four_threads_with_an_assistant_each(num: int) -> None:
    """The models, the tokenizers and their caches are shared. Nothing grows after the first 500 calls, or is kept."""
    used = assistants()
    draws = [random.Random(seed) for seed in range(len(used))]
    known = requests(min(num, 120))

    def run(number: int) -> None:
        def calls(assistant: uag.Assistant, rng: random.Random) -> None:
            for _ in range(number):
                one_request(rng.choice(known), assistant, rng)

        with ThreadPoolExecutor(len(used)) as pool:
            list(pool.map(calls, used, draws))

    target, _, draft, _ = pair(eos=True)
    num //= len(used)
    num_first = num_last = min(500, num // 3)
    run(num_first)
    before = num_tensors()
    run(num - num_first - num_last)
    tracemalloc.start()
    try:
        run(num_last // 4)
        traced = traced_bytes()
        run(num_last - num_last // 4)
        grown = traced_bytes() - traced
    finally:
        tracemalloc.stop()
    after = num_tensors()
    assert after <= before + 8, f"{after - before} tensors were leaked"
    assert grown < MOST_TRACED, f"Python's memory grew by {grown} bytes"
    assert all(map(is_idle, used))
    assert not any("forward" in vars(part) or part._forward_pre_hooks for part in (*target.modules(), *draft.modules()))
