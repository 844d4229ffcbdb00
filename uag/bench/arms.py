"""The ways to generate that a benchmark compares, each called alike and counted alike.

plain            the target alone, `model.generate`
transformers     transformers' own assisted generation with the same draft
prompt-lookup    transformers' own n-gram lookup in the prompt
uag-fixed        uag, with a fixed number of candidates
uag              uag, with the number of candidates chosen by rate
uag-compiled     the same with `compile_draft=True`
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from uag.assistant import Assistant
from uag.bench.passes import PassCounter, synchronize
from uag.errors import OptionError
from uag.loading import Pair
from uag.stats import Stats

ARM_NAMES = ("plain", "transformers", "prompt-lookup", "uag-fixed", "uag", "uag-compiled")

DEFAULT_ARM_NAMES = ("plain", "transformers", "prompt-lookup", "uag-fixed", "uag")

PEER_ARM_NAMES = ("transformers", "prompt-lookup")

NUM_LOOKUP_TOKENS = 10

NUM_FIXED_CANDIDATE_TOKENS = 5


@dataclass(frozen=True)
class Run:
    """What one call of one arm gave.

    `output_ids` is [batch, num_steps], int64, target ids without the prompt; a finished row is filled up with the
    padding id. Candidates and accepted tokens are summed over rows.
    """

    output_ids: torch.Tensor
    seconds: float
    num_output_tokens: int
    num_target_forwards: int
    num_rounds: int
    num_candidate_tokens: int
    num_accepted_tokens: int
    stats: Stats | None = None


@dataclass(frozen=True)
class Arm:
    """One way to generate: `generate` takes what `model.generate` takes, `stats` tells of its last call."""

    name: str
    generate: Callable[..., Any]
    stats: Callable[[], Stats | None] = lambda: None


def build_arms(
    pair: Pair, names: Sequence[str] = DEFAULT_ARM_NAMES, *, num_candidate_tokens: int = NUM_FIXED_CANDIDATE_TOKENS
) -> list[Arm]:
    """Build the named arms for a pair; `num_candidate_tokens` is the length of the arm uag-fixed.

    Raises:
        OptionError: an unknown name.
    """
    check_arm_names(names)
    return [_build_arm(pair, name, num_candidate_tokens) for name in names]


def check_arm_names(names: Sequence[str]) -> None:
    """Refuse a name that no arm has.

    Raises:
        OptionError: an unknown name.
    """
    unknown = [name for name in names if name not in ARM_NAMES]
    if unknown:
        raise OptionError(f"unknown arm {unknown[0]!r}: the arms are {', '.join(ARM_NAMES)}")


def _build_arm(pair: Pair, name: str, num_candidate_tokens: int) -> Arm:
    plain = pair.target.generate
    assistant_arguments = (pair.draft, pair.draft_tokenizer, pair.target_tokenizer)
    match name:
        case "plain":
            return Arm(name, plain)
        case "transformers":
            return Arm(name, _transformers_own(pair))
        case "prompt-lookup":
            return Arm(name, lambda **kwargs: plain(**kwargs, prompt_lookup_num_tokens=NUM_LOOKUP_TOKENS))
        case "uag-fixed":
            fixed = Assistant(*assistant_arguments, num_candidate_tokens=num_candidate_tokens)
            return _assistant_arm(pair, name, fixed)
        case "uag-compiled":
            return _assistant_arm(pair, name, Assistant(*assistant_arguments, compile_draft=True))
        case _:
            return _assistant_arm(pair, name, Assistant(*assistant_arguments))


def _assistant_arm(pair: Pair, name: str, assistant: Assistant) -> Arm:
    return Arm(name, lambda **kwargs: assistant.generate(pair.target, **kwargs), lambda: assistant.stats)


def _transformers_own(pair: Pair) -> Callable[..., Any]:
    """Return transformers' own assisted generation, with the tokenizers only where it wants them.

    The draft is a copy: with sampling transformers 5.16 to 5.23 prune the head of the draft for good. One copy serves
    greedy calls and another one sampling, for the same reason.
    """
    drafts: dict[bool, Any] = {}
    is_shared = pair.target_tokenizer.get_vocab() == pair.draft_tokenizer.get_vocab()
    tokenizers = {} if is_shared else {"tokenizer": pair.target_tokenizer, "assistant_tokenizer": pair.draft_tokenizer}

    def generate(**kwargs: Any) -> Any:
        do_sample = bool(kwargs.get("do_sample"))
        if do_sample not in drafts:
            drafts[do_sample] = copy.deepcopy(pair.draft)
        return pair.target.generate(**kwargs, assistant_model=drafts[do_sample], **tokenizers)

    return generate


def run_arm(arm: Arm, pair: Pair, inputs: dict[str, torch.Tensor], options: dict[str, Any], seed: int) -> Run:
    """Run one arm once on one batch, from the same seed as every other arm, and count what it did.

    `inputs` is what `uag.loading.encode` gives and `options` are keyword arguments of `model.generate`; neither is
    changed. The clock runs from call to return with the device idle on both sides.
    """
    device = pair.target.device
    prompt_width = 1 if pair.is_encoder_decoder else inputs["input_ids"].shape[1]
    torch.manual_seed(seed)
    with PassCounter(pair.target) as counter:
        synchronize(device)
        start_s = time.perf_counter()
        sequences = arm.generate(**inputs, **options)
        synchronize(device)
        seconds = time.perf_counter() - start_s
    output_ids = sequences[:, prompt_width:].cpu()
    num_output_tokens = int(is_output(output_ids, eos_ids(pair.target)).sum())
    stats = arm.stats()
    counted = Run(
        output_ids=output_ids,
        seconds=seconds,
        num_output_tokens=num_output_tokens,
        num_target_forwards=len(counter.widths),
        num_rounds=len(counter.widths),
        num_candidate_tokens=output_ids.shape[0] * counter.num_candidate_tokens(prompt_width),
        # Each pass of a row gives one token of the target's own; all others were candidates that it accepted.
        num_accepted_tokens=max(0, num_output_tokens - output_ids.shape[0] * len(counter.widths)),
    )
    if stats is None:
        return counted
    return replace(
        counted,
        num_rounds=stats.num_rounds,
        num_candidate_tokens=stats.num_candidate_tokens,
        num_accepted_tokens=stats.num_accepted_tokens,
        stats=stats,
    )


def eos_ids(model: Any) -> list[int]:
    """Return the ids that end a row, from the model's generation config."""
    eos = model.generation_config.eos_token_id
    if eos is None:
        return []
    return list(eos) if isinstance(eos, list | tuple) else [int(eos)]


def is_output(output_ids: torch.Tensor, eos: list[int]) -> torch.Tensor:
    """Mark the tokens up to and with each row's first EOS: [batch, num_steps], bool.

    >>> is_output(torch.tensor([[5, 2, 0, 0], [5, 6, 7, 2]]), [2]).sum(dim=1).tolist()
    [2, 4]
    """
    is_eos = torch.isin(output_ids, torch.tensor(eos, dtype=output_ids.dtype))
    num_eos_before = is_eos.long().cumsum(dim=1) - is_eos.long()
    return num_eos_before == 0
