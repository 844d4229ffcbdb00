"""What one call is: what transformers prepared for it, and what the assistant was told."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from uag.decoding.ranks import Ranks
from uag.errors import OptionError
from uag.hf import positions


@dataclass
class Call:
    """One call of a decoding method.

    Attributes:
        model: the target.
        input_ids: [batch_size, prompt_length] int64.
        logits_processor: prepared processors.
        stopping_criteria: prepared criteria.
        generation_config: prepared configuration.
        model_kwargs: what goes to the forward.
        source_ids: [batch_size, source_length] encoder input of encoder-decoder targets, else None.
        streamer: receives tokens as plain decoding gives them.
        generator: generator to sample from; None for the device's default.
        sampling: "shared-noise" or "rejection", how sampled candidates are drawn and checked.
        token_bytes: bytes of each target id, for statistics.
        ranks: that run the model together.
        exact_half_precision: a target in half precision computes blocks as plain decoding computes single tokens.
        cuts: lengths at which the target's forward changes; None reads them off its modules.

    Raises:
        OptionError: the generator is on another device.
    """

    model: Any
    input_ids: torch.Tensor
    logits_processor: Any
    stopping_criteria: Any
    generation_config: Any
    model_kwargs: dict[str, Any]
    source_ids: torch.Tensor | None = None
    streamer: Any = None
    generator: torch.Generator | None = None
    sampling: str = "shared-noise"
    token_bytes: Sequence[bytes | None] = ()
    ranks: Ranks = field(default_factory=Ranks)
    exact_half_precision: bool = False
    cuts: tuple[positions.Cut, ...] | None = None

    def __post_init__(self) -> None:
        """Find out about the target; refuse a generator that cannot serve."""
        if self.cuts is None:
            self.cuts = positions.cuts(self.model)
        theirs, ours = self.generator and self.generator.device.type, self.input_ids.device.type
        if theirs is not None and theirs != ours and self.generation_config.do_sample:
            raise OptionError(
                f"The generator is on {theirs!r} and the input ids are on {ours!r}. "
                f"Make it where they are: torch.Generator({ours!r})."
            )
