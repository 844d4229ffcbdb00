"""The ways to generate that a benchmark compares, each called alike and counted alike.

plain            the target alone, `model.generate`
transformers     transformers' own assisted generation with the same draft
prompt-lookup    transformers' own n-gram lookup in the prompt
uag-fixed        uag, with a fixed number of candidates
uag              uag, with the number of candidates chosen by rate
uag-compiled     the same with `compile_draft=True`
"""

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from uag.assistant import Assistant
from uag.bench.passes import num_candidates, pass_widths, timed
from uag.errors import OptionError
from uag.gguf import GgufDraft
from uag.loading import Pair
from uag.stats import Stats

ARM_NAMES = ("plain", "transformers", "prompt-lookup", "uag-fixed", "uag", "uag-compiled")

DEFAULT_ARM_NAMES = ARM_NAMES[:-1]
"""Without the arm whose first passes are spent on compiling."""

PEER_ARM_NAMES = ("transformers", "prompt-lookup")

NUM_LOOKUP_TOKENS = 10
"""More copies further where text repeats, and costs more of each pass where it does not."""

NUM_FIXED_CANDIDATE_TOKENS = 5
"""More pays with a draft that is often right, and costs with another; the arm uag chooses for itself."""


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
    """One way to generate: `generate` takes what `model.generate` takes, `stats` tells of its last call.

    Passes are counted by the statistics where an arm has some, else by a hook on the target.
    """

    name: str
    generate: Callable[..., Any]
    stats: Callable[[], Stats] | None = None


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
    """Refuse a name that no arm has."""
    for name in names:
        if name not in ARM_NAMES:
            raise OptionError(f"unknown arm {name!r}: the arms are {', '.join(ARM_NAMES)}")


def _build_arm(pair: Pair, name: str, num_candidate_tokens: int) -> Arm:
    options: dict[str, Any] = {}
    match name:
        case "plain":
            return Arm(name, pair.target.generate)
        case "transformers":
            return Arm(name, _transformers_own(pair))
        case "prompt-lookup":
            return Arm(name, partial(pair.target.generate, prompt_lookup_num_tokens=NUM_LOOKUP_TOKENS))
        case "uag-fixed":
            options["num_candidate_tokens"] = num_candidate_tokens
        case "uag-compiled":
            options["compile_draft"] = True
    assistant = Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer, **options)
    return assisted(name, assistant, pair.target)


def assisted(name: str, assistant: Assistant, target: Any) -> Arm:
    """Return the arm of an assistant and a target."""
    return Arm(name, lambda **kwargs: assistant.generate(target, **kwargs), lambda: assistant.stats)


def _transformers_own(pair: Pair) -> Callable[..., Any]:
    """Return transformers' own assisted generation, with the tokenizers only where it wants them.

    The draft is a copy: with sampling transformers 5.16 to 5.23 prune the head of the draft for good. One copy serves
    greedy calls and another one sampling, for the same reason.
    """
    drafts: dict[bool, Any] = {}
    if isinstance(pair.draft, GgufDraft):
        return _refuse
    is_shared = pair.target_tokenizer.get_vocab() == pair.draft_tokenizer.get_vocab()
    tokenizers = {} if is_shared else {"tokenizer": pair.target_tokenizer, "assistant_tokenizer": pair.draft_tokenizer}

    def generate(**kwargs: Any) -> Any:
        do_sample = bool(kwargs.get("do_sample"))
        if do_sample not in drafts:
            drafts[do_sample] = copy.deepcopy(pair.draft)
        return pair.target.generate(**kwargs, assistant_model=drafts[do_sample], **tokenizers)

    return generate


def _refuse(**_: Any) -> Any:
    raise NotImplementedError("transformers has no drafts in GGUF files")


def run_arm(arm: Arm, pair: Pair, inputs: dict[str, torch.Tensor], options: dict[str, Any], seed: int) -> Run:
    """Run one arm once on one batch, from the same seed as every other arm, and count what it did.

    `inputs` is what `uag.loading.encode` gives and `options` are keyword arguments of `model.generate`; neither is
    changed. The clock runs from call to return with the device idle on both sides.
    """
    prompt_width = pair.prompt_width(inputs)
    torch.manual_seed(seed)
    # A hook would keep the target from its short passes.
    counting: AbstractContextManager[list[int]] = pass_widths(pair.target) if arm.stats is None else nullcontext([])
    with counting as widths:
        sequences, seconds = timed(pair.target.device, arm.generate, **inputs, **options)
    output_ids = sequences[:, prompt_width:].cpu()
    num_output_tokens = int(is_output(output_ids, eos_ids(pair.target)).sum())
    if arm.stats is not None:
        stats = arm.stats()
        names = "num_rounds", "num_target_forwards", "num_candidate_tokens", "num_accepted_tokens"
        counts = {name: getattr(stats, name) for name in names}
        return Run(output_ids, seconds, num_output_tokens, stats=stats, **counts)
    num_rows, num_passes = output_ids.shape[0], len(widths)
    counts = {
        "num_rounds": num_passes,
        "num_target_forwards": num_passes,
        "num_candidate_tokens": num_rows * num_candidates(widths, prompt_width),
        # Each pass of a row gives one token of the target's own; all others were candidates that it accepted.
        "num_accepted_tokens": max(0, num_output_tokens - num_rows * num_passes),
    }
    return Run(output_ids, seconds, num_output_tokens, **counts)


def eos_ids(model: Any) -> list[int]:
    """Return the ids that end a row, from the model's generation config."""
    eos = model.generation_config.eos_token_id
    ids: list[int] = [] if eos is None else torch.as_tensor(eos).flatten().tolist()
    return ids


def is_output(output_ids: torch.Tensor, eos: list[int]) -> torch.Tensor:
    """Mark the tokens up to and with each row's first EOS: [batch, num_steps], bool.

    >>> is_output(torch.tensor([[5, 2, 0, 0], [5, 6, 7, 2]]), [2]).sum(dim=1).tolist()
    [2, 4]
    """
    is_eos = torch.isin(output_ids, torch.tensor(eos, dtype=output_ids.dtype))
    num_eos_before = is_eos.long().cumsum(dim=1) - is_eos.long()
    return num_eos_before == 0
