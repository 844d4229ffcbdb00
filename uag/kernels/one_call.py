"""A target's pass in one call of the kernels (`uag.kernels.decoder`), over the model's own weights and cache.

The pass reads the keys and values of earlier tokens where they lie in transformers' cache, and appends its own to it.
Between the products, numbers are float32. So in half precision, it rounds less than the model's own forward.
"""

from typing import Any

import torch
from torch.nn import functional
from transformers import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from uag.hf.cache.caches import CACHE_NAMES, WITH_KEYS, cache_in
from uag.kernels import operations
from uag.kernels.decoder import Decoder
from uag.kernels.decoder_cache import Cache

_INPUTS = {
    "input_ids", "position_ids", "attention_mask", "cache_position", "use_cache", "logits_to_keep", "return_dict",
    *CACHE_NAMES,
}  # fmt: skip
"""What a pass reads, or needs not read."""


def run(decoder: Decoder, inputs: dict[str, Any], width: int) -> CausalLMOutputWithPast | None:
    """Run a pass with a forward's arguments; return logits [num_rows, width, vocab_size], float32, or None.

    None if it needs the model's own forward: other arguments, a cache of another kind, or unusual positions. The cache
    is then unchanged.
    """
    ids: Any = inputs.get("input_ids")
    cache = cache_in(inputs)
    found = _own_cache(decoder, inputs, ids, cache)
    if found is None:
        operations.pass_on("a whole pass")
        return None
    own, counts = found
    rows = [line[:count] for line, count in zip(ids.tolist(), counts, strict=True)]
    by_row = torch.split(decoder.run(own, rows, max(counts)), counts)
    logits = by_row[0][None]
    if len(rows) > 1:
        logits = logits.new_zeros(*ids.shape, logits.shape[-1])
        for line, of_row in zip(logits, by_row, strict=True):
            line[: len(of_row)] = of_row
    missing = ids.shape[1] - max(counts)
    for index, (keys, values) in enumerate(functional.pad(own.tensor, (0, 0, 0, missing)) if missing else own.tensor):
        cache.update(keys, values, index)
    return CausalLMOutputWithPast(logits=logits[:, -width:], past_key_values=cache)


def _own_cache(decoder: Decoder, inputs: dict[str, Any], ids: Any, cache: Any) -> tuple[Cache, list[int]] | None:
    """Return a cache for a pass's own tokens, and how many each row has; None for unusual inputs."""
    if not all(name in _INPUTS or value is None for name, value in inputs.items()) or not operations.is_plain(ids):
        return None
    if type(cache) is not DynamicCache or any(type(layer) not in WITH_KEYS for layer in cache.layers):
        return None
    num_rows, width = ids.shape
    num_past = int(cache.get_seq_length())
    lengths = _lengths(inputs.get("attention_mask"), num_rows, num_past + width)
    if lengths is None or not num_past or not 0 <= int(ids.min()) <= int(ids.max()) < decoder.num_ids:
        return None
    starts = [length - width for length in lengths]
    counts = _counts(inputs.get("position_ids"), starts, width)
    if counts is None or min(starts) < 0:
        return None
    own = Cache(decoder, num_rows, num_slots=max(counts), dtype=cache.layers[0].keys.dtype)
    own.bases = starts
    return (own, counts) if own.read(cache.layers, range(num_rows)) else None


def _lengths(mask: torch.Tensor | None, num_rows: int, num_slots: int) -> list[int] | None:
    """Return how many tokens each row has at the end of its slots; None if others are masked than those before."""
    if mask is None:
        return [num_slots] * num_rows
    if mask.shape != (num_rows, num_slots) or mask.is_floating_point():
        return None
    lengths: list[int] = mask.bool().sum(-1).tolist()
    is_at_end = all(bool(row[num_slots - length :].all()) for row, length in zip(mask, lengths, strict=True))
    return lengths if is_at_end else None


def _counts(positions: torch.Tensor | None, starts: list[int], width: int) -> list[int] | None:
    """Return how many tokens of each row have the positions of their slots; those behind them fill up the row."""
    if positions is None:
        return [width] * len(starts) if len(set(starts)) == 1 else None
    if positions.dim() != 2 or positions.shape[1] != width:
        return None
    counts = []
    for start, line in zip(starts, positions.expand(len(starts), -1).tolist(), strict=True):
        usual = range(start, start + width)
        counts.append(next((i for i, (one, other) in enumerate(zip(line, usual, strict=True)) if one != other), width))
        if not counts[-1] or any(position > line[counts[-1] - 1] for position in line[counts[-1] :]):
            return None
    return counts
