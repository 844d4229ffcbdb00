"""What one call was asked to do, and how far each of its rows has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from uag.decoding.ranks import Ranks
from uag.projection.vocabulary import SortedBytes


@dataclass
class Request:
    """What transformers prepared for one call of a decoding method.

    Attributes:
        model: the target.
        input_ids: [batch_size, prompt_length] int64.
        logits_processor: prepared processors.
        stopping_criteria: prepared criteria.
        generation_config: prepared configuration.
        model_kwargs: what goes to the forward.
        streamer: receives tokens as plain decoding gives them.
        source_ids: [batch_size, source_length] encoder input of encoder-decoder targets, else None.
        generator: generator to sample from; None for the device's default.
        text_order: the target's texts in byte order, for what open text can become; None where the draft shares ids.
        token_bytes: bytes of each target id, for statistics.
        sampling: "shared-noise" or "rejection", how sampled candidates are drawn and checked.
        ranks: that run the model together.
    """

    model: Any
    input_ids: torch.Tensor
    logits_processor: Any
    stopping_criteria: Any
    generation_config: Any
    model_kwargs: dict[str, Any]
    streamer: Any = None
    source_ids: torch.Tensor | None = None
    generator: torch.Generator | None = None
    text_order: SortedBytes | None = None
    token_bytes: Sequence[bytes | None] = ()
    sampling: str = "shared-noise"
    ranks: Ranks = field(default_factory=Ranks)
