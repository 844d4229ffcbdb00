"""Targets whose weights a package quantizes as transformers loads them: those packages that are installed here."""

import importlib.util
from typing import Any

import pytest
import torch

import uag
from benchmarks.quantizations import load_quantized
from tests.support.calls import GREEDY, PROMPTS, SAMPLED, compare, left_padded
from tests.support.grids import covering
from uag.errors import PairError
from uag.loading import demo_folder, load_pair

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:uag. the target's")

_LOADED: dict[str, Any] = {}


def loaded(name: str) -> Any:
    package = name.partition("-")[0]
    module = {"quanto": "optimum.quanto"}.get(package, package)
    found = importlib.util.find_spec(module.partition(".")[0]) and importlib.util.find_spec(module)
    if not found:
        pytest.skip(f"{module} is not installed")
    if name not in _LOADED:
        _LOADED[name] = load_quantized(demo_folder("target"), name, "float32")
    return _LOADED[name]


def demo_draft() -> uag.Assistant:
    pair = load_pair()
    return uag.Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer, num_candidate_tokens=4)


WEIGHTS = ("torchao-int8", "torchao-int4", "torchao-tinygemm", "quanto-int8")


@covering("name, num_rows, options", WEIGHTS, (1, 3), (GREEDY, SAMPLED), strength=1)
def test_quantized_weights_are_drafted_for(name: str, num_rows: int, options: dict[str, Any]) -> None:
    stats = compare(loaded(name), left_padded(PROMPTS[:num_rows]) | options, demo_draft(), tolerance=1e-3)
    assert not stats.fallbacks
    assert stats.num_candidate_tokens > 0
    assert not stats.is_draft_independent


@covering("name, num_rows, options", ("torchao-dynamic", "bitsandbytes-int8"), (1, 3), (GREEDY, SAMPLED), strength=1)
def test_quantized_inputs_are_decoded_plainly(name: str, num_rows: int, options: dict[str, Any]) -> None:
    stats = compare(loaded(name), left_padded(PROMPTS[:num_rows]) | options, demo_draft())
    assert "quantize their input" in stats.fallbacks[0]
    assert stats.is_draft_independent


def test_bitsandbytes_4_bits() -> None:
    """On processors with bfloat16 products, its layers round float32 inputs to bfloat16."""
    target = loaded("bitsandbytes-nf4")
    stats = compare(target, left_padded(PROMPTS[:1]) | GREEDY, demo_draft())
    rounds = torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.cpu._is_avx512_bf16_supported()
    assert bool(stats.fallbacks) is rounds


@pytest.mark.parametrize("name", ["torchao-int8", "torchao-int4", "bitsandbytes-int8", "bitsandbytes-nf4", WEIGHTS[-1]])
def test_no_copy_is_made_of_them(name: str) -> None:
    target = loaded(name)
    with pytest.raises(PairError, match="cannot draft for itself"):
        uag.Assistant("copy", None, load_pair().target_tokenizer).generate(target, **left_padded(PROMPTS[:1]), **GREEDY)
