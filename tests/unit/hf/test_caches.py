"""Caches that cannot be rolled back are refused with the reason."""

from transformers import DynamicCache, LlamaConfig

from uag.hf.cache import caches


def test_an_offloaded_cache_is_refused_and_the_default_one_is_not() -> None:
    config = LlamaConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=2)
    offloaded = DynamicCache(config=config)
    offloaded.offloading = True
    assert "offloaded while its passes run" in caches.refusal(offloaded)
    assert caches.refusal(DynamicCache(config=config)) == ""
