"""The options of a benchmark."""

from dataclasses import dataclass

from transformers import GenerationConfig

from uag.errors import OptionError
from uag.options import Options

WITHOUT_DRAFT, LOOKUP, USELESS = "uag-no-draft", "uag-lookup", "uag-useless"
ARM_NAMES = ("plain", WITHOUT_DRAFT, "uag", LOOKUP, "uag-draft", USELESS, "transformers", "prompt-lookup")
"""The ways to generate that `uag bench` compares, in the order in which they take turns; see `uag.bench.arms`."""


@dataclass(kw_only=True)
class BenchOptions(Options):
    """Options of a benchmark, and of uag's arms in it.

    Attributes:
        arm_names: plain decoding is always measured, and uag-no-draft with `draft_independent`, as its reference.
        temperature: 0 is greedy.
        num_trials: timed runs of each arm on each batch.
        is_chat: make each prompt a user turn of the target's chat template.
        cache: the `cache_implementation` of every call; None for transformers' default.
        is_compiled: compile the passes after the prompt of every call; needs a static cache.
        minutes: begin no call after this time, warm-up included; 0 for no bound.
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
    minutes: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
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
        if self.temperature < 0 or self.minutes < 0:
            raise OptionError(f"temperature={self.temperature!r} and minutes={self.minutes!r} must be 0 or more")
