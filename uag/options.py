"""The options of an assistant: defaults, checks and descriptions."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from uag.errors import OptionError

if TYPE_CHECKING:
    import torch

_WEIGHTS = ("int8", "int4", "model")
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
    "min_confidence": (lambda v: (isinstance(v, float) or is_whole(v, 0)) and 0.0 <= v <= 1.0, "a number from 0 to 1"),
    "generator": (_is_generator, "a torch.Generator, or None for the device's default"),
    "draft_weights": (lambda v: v is None or v in _WEIGHTS, f"one of {', '.join(map(repr, _WEIGHTS))}, or None"),
    "sampling": (lambda v: v in _SAMPLING, f"one of {', '.join(map(repr, _SAMPLING))}"),
}
"""For options that are not switches: a check of the value, and a description of valid values."""


@dataclass(kw_only=True)
class Options:
    """The options of `uag.Assistant`, which accepts them by name, as this object, or as this object with changes.

    Attributes:
        prediction: the expected output, for calls without their own `prediction` (see docs/free-candidates.md): text or
            target ids, or a list with one of these or None per row.
        memory: True, or a `uag.Memory`, to propose from prompts and outputs of earlier calls (same page).
        num_candidate_tokens: number of candidates per round; None chooses it to maximize tokens per second.
        min_confidence: stop drafting a row when the draft's joint confidence in its candidates is below this, 0 to 1.
        prompt_lookup: if the last tokens occurred before, propose the tokens that followed them, provided that this is
            expected to be faster than the draft model; only with `num_candidate_tokens=None` and without `drafter`.
        compile_draft: run the draft's passes through `torch.compile`, which takes long at first. On a GPU, they are
            otherwise recorded as graphs, without compiling (docs/gpu.md).
        draft_weights: the weights of a draft on a CPU: "int8" or "int4", a copy of this size whose passes run in one
            call of the kernels, where they can; or "model", as they are. None for "int8", and "int4" for a target's own
            copy. The output is the same.
        generator: generator to sample from; None for the device's default.
        sampling: "shared-noise" returns the output of plain sampling. "rejection" accepts more and returns a different
            sample of the same distribution, if both models share a tokenizer (see docs/sampling.md).
        trust_changes: assist a target with hooks, replaced forwards or other changes. Only safe if the changed code
            computes each token from that token and those before it, regardless of the width of the pass.
        own_kernels: on a CPU, run the passes of target and draft with uag's kernels, which are faster for a few tokens
            and compute a token in a block as they compute it alone (see docs/kernels.md).
        draft_independent: decode plainly, with the reason in `stats.fallbacks`, where ids, scores, logits and generator
            state could depend on the draft in any bit. On a CPU with uag's kernels, few calls do. On devices that
            record graphs, every pass then has the same width, which is slower (see docs/support.md).

    Raises:
        OptionError: a wrong type or value, or rejection sampling with `draft_independent`.
    """

    prediction: Any = None
    memory: Any = False
    num_candidate_tokens: int | None = None
    min_confidence: float = 0.0
    prompt_lookup: bool = True
    compile_draft: bool = False
    draft_weights: str | None = None
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


def changed(options: Options | None, changes: dict[str, Any], owner: str) -> Options:
    """Return `options` (None for the defaults) with changes by name, which the caller passed to `owner`."""
    if options is not None and not isinstance(options, Options):
        raise OptionError(f"options={options!r:.80} must be a uag.Options, or None; pass single options by name.")
    known = {option.name for option in fields(Options)}
    if unknown := [name for name in changes if name not in known]:
        raise TypeError(
            f"{owner} got an unexpected keyword argument {unknown[0]!r}; options are {', '.join(sorted(known))}"
        )
    return replace(options or Options(), **changes)
