"""The target's passes: prefill, blocks of candidates, and putting its cache back.

Rows either go in step (every row keeps the same number of tokens of a block) or ragged (each keeps what it accepted).
Holes under an attention mask give wrong logits in some models, so ragged rows are shifted right until all end in one
slot, and padding that all rows share on the left is cut off.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from typing import Any

import torch

from uag.hf.caches import cache_names, crop, is_sliding, self_attention_layers, take_slots
from uag.hf.growing import BufferedLayer
from uag.hf.models import max_positions
from uag.hf.passes import extend_kwargs
from uag.stats import Stats


class TargetModel:
    """Runs the target for one call.

    Args:
        model: the target.
        generation_config: of this call, prepared by transformers.
        model_kwargs: what transformers prepared for the forward; owned by this object from here on.
        stats: where passes and seconds are counted.
    """

    def __init__(self, model: Any, generation_config: Any, model_kwargs: dict[str, Any], stats: Stats) -> None:
        self.model = model
        self.config = generation_config
        self.kwargs = model_kwargs
        self.stats = stats
        self.is_encoder_decoder = bool(model.config.is_encoder_decoder)
        self.max_positions = max_positions(model.config.get_text_config(decoder=True))
        self.is_ragged = False
        self.last_s = 0.0
        self.outputs: Any = None
        self._pads: list[int] = []
        self._is_first = True

    @property
    def cache(self) -> Any:
        """The cache, under whatever name the model gives it."""
        return next((self.kwargs[name] for name in cache_names() if self.kwargs.get(name) is not None), None)

    def takes_candidates_first(self) -> bool:
        """Whether the prefill may carry candidates: not with embeddings, chunks, images or a cache that goes on."""
        kwargs = self.kwargs
        cache = self.cache
        plain = kwargs.get("inputs_embeds") is None and self.config.prefill_chunk_size is None
        text_only = not any(name in kwargs for name in ("pixel_values", "input_features", "mm_encoder_outputs"))
        return plain and text_only and cache is not None and cache.get_seq_length() == 0

    def can_be_ragged(self) -> bool:
        """Whether rows may keep different numbers of tokens: positions can be given and every layer has a time axis."""
        parameters = inspect.signature(self.model.forward).parameters
        positions = self.kwargs.get("position_ids")
        if self.is_encoder_decoder or not {"position_ids", "attention_mask"} <= parameters.keys():
            return False
        if positions is None or positions.dim() != 2:
            return False
        if any("token_type_ids" in name and value is not None for name, value in self.kwargs.items()):
            return False
        layers = self_attention_layers(self.cache)
        # None hold anything where the model reads all ids in every pass (OpenAI GPT).
        return bool(layers) and all(layer.keys.dim() == 4 and not hasattr(layer, "indexer_keys") for layer in layers)

    def has_gaps(self) -> bool:
        """Whether some row's attention mask leaves out slots behind its first token (padding on the right, holes)."""
        mask = self.kwargs.get("attention_mask")
        return mask is not None and bool(((mask.cumsum(-1) > 0) & (mask == 0)).any())

    # ------------------------------------------------------------------ passes

    def prefill(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Run the prompt as plain decoding does; returns logits [batch_size, 1, vocab_size], float32."""
        began = time.perf_counter()
        outputs = self.model._prefill(input_ids, self.config, self.kwargs, is_first_iteration=True)
        logits = self._logits(outputs, 1, input_ids.device)
        self._finish_pass(outputs, began)
        self._is_first = False
        return logits

    def verify(self, input_ids: torch.Tensor, num_candidates: int) -> torch.Tensor:
        """Run a block of candidates, rows in step.

        Args:
            input_ids: [batch_size, length], everything so far and the candidates at the end.
            num_candidates: of every row.

        Returns:
            Logits [batch_size, num_candidates + 1, vocab_size], float32.
        """
        began = time.perf_counter()
        kwargs = extend_kwargs(self.kwargs, num_candidates, self.is_encoder_decoder)
        is_whole = self._is_first or not self.kwargs.get("use_cache", True)
        inputs = self.model.prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=None if is_whole else num_candidates + 1,
            is_first_iteration=self._is_first,
            **kwargs,
        )
        if "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = num_candidates + 1
        outputs = self.model(**inputs, return_dict=True)
        logits = self._logits(outputs, num_candidates + 1, input_ids.device)
        self._finish_pass(outputs, began)
        return logits

    def keep(self, num_kept: int, num_run: int) -> None:
        """Keep the first `num_kept` of the last `num_run` tokens of every row, and take the next one as given."""
        crop(self.cache, num_run - num_kept)
        self.advance(num_kept)

    def advance(self, num_new: int) -> None:
        """Carry masks and positions on to the next pass."""
        self.kwargs = self.model._update_model_kwargs_for_generation(
            self.outputs, self.kwargs, is_encoder_decoder=self.is_encoder_decoder, num_new_tokens=num_new
        )
        self._is_first = False

    def _logits(self, outputs: Any, num: int, device: torch.device) -> torch.Tensor:
        logits: torch.Tensor = outputs.logits[:, -num:].to(copy=True, dtype=torch.float32, device=device)
        return logits

    def _finish_pass(self, outputs: Any, began: float) -> None:
        if outputs.logits.device.type == "cuda":
            torch.cuda.synchronize(outputs.logits.device)
        self.outputs = outputs
        self.last_s = time.perf_counter() - began
        self.stats.target_s += self.last_s
        self.stats.num_target_forwards += 1

    # ------------------------------------------------------------------ ragged rows

    def start_ragged(self, width: int = 1) -> None:
        """Take the rows as they lie after the prefill, left-padded, all ending in one slot; then `keep_ragged` follows.

        Args:
            width: tokens of the prefill that gave logits: the last one of the prompt, and candidates behind it.
        """
        self.is_ragged = True
        # Positions tell how long the prompt is; its ids do not where it came as embeddings.
        positions, mask = self.kwargs["position_ids"], self.kwargs.get("attention_mask")
        self._pads = [0] * positions.shape[0] if mask is None else (mask.cumsum(-1) == 0).sum(-1).tolist()
        self._shift = [int(p) for p in (positions[:, -1] - (positions.shape[1] - 1)).tolist()]
        self._length = self.cache.get_seq_length() - width
        for name in ("attention_mask", "position_ids"):
            self.kwargs.pop(name, None)

    def verify_ragged(self, block: torch.Tensor) -> torch.Tensor:
        """Run a block of tokens for rows that end in one slot.

        Args:
            block: [num_rows, width]: each row's last token, then its candidates, then filling.

        Returns:
            Logits [num_rows, width, vocab_size], float32; behind a row's candidates they mean nothing.
        """
        began = time.perf_counter()
        width, end = block.shape[1], self._length + block.shape[1]
        slots = torch.arange(end, device=block.device)
        pads = torch.tensor(self._pads, device=block.device)[:, None]
        shift = torch.tensor(self._shift, device=block.device)[:, None]
        kwargs = dict(self.kwargs)
        positions = (slots[None, self._length :] + shift).clamp_(min=0)
        # Candidates fit the model's positions; what fills up a shorter row must not lie beyond them either.
        kwargs["position_ids"] = positions.minimum(positions[:, :1].clamp(min=self.max_positions - 1))
        kwargs["attention_mask"] = (slots[None] >= pads).long() if any(self._pads) else None
        inputs = self.model.prepare_inputs_for_generation(block, next_sequence_length=width, **kwargs)
        if "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = width
        outputs = self.model(**inputs, return_dict=True)
        logits = self._logits(outputs, width, block.device)
        self._finish_pass(outputs, began)
        return logits

    def keep_ragged(self, num_kept: Sequence[int], width: int) -> None:
        """Keep the first `num_kept[row]` of the last `width` tokens of each row."""
        most = max(num_kept)
        shifts = [most - kept for kept in num_kept]
        if any(shifts):
            self._shift_rows(shifts)
        crop(self.cache, width - most)
        self._length += most
        self._trim()

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only the given rows."""
        index = torch.tensor(list(rows), dtype=torch.long)
        for layer in self_attention_layers(self.cache):
            chosen = index.to(layer.keys.device)
            layer.keys, layer.values = layer.keys[chosen], layer.values[chosen]
            if isinstance(layer, BufferedLayer):
                layer.buffers = None
        self._pads = [self._pads[row] for row in rows]
        self._shift = [self._shift[row] for row in rows]

    def _shift_rows(self, shifts: Sequence[int]) -> None:
        layers = self_attention_layers(self.cache)
        for size in {layer.keys.shape[2] for layer in layers}:  # sliding layers hold fewer slots
            index = (torch.arange(size)[None] - torch.tensor(list(shifts))[:, None]).clamp_(min=0)
            take_slots([layer for layer in layers if layer.keys.shape[2] == size], index)
        self._pads = [pad + shift for pad, shift in zip(self._pads, shifts, strict=True)]
        self._shift = [old - shift for old, shift in zip(self._shift, shifts, strict=True)]

    def _trim(self) -> None:
        common = min(self._pads)
        layers = self_attention_layers(self.cache)
        if common == 0 or any(is_sliding(layer) for layer in layers):
            return
        for layer in layers:
            layer.keys, layer.values = layer.keys[:, :, common:], layer.values[:, :, common:]
        self._pads = [pad - common for pad in self._pads]
        self._shift = [old + common for old in self._shift]
        self._length -= common
