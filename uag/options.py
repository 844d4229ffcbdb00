"""The options of an assistant and of a benchmark: defaults, checks and descriptions.

They travel whole, from the entry points to the code that uses them. `uag/cli/common.py` makes them flags.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from uag.errors import OptionError

if TYPE_CHECKING:  # the command line reads the defaults below before it waits for torch
    import torch

ARM_NAMES = ("plain", "transformers", "prompt-lookup", "uag-no-draft", "uag")
"""The ways to generate that `uag bench` compares; see `uag.bench.arms`."""

_SAMPLING = ("shared-noise", "rejection")


def is_whole(value: Any, least: int) -> bool:
    """Whether a value is a whole number of at least `least`, and not a truth value."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_generator(value: Any) -> bool:
    import torch

    return value is None or isinstance(value, torch.Generator)


_Rule = tuple[Callable[[Any], bool], str]
_SWITCH: _Rule = (lambda v: isinstance(v, bool), "True or False")
_RULES: dict[str, _Rule] = {
    "num_candidate_tokens": (lambda v: v is None or is_whole(v, 1), "a whole number of 1 or more, or None"),
    "min_confidence": (lambda v: isinstance(v, int | float) and 0.0 <= v <= 1.0, "a number from 0 to 1"),
    "generator": (_is_generator, "a torch.Generator, or None for the device's default"),
    "sampling": (lambda v: v in _SAMPLING, f"one of {', '.join(map(repr, _SAMPLING))}"),
}
"""For options that are not switches: a check of the value, and a description of valid values."""


@dataclass(kw_only=True)
class Options:
    """The options of `uag.Assistant`, which accepts them by name, as this object, or as this object with changes.

    Attributes:
        prediction: the expected output, for calls without their own `prediction` (see docs/predictions.md): text or
            target ids, or a list with an entry per row, which is such a prediction, a list of several, or None. Or a
            function that is called with each call's input ids and returns one, or a `concurrent.futures.Future` of one.
        memory: True, or a `uag.Memory`, to propose from prompts and outputs of earlier calls (see docs/memory.md).
        num_candidate_tokens: number of candidates per round; None chooses it to maximize tokens per second.
        min_confidence: stop drafting a row when the draft's joint confidence in its candidates is below this, 0 to 1.
        prompt_lookup: if the last tokens occurred before, propose the tokens that followed them, provided that this is
            expected to be faster than the draft model; only with `num_candidate_tokens=None` and without `drafter`.
        compile_draft: run the draft's passes through `torch.compile`, which takes long at first. On a GPU, they are
            otherwise recorded as graphs, without compiling (docs/gpu.md).
        generator: generator to sample from; None for the device's default.
        sampling: "shared-noise" returns the output of plain sampling. "rejection" accepts more and returns a different
            sample of the same distribution, if both models share a tokenizer (see docs/sampling.md).
        trust_changes: assist a target with hooks, replaced forwards or other changes. Only safe if the changed code
            computes each token from that token and those before it, regardless of the width of the pass.
        own_kernels: on a CPU, run the passes of target and draft with uag's kernels, which are faster for a few tokens
            and compute a token in a block as they compute it alone (see docs/kernels.md).
        draft_independent: decode plainly, with the reason in `stats.fallbacks`, where ids, scores, logits and generator
            state could depend on the draft in any bit. On a CPU with uag's kernels, few calls do. On devices that
            record graphs, every pass then has the same width, which is slower (see docs/limits.md).

    Raises:
        OptionError: a wrong type or value, or rejection sampling with `draft_independent`.
    """

    prediction: Any = None
    memory: Any = False
    num_candidate_tokens: int | None = None
    min_confidence: float = 0.0
    prompt_lookup: bool = True
    compile_draft: bool = False
    generator: "torch.Generator | None" = None
    sampling: str = "shared-noise"
    trust_changes: bool = False
    own_kernels: bool = True
    draft_independent: bool = False

    def __post_init__(self) -> None:
        switches = {option.name: _SWITCH for option in fields(Options) if option.type is bool}
        for name, (is_valid, expected) in (switches | _RULES).items():
            if not is_valid(value := getattr(self, name)):
                raise OptionError(f"{name}={value!r} must be {expected}.")
        if self.draft_independent and self.sampling == "rejection":
            raise OptionError(
                "draft_independent=True promises the same output for every draft, and sampling='rejection' returns "
                "another sample for each. Use the default sampling='shared-noise'."
            )


@dataclass(kw_only=True)
class BenchOptions(Options):
    """Options of a benchmark, and of uag's arms in it.

    Attributes:
        arm_names: plain decoding is always measured, and uag-no-draft with `draft_independent`, as its reference.
        batch_size: prompts per call.
        temperature: 0 is greedy.
        max_new_tokens: maximum number of new tokens per prompt.
        num_trials: timed runs of each arm on each batch.
        seed: seed for sampling.
        is_chat: make each prompt a user turn of the target's chat template.
        cache: the `cache_implementation` of every call; None for transformers' default.
        is_compiled: compile the passes after the prompt of every call; needs a static cache.
    """

    arm_names: tuple[str, ...] = ARM_NAMES
    batch_size: int = 1
    temperature: float = 0.0
    max_new_tokens: int = 64
    num_trials: int = 5
    seed: int = 0
    is_chat: bool = False
    cache: str | None = None
    is_compiled: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        from transformers import GenerationConfig

        for name in self.arm_names:
            if name not in ARM_NAMES:
                raise OptionError(f"unknown arm {name!r}: the arms are {', '.join(ARM_NAMES)}")
        if min(self.max_new_tokens, self.num_trials, self.batch_size) < 1:
            raise OptionError("the batch size, new tokens and trials must be at least 1")
        try:
            GenerationConfig(cache_implementation=self.cache)
        except ValueError as error:
            raise OptionError(str(error)) from error
        if self.is_compiled and self.cache != "static":
            raise OptionError("compiled passes need a static cache: pass --cache static")
        if self.temperature < 0:
            raise OptionError(f"the temperature must be 0 (greedy) or more, not {self.temperature!r}")
