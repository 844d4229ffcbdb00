"""Kinds of models in GGUF files in llama.cpp: exact rollback, acceptance, and output equal to plain decoding."""

from pathlib import Path
from typing import Any

import pytest

import uag
from tests.support.calls import GREEDY, SAMPLED, batch, compare, pair
from tests.support.gguf_files import write_lfm2, write_llama, write_mamba
from tests.support.models import ARCHITECTURES, HYBRID_DRAFTS, tiny_model
from tests.support.rollbacks import check_rollbacks
from tests.support.tokenizers import small_tokenizer
from uag.drafting.models.open_draft import open_passes
from uag.gguf import GgufDraft

pytestmark = pytest.mark.gguf
pytest.importorskip("gguf", reason="GGUF files are written with the gguf package")
pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (extra gguf)")


@pytest.fixture(scope="module", params=["llama", "lfm2", "mamba"])
def model(request: pytest.FixtureRequest) -> Any:
    """Return a model with attention, with convolutions beside attention, or with recurrent states only."""
    model_type, options = (HYBRID_DRAFTS | {"llama": ARCHITECTURES["llama"][:2]})[request.param]
    return tiny_model(model_type, len(small_tokenizer("byte_level_llama3")) + 3, **options)


@pytest.fixture(scope="module")
def path(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    write = {"llama": write_llama, "lfm2": write_lfm2, "mamba": write_mamba}[model.config.model_type]
    return write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", model, small_tokenizer("byte_level_llama3"), "gpt-2")


@pytest.mark.parametrize("num_cells", [1024, 40])
def test_distributions_after_rollbacks_are_pytorchs(
    num_cells: int, model: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 40 cells, the cache has to grow."""
    monkeypatch.setattr("uag.drafting.models.llama_cpp._FIRST_CELLS", num_cells)
    passes = open_passes(GgufDraft(path), weights="model")
    check_rollbacks(passes, model, 60, 5e-3)  # llama.cpp keeps keys and values in half precision
    length = len(passes.rows[0].path)
    assert length - 16 <= passes._cut(0, length - 1) < length, "nearly the whole row would be read again"


def test_nearly_every_candidate_of_a_model_for_itself_is_accepted(model: Any, path: Path) -> None:
    if model.config.model_type == "mamba":
        pytest.skip("falls back to plain decoding as a target")
    tokenizer = small_tokenizer("byte_level_llama3")
    assistant = uag.Assistant(
        path, tokenizer, tokenizer, num_candidate_tokens=4, prompt_lookup=False, draft_weights="model"
    )
    for options in (GREEDY, SAMPLED):
        stats = compare(model, batch(tokenizer) | options, assistant)
        assert stats.num_accepted_tokens >= 0.9 * stats.num_candidate_tokens > 0


@pytest.mark.parametrize("options", [GREEDY, SAMPLED])
def test_a_batch_equals_plain_decoding_in_two_calls(options: dict[str, Any], path: Path) -> None:
    target, tokenizer, _, _ = pair()
    assistant = uag.Assistant(
        path, small_tokenizer("byte_level_llama3"), tokenizer, num_candidate_tokens=4, draft_weights="model"
    )
    for num_rows in (3, 1):
        stats = compare(target, batch(tokenizer, num_rows) | options, assistant)
        assert stats.num_candidate_tokens > 0
        assert not stats.fallbacks
