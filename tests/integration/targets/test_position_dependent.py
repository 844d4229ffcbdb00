"""Targets whose forward depends on the length of a pass: ids equal plain `generate`'s for any candidates."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest
import torch
import transformers

import uag
from tests.support.calls import OracleDrafter, left_padded, num_drafted, seeded
from tests.support.models import tiny_model
from uag.hf import positions

VOCAB, NEW = 300, 26
PROMPTS = ([5, 9, 14, 3, 27, 7, 7, 8], [8, 6, 11], [12, 40, 33, 18])
AT = 16
"""The length at which these forwards change: after every prompt, and before the end of every output."""

COMMON: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
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


@cache
def target(name: str) -> Any:
    model_type, options, _ = CASES[name]
    return tiny_model(model_type, VOCAB, **COMMON | options)


def settle(model: Any) -> None:
    """Reset dynamic factors, because after a longer prompt, plain calls differ from one another."""
    if "dynamic" in str(model.config.to_dict().get("rope_parameters")):
        model.generate(torch.tensor([[5, 6]]), max_new_tokens=1, pad_token_id=0)


def compare(model: Any, given: dict[str, Any], spoil: float, seed: int | None = None) -> uag.Stats:
    """Compare ids and the generator's state with plain decoding's, and return the assisted call's statistics."""
    given = {"max_new_tokens": NEW, "pad_token_id": 0} | given | {"do_sample": seed is not None}
    settle(model)
    expected = seeded(seed or 0, model.generate, **given)
    state = torch.get_rng_state()
    size = model.get_output_embeddings().weight.shape[0]
    prompt_length = given["input_ids"].shape[1] if "input_ids" in given else 0
    drafter = OracleDrafter(expected[:, prompt_length:].tolist(), size, spoil)
    assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=4)
    settle(model)
    found = seeded(seed or 0, assistant.generate, model, **given)
    assert found.tolist() == expected.tolist()
    assert torch.equal(torch.get_rng_state(), state)
    return assistant.stats


@pytest.mark.parametrize("share", RIGHT)
@pytest.mark.parametrize("seed", [None, 4], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_ids_equal_plain_decoding(name: str, num_rows: int, seed: int | None, share: str) -> None:
    stats = compare(target(name), left_padded(list(PROMPTS[:num_rows])), RIGHT[share], seed)
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


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][2]])
def test_no_switch_is_found_where_the_forward_never_changes(name: str) -> None:
    model_type, options, _ = CASES[name]
    plain = {key: value for key, value in options.items() if key != "rope_parameters"}
    if model_type.startswith("phi"):
        del plain["original_max_position_embeddings"]
    model = tiny_model(model_type, VOCAB, **COMMON | plain | {"attn_temperature_tuning": False})
    assert [cut for cut in positions.cuts(model) if cut.at < 2048] == []
    assert not positions.scales_by_slot(model.modules())


@pytest.mark.parametrize("num_pads", [0, 3])
@pytest.mark.parametrize("length", range(AT - 5, AT + 6))
@pytest.mark.parametrize("name", ["dynamic", "longrope", "phi3", "phi3-window"])
def test_prompts_of_every_length_around_the_change(name: str, length: int, num_pads: int) -> None:
    ids = torch.randint(5, VOCAB, (1, length), generator=torch.Generator().manual_seed(length))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    padded = {name: torch.cat([torch.zeros((1, num_pads), dtype=torch.long), part], 1) for name, part in inputs.items()}
    stats = compare(target(name), {**padded, "max_new_tokens": 14}, 5)
    if name == "dynamic" and length + num_pads >= AT - 2:
        assert stats.num_candidate_tokens == 0
        assert stats.strategy == "plain"
        assert stats.fallbacks == [
            f"the target recomputes its rotary factors for each length beyond {AT - 1}, so this call falls back "
            "to plain decoding"
        ]
    if name == "longrope":
        assert (stats.num_candidate_tokens > 0) == (length + num_pads < AT - 1)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("name", ["phi3", "phi3-window", "phimoe"])
def test_a_static_cache_that_the_model_replaces(name: str, num_rows: int) -> None:
    stats = compare(target(name), left_padded(list(PROMPTS[:num_rows])) | {"cache_implementation": "static"}, 5)
    assert stats.num_accepted_tokens > 0


@pytest.mark.parametrize("name", ["dynamic", "longrope", "phi3"])
def test_what_a_longer_call_has_left_in_the_model(name: str) -> None:
    """Dynamic factors are kept between calls, so plain decoding writes something else after a longer call."""
    model = tiny_model(CASES[name][0], VOCAB, **COMMON | CASES[name][1])
    long_ids = torch.arange(5, 45)[None]

    def after_a_longer_call(generate: Any, ids: torch.Tensor) -> list[int]:
        model.generate(long_ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
        written: list[int] = generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)[0].tolist()
        return written

    for length in (6, AT - 2, AT - 1, AT, AT + 1):
        ids = torch.arange(9, 9 + length)[None]
        expected = after_a_longer_call(model.generate, ids)
        drafter = OracleDrafter([expected[length:]], VOCAB)
        assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=4)
        assert after_a_longer_call(partial(assistant.generate, model), ids) == expected


@pytest.mark.parametrize("name", ["dynamic", "longrope", "phi3"])
def test_a_prompt_of_embeddings(name: str) -> None:
    model = target(name)
    ids = torch.tensor([PROMPTS[0]])
    embeddings = model.get_input_embeddings()(ids).detach()
    stats = compare(model, {"inputs_embeds": embeddings, "attention_mask": torch.ones_like(ids)}, 5)
    assert stats.num_accepted_tokens > 0


@pytest.mark.parametrize("name", ["dynamic", "longrope", "phi3"])
def test_a_cache_that_goes_on(name: str) -> None:
    """The second turn starts before the change, and ends after it."""
    model = target(name)

    def two_turns(generate: Any) -> list[list[int]]:
        given: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "return_dict_in_generate": True}
        first = model.generate(torch.tensor([PROMPTS[0]]), max_new_tokens=3, **given)
        ids = torch.cat([first.sequences, torch.tensor([[31, 32]])], 1)
        second = generate(ids, past_key_values=first.past_key_values, max_new_tokens=16, **given)
        return [second.sequences[0].tolist(), [second.past_key_values.get_seq_length()]]

    expected = two_turns(model.generate)
    drafter = OracleDrafter([expected[0][-16:]], VOCAB, spoil=0)
    assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=4)
    assert two_turns(lambda ids, **given: assistant.generate(model, ids, **given)) == expected
    assert assistant.stats.num_accepted_tokens > 0


# ------------------------------------------------------------------ inputs with one entry per token of a block


@pytest.mark.parametrize("num_rows", [1, 3])
def test_token_types_go_on_with_the_last_one(num_rows: int) -> None:
    """OpenAI GPT adds an embedding by type to each token; transformers repeats the last few types after a block."""
    model = tiny_model("openai-gpt", VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    ids = torch.tensor([PROMPTS[0]] * num_rows)
    types = torch.randint(0, 16, ids.shape, generator=torch.Generator().manual_seed(0))
    for spoil in RIGHT.values():
        stats = compare(model, {"input_ids": ids, "token_type_ids": types}, spoil)
        assert stats.num_accepted_tokens > 0


@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_target_that_hears_as_it_writes(num_rows: int) -> None:
    """Voxtral Realtime's encoder runs at every token, and keeps its own cache of the audio."""
    text = COMMON | {"vocab_size": VOCAB, "head_dim": 8, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    audio = COMMON | {"head_dim": 8, "num_mel_bins": 8, "num_key_value_heads": 4, "vocab_size": VOCAB}
    config = transformers.VoxtralRealtimeConfig(text_config=text, audio_config=audio, hidden_size=32)
    torch.manual_seed(0)
    model = transformers.VoxtralRealtimeForConditionalGeneration(config).eval()
    ids = torch.randint(5, VOCAB, (num_rows, 8))
    features = torch.randn(num_rows, 8, 8 * (8 + NEW))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "input_features": features}
    stats = compare(model, given, 1.4)
    assert stats.num_candidate_tokens == 0
    assert stats.fallbacks == [
        "the target encodes audio at every step, and its encoder cannot be rolled back after a rejected candidate, so "
        "this call falls back to plain decoding"
    ]
