"""Targets whose forward depends on the length of a pass: ids equal plain `generate`'s for any candidates."""

import copy
from typing import Any

import pytest
import torch

import uag
from tests.support.calls import GREEDY, ROWS, compare, left_padded, num_drafted
from tests.support.grids import ROWS_AND_MODES, covering
from tests.support.models import tiny_model, tiny_of_class
from tests.support.walk import SharedDrafter
from uag.hf.cache.caches import CACHE
from uag.kernels import kernel

VOCAB, NEW = 300, 20
PROMPTS = [[5, 9, 14, 3, 27, 7, 7, 8], [8, 6, 11], [12, 40, 33, 18]]
AT = 16
"""The length at which these forwards change: after every prompt, and before the end of every output."""

DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": AT, "short_mscale": 1.1, "long_mscale": 1.4,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "original_max_position_embeddings": AT,
    "llama_4_scaling_beta": 0.5,
}  # fmt: skip
PHI = {"rope_parameters": LONG, "original_max_position_embeddings": AT}
LLAMA4 = {
    "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size_mlp": 48,
    "attention_chunk_size": 64, "no_rope_layers": [1, 0], "interleave_moe_layer_step": 1, "attn_scale": 0.5,
}  # fmt: skip
BY_LAYER = {"full_attention": DYNAMIC, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}

# name -> (model type, options, where blocks are wrong: beyond a length, for rows of a batch, or "" for nowhere)
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "dynamic": ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": AT}, "length"),
    "dynamic-one-kind-of-layer": (
        "gemma3_text",
        {"head_dim": 8, "sliding_window": 8, "rope_parameters": BY_LAYER, "max_position_embeddings": AT,
         "layer_types": ["sliding_attention", "full_attention"]},
        "length",
    ),
    "longrope": ("llama", {"rope_parameters": LONG}, "length"),
    "phi3": ("phi3", PHI | {"pad_token_id": 0}, "length"),
    "phi3-window": ("phi3", PHI | {"sliding_window": 10}, "length"),
    "phimoe": ("phimoe", PHI | {"num_local_experts": 4}, "length"),
    "llama4-temperature": ("llama4_text", LLAMA4 | {"floor_scale": 4}, "rows"),
    "llama4-chunks": ("llama4_text", LLAMA4 | {"attention_chunk_size": 6, "attn_temperature_tuning": False}, ""),
    "ministral3-temperature": ("ministral3", {"head_dim": 8, "rope_parameters": YARN}, ""),
}  # fmt: skip
RIGHT = {"mostly right": 5, "mostly wrong": 1.4}


def target(name: str) -> Any:
    model_type, options, _ = CASES[name]
    return tiny_model(model_type, VOCAB, **options)


def check(model: Any, given: dict[str, Any], spoil: float = 5, **decoding: Any) -> uag.Stats:
    """Compare with plain decoding of a copy, because dynamic factors depend on earlier calls of a model."""
    return compare(model, GREEDY | {"max_new_tokens": NEW} | decoding | given, spoil=spoil, plain=copy.deepcopy(model))


@covering("name, num_rows, do_sample, share", CASES, (1, 3), (False, True), RIGHT, strength=1)
def test_ids_equal_plain_decoding(name: str, num_rows: int, do_sample: bool, share: str) -> None:
    stats = check(target(name), left_padded(PROMPTS[:num_rows]), RIGHT[share], do_sample=do_sample)
    assert 0 < stats.num_accepted_tokens < stats.num_candidate_tokens
    kind, reasons = CASES[name][2], "; ".join(stats.fallbacks)
    assert ("the rest of this call falls back to plain decoding" in reasons) == (kind == "length")
    assert ("rows advance in lockstep" in reasons) == (num_rows == 3 and bool(kind))
    are_late = [num_drafted(row[AT - 8 :]) > 0 for row in stats.sources]
    if kind == "length":
        assert not any(are_late)
    elif share == "mostly right":
        assert all(are_late)
        assert stats.num_target_forwards < NEW


@covering(
    "name, length, num_pads", ["dynamic", "longrope", "phi3", "phi3-window"], (AT - 2, AT - 1, AT, AT + 1), (0, 3)
)
def test_prompts_of_every_length_around_the_change(name: str, length: int, num_pads: int) -> None:
    ids = torch.randint(5, VOCAB, (1, length), generator=torch.Generator().manual_seed(length))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    padded = {name: torch.cat([torch.zeros((1, num_pads), dtype=torch.long), part], 1) for name, part in inputs.items()}
    stats = check(target(name), padded | {"max_new_tokens": 14})
    if name == "dynamic" and length + num_pads >= AT - 2:
        assert stats.num_candidate_tokens == 0
        assert stats.strategy == "plain"
        assert stats.fallbacks == [
            f"the target recomputes its rotary factors for each length beyond {AT - 1}, so this call falls back "
            "to plain decoding"
        ]
    if name == "longrope":
        assert (stats.num_candidate_tokens > 0) == (length + num_pads < AT - 1)


@ROWS
@pytest.mark.parametrize("name", ["phi3", "phi3-window", "phimoe"])
def test_a_static_cache_that_the_model_replaces(name: str, num_rows: int) -> None:
    stats = check(target(name), left_padded(PROMPTS[:num_rows]) | {"cache_implementation": "static"})
    assert stats.num_accepted_tokens > 0


@pytest.mark.parametrize("name", ["dynamic", "longrope", "phi3"])
def test_what_a_longer_call_has_left_in_the_model(name: str) -> None:
    """Dynamic factors are kept between calls, so plain decoding writes something else after a longer call."""
    model = target(name)
    for length in (6, AT - 1, AT, AT + 1):
        model.generate(torch.arange(5, 45)[None], max_new_tokens=4, do_sample=False, pad_token_id=0)
        check(model, {"input_ids": torch.arange(9, 9 + length)[None], "max_new_tokens": 14})


@pytest.mark.parametrize("name", ["dynamic", "longrope", "phi3"])
def test_a_prompt_of_embeddings_and_a_cache_that_goes_on(name: str) -> None:
    """The second turn starts before the change, and ends after it."""
    model, ids, returned = target(name), torch.tensor([PROMPTS[0]]), {"return_dict_in_generate": True}
    embeddings = model.get_input_embeddings()(ids).detach()
    stats = check(model, {"inputs_embeds": embeddings, "attention_mask": torch.ones_like(ids)})
    assert stats.num_accepted_tokens > 0
    model = target(name)
    first = model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0, **returned)
    ids = torch.cat([first.sequences, torch.tensor([[31, 32]])], 1)
    given = {"input_ids": ids, CACHE: first[CACHE], "max_new_tokens": 16} | returned
    assert check(model, given, spoil=0).num_accepted_tokens > 0


@ROWS
def test_a_target_that_hears_as_it_writes(num_rows: int) -> None:
    """Voxtral Realtime's encoder runs at every token, and keeps its own cache of the audio."""
    model = tiny_of_class("VoxtralRealtimeForConditionalGeneration")
    ids = torch.randint(5, VOCAB, (num_rows, 8))
    features = torch.randn(num_rows, 8, 8 * (8 + NEW))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "input_features": features}
    stats = check(model, given, spoil=1.4)
    assert stats.num_candidate_tokens == 0
    assert stats.fallbacks == [
        "the target encodes audio at every step, and its encoder cannot be rolled back after a rejected candidate, so "
        "this call falls back to plain decoding"
    ]


@pytest.mark.parametrize("is_static", [False, True])
@ROWS_AND_MODES
def test_a_target_whose_mask_counts_cache_slots(is_static: bool, num_rows: int, options: dict[str, Any]) -> None:
    model = tiny_model("gpt_neo", VOCAB, max_position_embeddings=48)
    given = left_padded([[5, 9], [8], [12, 40]][:num_rows]) | options | {"max_new_tokens": 44}
    if is_static:
        given["cache_implementation"] = "static"
    stats = compare(model, given)
    assert (stats.num_accepted_tokens > 0) == (not is_static)
    reason = "masks a static cache's empty slots" if is_static else "masks the first 48 slots of its cache only"
    assert any(reason in fallback for fallback in stats.fallbacks) == (is_static or num_rows > 1)


@pytest.mark.parametrize("length", [20, 32])
def test_end_of_the_positions_is_named(length: int) -> None:
    """A text may exceed the positions of a model with rotary embeddings, without candidates."""
    model, ids = tiny_model("llama", VOCAB, max_position_embeddings=32), torch.tensor([(PROMPTS[0] * 4)[:length]])
    known = model.generate(ids, max_new_tokens=20, do_sample=False)
    drafter = SharedDrafter(known[:, length:].tolist(), VOCAB, 1.0)
    assistant = uag.Assistant(None, None, drafter=drafter, draft_independent=bool(kernel.LEVEL))
    assert torch.equal(assistant.generate(model, ids, max_new_tokens=20, do_sample=False), known)
    assert (assistant.stats.num_accepted_tokens > 0) == (length == 20)
    assert "the target has only 32 positions" in assistant.stats.fallbacks[0]
    output = assistant.generate(model, ids[:, :16], max_new_tokens=16, do_sample=False)
    assert output.shape[1] == 32
    assert assistant.stats.fallbacks == []
