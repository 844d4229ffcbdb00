"""The data that this package's modules exchange: a call, the candidates of one round, and their outcome."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from uag.decoding.ranks import Ranks
from uag.decoding.stopping import Stopping
from uag.errors import OptionError
from uag.hf import models, passes
from uag.kernels import OwnKernels
from uag.options import Options
from uag.proposal import Proposal


@dataclass(frozen=True)
class Call:
    """One call of a decoding method: the inputs that transformers prepared, and the assistant's options.

    Attributes:
        input_ids: [batch_size, prompt_length] int64.
        source_ids: [batch_size, source_length] encoder input of encoder-decoder targets, else None.
        is_synced: whether all ranks must run the same number of passes (`synced_gpus`).
        fixed_width: tokens per row of every pass after the prompt; None for as many as there are candidates.

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
    options: Options = field(default_factory=Options)
    ranks: Ranks = field(default_factory=Ranks)
    is_synced: bool = False
    fixed_width: int | None = None

    @cached_property
    def is_compiled(self) -> bool:
        """Whether `generate` compiles the passes after the prompt; such graphs outlive the call."""
        return passes.is_compiled_for_decode(self.model, self.model_kwargs, self.generation_config)

    @cached_property
    def kernels(self) -> OwnKernels:
        """The operations that uag's kernels may compute: none in graphs, which outlive the call."""
        return OwnKernels(None if self.is_compiled else self.model)

    @cached_property
    def stopping(self) -> Stopping:
        return Stopping(self.stopping_criteria)

    @cached_property
    def vocab_size(self) -> int:
        return models.head_size(self.model)

    def __post_init__(self) -> None:
        if self.input_ids.dtype not in (torch.int64, torch.int32):
            raise OptionError(
                f"input_ids are {self.input_ids.dtype}. Pass ids as torch.int64, or embeddings as inputs_embeds."
            )
        generator, expected = self.options.generator, self.input_ids.device.type
        device = generator and generator.device.type
        if device is not None and device != expected and self.generation_config.do_sample:
            raise OptionError(
                f"The generator is on {device!r} and the input ids are on {expected!r}. "
                f"Create it on the same device: torch.Generator({expected!r})."
            )


@dataclass(frozen=True)
class Candidates:
    """The candidates of one round: the batch indices of the participating rows, and the candidates of each."""

    rows: Sequence[int]
    by_row: Sequence[list[Proposal]]

    @property
    def width(self) -> int:
        """Tokens per row of the verifying pass: the last known token and the longest row's candidates."""
        return 1 + max(map(len, self.by_row), default=0)


@dataclass(frozen=True)
class Outcome:
    """The result of one round, or of the prompt's pass: the tokens that each row gained, and candidates among them."""

    candidates: Candidates
    num_written: list[int]
    num_accepted: list[int]
    is_prefill: bool
