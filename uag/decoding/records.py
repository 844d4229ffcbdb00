"""The output of `return_dict_in_generate`: one entry per output step, as in plain decoding."""

from typing import Any

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from uag.decoding.call import Call


class Records:
    """Scores and logits of one call."""

    def __init__(self, call: Call) -> None:
        config = call.generation_config
        self._is_encoder_decoder = bool(call.model.config.is_encoder_decoder)
        self.scores: tuple[torch.Tensor, ...] | None = () if config.output_scores else None
        self.logits: tuple[torch.Tensor, ...] | None = () if config.output_logits else None

    def add(self, scores: torch.Tensor, logits: torch.Tensor) -> None:
        """Add one output step. The tensors are not copied, as in plain decoding."""
        if self.scores is not None:
            self.scores += (scores,)
        if self.logits is not None:
            self.logits += (logits,)

    def output(self, sequences: torch.Tensor, cache: Any) -> Any:
        """Return the output object that plain decoding returns."""
        kind = GenerateEncoderDecoderOutput if self._is_encoder_decoder else GenerateDecoderOnlyOutput
        return kind(sequences=sequences, scores=self.scores, logits=self.logits, past_key_values=cache)
