"""Models of GGUF files without llama.cpp: the written model's logits, and refusals of what has no meaning here."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.gguf_files import finish, write_family, write_lfm2, writer
from tests.support.models import HYBRID_DRAFTS, tiny_model
from tests.support.tokenizers import small_tokenizer
from uag.gguf.model import UnknownFileError, family_of, load_model
from uag.gguf.reader import Contents

gguf = pytest.importorskip("gguf", reason="GGUF files are written with the gguf package")

TOKENIZER = "byte_level_llama3"
WINDOW = {"sliding_window": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": {"rope_type": "default", "rope_theta": 50_000.0}},
    "smollm3": {"num_hidden_layers": 4, "layer_types": None, "no_rope_layers": None},
    "granite": {
        "attention_multiplier": 0.3, "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 2.0,
    },
    "qwen2": {},
    "qwen3": {"head_dim": 24},
    "olmo2": {},
    "phi3": WINDOW,
    "starcoder2": {"sliding_window": None},
    "gpt2": {},
    "gemma": {"head_dim": 24},
    "gemma2": WINDOW | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 9.0, "query_pre_attn_scalar": 16},
    "gemma3": WINDOW | {"num_hidden_layers": 6, "layer_types": None, "query_pre_attn_scalar": 16},
}  # fmt: skip


def model_of(architecture: str, **options: Any) -> Any:
    kind = "gemma3_text" if architecture == "gemma3" else architecture
    if architecture.startswith("gemma") and architecture != "gemma":
        options = {"head_dim": 16} | options
    model = tiny_model(kind, len(small_tokenizer(TOKENIZER)) + 3, **FAMILIES[architecture] | options)
    if architecture in ("qwen2", "gemma", "gemma2"):  # a tied head; for Gemma, files have no other
        model.lm_head.weight = model.model.embed_tokens.weight
    return model


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_file_has_the_logits_of_the_model_that_was_written(architecture: str, tmp_path: Path) -> None:
    model = model_of(architecture)
    path = write_family(tmp_path / "m.gguf", architecture, model, small_tokenizer(TOKENIZER))
    ids = torch.randint(0, 300, (1, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        due, found = (each(ids).logits for each in (model, load_model(Contents(path))))
    assert due.std() > 0.1, "logits that say nothing"
    assert (found - due).abs().max() < 1e-4 * due.abs().max()


def test_factors_of_rotary_positions_are_those_of_llama_3(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 16}  # fmt: skip
    model = model_of("llama", rope_parameters=rope)
    size = model.config.hidden_size // model.config.num_attention_heads
    plain = 1 / 500_000.0 ** (np.arange(0, size, 2, dtype=np.float32) / size)
    factors = {"rope_freqs.weight": plain / model.model.rotary_emb.inv_freq.numpy()}
    assert max(factors["rope_freqs.weight"]) == pytest.approx(8)
    path = write_family(tmp_path / "m.gguf", "llama", model, small_tokenizer(TOKENIZER), **factors)
    ids = torch.arange(3, 63)[None]
    with torch.no_grad():
        due, found = (each(ids).logits for each in (model, load_model(Contents(path))))
    assert (found - due).abs().max() < 1e-4 * due.abs().max()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"rope_scaling_type": gguf.RopeScalingType.YARN}, "setting llama.rope.scaling.type"),
        ({"rope_scaling_factor": 2.0}, "setting llama.rope.scaling.factor"),
        ({"sliding_window": 9}, "setting llama.attention.sliding_window"),
        ({"head_count_kv": [2, 2]}, "setting llama.attention.head_count_kv"),
        ({"expert_count": 4}, "setting llama.expert_count"),
        ({"rope_dimension_count": 4, "key_length": 16}, "setting llama.rope.dimension_count"),
        ({"blk.0.ffn_gate_inp.weight": np.ones((4, 4), dtype=np.float32)}, "weights 'blk.0.ffn_gate_inp.weight'"),
    ],
)
def test_what_has_no_meaning_is_refused(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_family(tmp_path / "m.gguf", "llama", model_of("llama"), small_tokenizer(TOKENIZER), **more)
    with pytest.raises(UnknownFileError, match=message):
        load_model(Contents(path))


def test_other_families_and_broken_files_are_refused(tmp_path: Path) -> None:
    kind, options = HYBRID_DRAFTS["lfm2"]
    model = tiny_model(kind, len(small_tokenizer(TOKENIZER)) + 3, **options)
    with pytest.raises(UnknownFileError, match="architecture 'lfm2'"):
        family_of(Contents(write_lfm2(tmp_path / "l.gguf", model, small_tokenizer(TOKENIZER), "gpt-2")))
    data = write_family(tmp_path / "m.gguf", "qwen2", model_of("qwen2"), small_tokenizer(TOKENIZER)).read_bytes()
    broken = tmp_path / "b.gguf"
    for part, message in (
        (b"", "damaged"), (b"GGUF", "damaged"), (b"GGML" + data[4:], "no GGUF file"), (data[:3000], "damaged"),
        (data[:16] + struct.pack("<Q", 1 << 60) + data[24:], "damaged"), (data[:-5000], "reshape"),
    ):  # fmt: skip
        broken.write_bytes(part)
        with pytest.raises(ValueError, match=message):
            load_model(Contents(broken))


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_0", "Q4_1", "F16", "BF16"])
def test_weights_are_dequantized(kind: str, tmp_path: Path) -> None:
    quantization, path = gguf.GGMLQuantizationType[kind], tmp_path / "m.gguf"
    weight = np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32)
    file = writer(path)
    data = gguf.quantize(weight, quantization)
    file.add_tensor("first.weight", np.ones(5, dtype=np.float32))
    file.add_tensor("a.weight", data, raw_dtype=quantization)
    finish(file)
    found = Contents(path).tensor("a.weight")
    assert torch.equal(found, torch.from_numpy(gguf.dequantize(data, quantization)))
    assert 0 < (found - torch.from_numpy(weight)).abs().max() < 0.2
