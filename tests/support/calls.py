"""Helpers for comparing calls: a pair, prompts, an oracle's candidates, pass counters and step observers."""

import copy
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

import uag
from tests.support.callers import OracleDrafter
from tests.support.differences import differences
from tests.support.gguf_files import write_llama
from tests.support.models import tiny_target, twin
from uag.hf.models import head_size
from uag.stats import TARGET

TEXTS = ("The quick brown fox jumps over the", "Once upon a time there was", "def add(first, second):")
NEW = 14
"""Of 147 candidates accepted in 20 new tokens by the pairs of `pair`, 110 are accepted in 14, and 76 in 10."""
GREEDY: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
SAMPLED: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": True, "top_k": 0, "pad_token_id": 0}
MODES = pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
ROWS = pytest.mark.parametrize("num_rows", [1, 3])
PROMPTS = [[5, 9, 14, 3, 27], [8, 6], [12, 40, 33, 18, 21, 9, 4]]
EOS_IDS = list(range(7, 649, 19))
"""Enough EOS ids that rows end early, at different steps."""


def pair(name: str = "llama", eos: bool = False) -> tuple[Any, Any, Any, Any]:
    """Return a target, its tokenizer, and a draft with other ids and a similar output, built once per process."""
    return _pair(name, eos)  # the cache of a function tells keyword arguments from positional ones


@cache
def _pair(name: str, eos: bool) -> tuple[Any, Any, Any, Any]:
    target, tokenizer = tiny_target(name, eos_id=EOS_IDS if eos else None)
    return target, tokenizer, *twin(target, tokenizer)


def assistant_of(name: str = "llama", eos: bool = False, length: int | None = 4) -> uag.Assistant:
    _, tokenizer, draft, draft_tokenizer = pair(name, eos)
    return uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=length)


def draft_options(name: str = "llama", eos: bool = False) -> dict[str, Any]:
    """Return the arguments of `generate` that pass the draft of `pair` after `uag.install()`."""
    _, tokenizer, draft, draft_tokenizer = pair(name, eos)
    return {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}


def draft_in_one_call(kind: str, folder: Path) -> tuple[Any, Any]:
    """Return a draft for the target of `pair` whose passes the kernels run in one call, and its tokenizer.

    `kind` is "copy", "model", or "file" for a GGUF file.
    """
    _, _, draft, tokenizer = pair()
    if kind == "copy":
        return "copy", None
    if kind == "model":
        return copy.deepcopy(draft), tokenizer
    pytest.importorskip("gguf")
    return write_llama(folder / "draft.gguf", draft, tokenizer), tokenizer


def left_padded(rows: Sequence[Sequence[int]], pad_id: int = 0) -> dict[str, torch.Tensor]:
    width = max(len(row) for row in rows)
    return {
        "input_ids": torch.tensor([[pad_id] * (width - len(row)) + list(row) for row in rows]),
        "attention_mask": torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]),
    }


def batch(tokenizer: Any, num_rows: int = 1) -> dict[str, Any]:
    return left_padded([tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS[:num_rows]])


def seeded(seed: int, generate: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    torch.manual_seed(seed)
    return generate(*arguments, **options)


def oracle(
    target: Any, tokenizer: Any, expected: torch.Tensor, width: int, spoil: float = 5, length: int | None = 6
) -> uag.Assistant:
    """Return an assistant that drafts the target's output after `width` ids, with some wrong ids."""
    drafter = OracleDrafter(expected[:, width:].tolist(), head_size(target), spoil)
    return uag.Assistant(None, None, tokenizer, drafter=drafter, num_candidate_tokens=length)


def ids_of(output: Any) -> torch.Tensor:
    ids: torch.Tensor = getattr(output, "sequences", output)
    return ids


def compare(
    target: Any,
    given: dict[str, Any],
    assistant: Any = None,
    *,
    seed: int = 3,
    plain: Any = None,
    door: str = "generate",
    spoil: float = 5,
    tolerance: float = 1e-5,
) -> uag.Stats:
    """Compare a call with plain decoding: what it returns, the caller's objects, and the generator's final state.

    Args:
        target: the target.
        given: keyword arguments of `generate`; each call gets a copy.
        assistant: None for one that drafts the target's output with some wrong ids.
        seed: of the generator.
        plain: the model of plain decoding, if it differs.
        door: entry point: "generate", "custom_generate", or "install" for the assistant's draft.
        spoil: share of wrong ids, see `OracleDrafter`.
        tolerance: largest difference of scores and caches, see `differences`.
    """
    theirs, ours = copy.deepcopy(given), copy.deepcopy(given)
    expected = seeded(seed, (target if plain is None else plain).generate, **theirs)
    state = torch.get_rng_state()
    has_encoder, mask = target.config.is_encoder_decoder, given.get("attention_mask")
    if assistant is None:
        width = given["input_ids"].shape[1] if given.get("input_ids") is not None else 0
        assistant = oracle(target, None, ids_of(expected), 1 if has_encoder else width, spoil=spoil)
    output = seeded(seed, through(door, assistant, target), **ours)
    assert ids_of(output).tolist() == ids_of(expected).tolist()
    for plainly, assisted in ((expected, output), (theirs, ours)):
        found = list(differences(plainly, assisted, None if has_encoder else mask, tolerance))
        assert not found, found
    assert torch.equal(torch.get_rng_state(), state)
    stats = uag.last_stats(target)
    assert door == "install" or stats is assistant.stats
    return stats


def through(door: str, assistant: uag.Assistant, target: Any) -> Callable[..., Any]:
    if door == "generate":
        return partial(assistant.generate, target)
    if door == "custom_generate":
        return partial(target.generate, custom_generate=assistant)

    def generate(**given: Any) -> Any:
        draft = {"assistant_model": assistant.draft, "assistant_tokenizer": assistant.draft_tokenizer}
        # The number of candidates is fixed, so that it does not depend on measured times.
        uag.install()
        try:
            return target.generate(**given, **draft, tokenizer=assistant.tokenizer, num_assistant_tokens=4)
        finally:
            uag.uninstall()

    return generate


def assert_drafted(stats: uag.Stats) -> None:
    assert 0 < stats.num_accepted_tokens < stats.num_candidate_tokens


def num_drafted(sources: Sequence[str]) -> int:
    """Return how many of a row's output tokens were candidates; see `uag.Stats.sources`."""
    return sum(source != TARGET for source in sources)
