"""Static caches are rolled back to what a cache holds that saw only the tokens that are kept."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, MistralConfig, StaticCache

from uag.hf.cache import static

SMALL: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1}


def cache_of(window: int | None = None) -> Any:
    config = LlamaConfig(**SMALL) if window is None else MistralConfig(**SMALL, sliding_window=window)
    return StaticCache(config=config, max_cache_len=20)


def append(cache: Any, first: int, num: int) -> None:
    """Run a pass whose keys are the positions of its tokens; values are negative."""
    keys = torch.arange(float(first), first + num).expand(1, 2, 8, -1).transpose(2, 3).contiguous()
    cache.update(keys, -keys, 0)


def keys_of(cache: Any) -> list[float]:
    layer = cache.layers[0]
    assert torch.equal(layer.values, -layer.keys)
    length = getattr(layer, "cumulative_length_int", int(layer.cumulative_length))
    return [float(x) for x in layer.keys[0, 0, :length, 0]]


@pytest.mark.parametrize("num_dropped", [0, 1, 3, 5])
@pytest.mark.parametrize("length", [2, 4, 6, 8, 11])
@pytest.mark.parametrize("window", [None, 8])
def test_cropped_pass_leaves_what_the_kept_tokens_alone_would(window: Any, length: int, num_dropped: int) -> None:
    cropped, expected = cache_of(window), cache_of(window)
    for cache in (cropped, expected):
        append(cache, 0, length)
    windows = static.copy_windows(cropped, 5)
    append(cropped, length, 5)
    static.crop(cropped, num_dropped, windows, 5)
    for place in range(length, length + 5 - num_dropped):  # one by one, as plain decoding does
        append(expected, place, 1)
    for cache in (cropped, expected):
        append(cache, 50, 1)
    assert keys_of(cropped) == keys_of(expected)
