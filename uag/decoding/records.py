"""The output of `return_dict_in_generate`: one entry per output step, as in plain decoding."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from uag.decoding.call import Call

Recorded = tuple[Any, ...]


class Records:
    """Scores, logits, attentions and hidden states of one call."""

    def __init__(self, call: Call) -> None:
        config = call.generation_config
        self.is_encoder_decoder = bool(call.model.config.is_encoder_decoder)
        self.scores: tuple[torch.Tensor, ...] | None = () if config.output_scores else None
        self.logits: tuple[torch.Tensor, ...] | None = () if config.output_logits else None
        self.attentions: Recorded | None = () if config.output_attentions else None
        self.cross_attentions: Recorded | None = () if config.output_attentions else None
        self.hidden_states: Recorded | None = () if config.output_hidden_states else None
        encoder = call.model_kwargs.get("encoder_outputs") or {}
        self.encoder_attentions = encoder.get("attentions") if config.output_attentions else None
        self.encoder_hidden_states = encoder.get("hidden_states") if config.output_hidden_states else None

    def add_scores(self, scores: torch.Tensor, logits: torch.Tensor) -> None:
        """Add one output step. The tensors are not copied, as in plain decoding."""
        if self.scores is not None:
            self.scores += (scores,)
        if self.logits is not None:
            self.logits += (logits,)

    def add_states(
        self,
        outputs: Any,
        length: int,
        num_written: int,
        width: int,
        is_first: bool,
        windows: Sequence[int | None],
    ) -> None:
        """Add the attentions and hidden states of a pass, split by token.

        Args:
            outputs: the model's outputs of the pass.
            length: number of cache slots before the pass's first new token.
            num_written: number of output tokens of the pass.
            width: number of positions with logits: the last known token and the candidates.
            is_first: whether the pass read the prompt, whose positions belong to the first entry.
            windows: number of positions that each layer attends to, None for all.
        """
        where = (length, num_written, width, is_first)
        prefix = "decoder_" if self.is_encoder_decoder else ""
        if self.attentions is not None:
            self.attentions += _split(getattr(outputs, f"{prefix}attentions"), *where, windows)
            if self.is_encoder_decoder:
                crossed = _split(outputs.cross_attentions, *where, None)
                self.cross_attentions = (self.cross_attentions or ()) + crossed
        if self.hidden_states is not None:
            self.hidden_states += _split(getattr(outputs, f"{prefix}hidden_states"), *where, None)

    def output(self, sequences: torch.Tensor, cache: Any) -> Any:
        """Return the output object that plain decoding returns."""
        shared = {"sequences": sequences, "scores": self.scores, "logits": self.logits, "past_key_values": cache}
        if self.is_encoder_decoder:
            return GenerateEncoderDecoderOutput(
                encoder_attentions=self.encoder_attentions,
                encoder_hidden_states=self.encoder_hidden_states,
                decoder_attentions=self.attentions,
                cross_attentions=self.cross_attentions,
                decoder_hidden_states=self.hidden_states,
                **shared,
            )
        return GenerateDecoderOnlyOutput(attentions=self.attentions, hidden_states=self.hidden_states, **shared)


def _split(
    layers: Any,
    length: int,
    num_written: int,
    width: int,
    is_first: bool,
    windows: Sequence[int | None] | None,
) -> Recorded:
    """Split the layers of a pass into one entry per written token.

    transformers' own `_split_model_outputs` selects the wrong rows if the pass over the prompt contains candidates.

    Args:
        layers: for each layer [..., positions, features or keys]; None if the model returns none.
        length: this and the following arguments are those of `Records.add_states`.
        num_written: number of output tokens.
        width: number of positions with logits.
        is_first: whether the pass read the prompt.
        windows: for self-attention, whose last axis is the keys; None for anything else.
    """
    if layers is None or any(layer is None for layer in layers):
        return (layers,) * num_written
    entries = []
    for written in range(num_written):
        entry = []
        for index, layer in enumerate(layers):
            row = layer.shape[-2] - width + written
            part = layer[..., 0 if is_first and written == 0 else row : row + 1, :]
            if windows is not None:
                # Exclude the keys of later candidates in this pass, and those outside a window.
                end = layer.shape[-1] - (width - 1 - written)
                num_keys = length + written
                window = windows[index] if index < len(windows) else None
                if window is not None and not (is_first and written == 0):
                    num_keys = min(num_keys, window)
                part = part[..., max(0, end - num_keys) : end]
            entry.append(part)
        entries.append(tuple(entry))
    return tuple(entries)
