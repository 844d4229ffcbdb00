"""A target that drafts for itself with a small copy of its own weights: outputs are plain decoding's."""

import gc
import weakref
from typing import Any

import peft
import pytest
import torch

import uag
from tests.support.calls import GREEDY, SAMPLED, batch, compare
from tests.support.grids import covering
from tests.support.models import tiny_target
from uag.errors import PairError
from uag.kernels import Cache, Decoder, kernel

pytestmark = pytest.mark.skipif(not kernel.LEVEL, reason="the kernels were not compiled here")

NAMES = ("llama", "gemma2", "gpt2", "phi", "qwen3", "mistral")


def copying(tokenizer: Any, **options: Any) -> uag.Assistant:
    return uag.Assistant("copy", tokenizer=tokenizer, **{"num_candidate_tokens": 4} | options)


DOORS = ("generate", "custom_generate")


@covering("name, num_rows, options, form, door", NAMES, (1, 3), (GREEDY, SAMPLED), ("int8", "int4"), DOORS)
def test_outputs_are_plain_decodings(name: str, num_rows: int, options: Any, form: str, door: str) -> None:
    target, tokenizer = tiny_target(name)
    given = batch(tokenizer, num_rows) | options
    stats = compare(target, given, copying(tokenizer, draft_weights=form), door=door)
    assert stats.accepted_by_source.get("copy", 0) > 0
    assert stats.strategy == "own copy"
    assert stats.draft_passes == f"in one call, {form}"
    assert stats.fallbacks == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_no_bit_depends_on_the_copy(num_rows: int, dtype: torch.dtype) -> None:
    target, tokenizer = tiny_target("llama")
    target.to(dtype)
    given = batch(tokenizer, num_rows) | GREEDY | {"return_dict_in_generate": True, "output_logits": True}
    plain = uag.Assistant(None, None, tokenizer).generate(target, **given)
    assistant = copying(tokenizer)
    found = assistant.generate(target, **given)
    assert torch.equal(found.sequences, plain.sequences)
    assert all(map(torch.equal, found.logits, plain.logits))
    assert assistant.stats.num_accepted_tokens > 0


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_keys_of_another_cache_give_the_same_logits_as_own_ones(name: str) -> None:
    """Behind the keys of the model's own cache, in float32, and behind those of the pass's cache."""
    from uag.hf.cache import caches
    from uag.hf.decoder import describe

    target, _ = tiny_target(name)
    decoder = Decoder(describe(target), "model")
    ids = [5 + 7 * place % 90 for place in range(30)]
    alone = Cache(decoder, 1)
    expected = decoder.run(alone, [ids], 4)
    cache = caches.dynamic_cache()
    with torch.no_grad():
        target(torch.tensor([ids[:-4]]), past_key_values=cache, use_cache=True)
    behind = Cache(decoder, 2)
    behind.bases = [0, len(ids) - 4]
    assert behind.read(caches.self_attention_layers(cache), [-1, 0])
    found = decoder.run(behind, [[], ids[-4:]], 4)
    # Keys are float16 in the pass's own cache. One slot further, the difference would be above 0.1.
    assert (found - expected).square().mean().sqrt() < 5e-3 * expected.std()


def test_rows_of_a_prompt_other_sources_and_a_static_cache() -> None:
    target, tokenizer = tiny_target("llama")
    given = batch(tokenizer, 1) | SAMPLED | {"num_return_sequences": 3}
    assert compare(target, given, copying(tokenizer)).accepted_by_source["copy"] > 0
    both = copying(tokenizer, num_candidate_tokens=None)
    for _ in range(2):
        compare(target, batch(tokenizer, 3) | GREEDY, both)
    compare(target, batch(tokenizer, 1) | GREEDY | {"cache_implementation": "static"}, copying(tokenizer))


def test_targets_without_a_copy_are_refused_with_the_reason() -> None:
    target, tokenizer = tiny_target("falcon")
    with pytest.raises(PairError, match="cannot draft for itself: it has no self_attn"):
        copying(tokenizer).generate(target, **batch(tokenizer) | GREEDY)
    target, tokenizer = tiny_target("llama")
    adapted = peft.get_peft_model(target, peft.LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(PairError, match="cannot draft for itself"):
        copying(tokenizer).check(adapted)


def test_every_entry_point() -> None:
    target, tokenizer = tiny_target("llama")
    given = batch(tokenizer, 1) | GREEDY
    expected = target.generate(**given)
    assistant = uag.attach(target, "copy", tokenizer=tokenizer, num_candidate_tokens=4)
    assert torch.equal(target.generate(**given), expected)
    assert assistant.stats.accepted_by_source["copy"] > 0
    uag.detach(target)
    uag.install()
    try:
        assert torch.equal(target.generate(**given, assistant_model="copy", tokenizer=tokenizer), expected)
    finally:
        uag.uninstall()
    pair = uag.load_pair(draft="copy")
    assert (pair.draft, pair.draft_tokenizer) == ("copy", pair.target_tokenizer)


def test_the_copy_is_shared_and_freed_with_the_target() -> None:
    from uag.kernels import decoder_of

    target, tokenizer = tiny_target("llama")
    assistants = copying(tokenizer), copying(tokenizer)
    for assistant in assistants:
        assistant.generate(target, **batch(tokenizer) | GREEDY)
    found = weakref.ref(decoder_of(target, "int4"))
    del target
    gc.collect()
    assert found() is None


def test_changed_weights_are_copied_again() -> None:
    target, tokenizer = tiny_target("llama")
    assistant, given = copying(tokenizer, draft_weights="int8"), batch(tokenizer, 1) | GREEDY
    compare(target, given, assistant)
    with torch.no_grad():
        target.lm_head.weight.copy_(target.lm_head.weight.flip(0))
    stats = compare(target, given, assistant)
    assert stats.num_accepted_tokens > 0.5 * stats.num_candidate_tokens
