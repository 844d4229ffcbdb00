"""What one call is: what transformers prepared for it, and the options of the assistant."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from uag.decoding.ranks import Ranks
from uag.errors import OptionError


@dataclass(frozen=True)
class Call:
    """One call of a decoding method.

    Attributes:
        model: the target.
        input_ids: [batch_size, prompt_length] int64.
        logits_processor: prepared processors.
        stopping_criteria: prepared criteria.
        generation_config: prepared configuration.
        model_kwargs: keyword arguments of the forward.
        source_ids: [batch_size, source_length] encoder input of encoder-decoder targets, else None.
        streamer: receives tokens as in plain decoding.
        generator: generator to sample from; None for the device's default.
        sampling: "shared-noise" or "rejection", how sampled candidates are drawn and checked.
        token_bytes: bytes of each target id, for statistics.
        ranks: the ranks that run the model together.
        is_synced: ranks that run other models must run as many passes (`synced_gpus`).
        check_blocks: whether an untested target is tried before it is assisted.
        trust_changes: whether the caller vouches for what someone changed in the target.

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
    is_synced: bool = False
    check_blocks: bool = True
    trust_changes: bool = False

    def __post_init__(self) -> None:
        """Refuse a generator on another device."""
        theirs, ours = self.generator and self.generator.device.type, self.input_ids.device.type
        if theirs is not None and theirs != ours and self.generation_config.do_sample:
            raise OptionError(
                f"The generator is on {theirs!r} and the input ids are on {ours!r}. "
                f"Make it where they are: torch.Generator({ours!r})."
            )
