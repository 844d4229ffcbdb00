"""Hybrid drafts in GGUF files: exact rollback, acceptance, and output equal to plain decoding."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import uag
from tests.support.calls import GREEDY, SAMPLED, batch, pair, seeded
from tests.support.gguf_files import write_lfm2, write_mamba
from tests.support.models import HYBRID_DRAFTS, tiny_model
from tests.support.tokenizers import small_tokenizer
from uag.drafting import open_passes
from uag.gguf import GgufDraft
from uag.projection import DraftRow, Feed, Node, link

pytestmark = pytest.mark.gguf
pytest.importorskip("gguf", reason="GGUF files are written with the gguf package")
pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (extra gguf)")


@pytest.fixture(scope="module", params=["lfm2", "mamba"])
def hybrid(request: pytest.FixtureRequest) -> Any:
    """Return a model with convolutions beside attention, or with recurrent states only."""
    model_type, options = HYBRID_DRAFTS[request.param]
    return tiny_model(model_type, len(small_tokenizer("byte_level_llama3")) + 3, **options)


@pytest.fixture(scope="module")
def path(hybrid: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    write = write_lfm2 if hybrid.config.model_type == "lfm2" else write_mamba
    return write(tmp_path_factory.mktemp("gguf") / "hybrid.gguf", hybrid, small_tokenizer("byte_level_llama3"))


@pytest.mark.parametrize("num_cells", [1024, 40])
def test_distributions_after_rollbacks_are_pytorchs(
    num_cells: int, hybrid: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of different lengths go back by random numbers of tokens; with 40 cells, the cache has to grow."""
    monkeypatch.setattr("uag.drafting.models.llama_cpp._FIRST_CELLS", num_cells)
    passes, rows, rng = open_passes(GgufDraft(path)), [DraftRow(), DraftRow()], random.Random(3)
    passes.start(rows)
    size = hybrid.config.vocab_size
    chains = [[rng.randrange(size) for _ in range(length)] for length in (1, 23)]
    requests = [(row, Feed(0, link([Node(None, i, b"", 0) for i in ids]))) for row, ids in enumerate(chains)]
    for _ in range(60):
        passes.feed(requests)
        for row, _ in requests:
            path_now = rows[row].path
            with torch.no_grad():
                logits = hybrid(torch.tensor([[node.draft_id for node in path_now]])).logits[0, -1]
            assert path_now[-1].probs is not None
            assert float((torch.from_numpy(path_now[-1].probs) - logits.softmax(-1)).abs().max()) < 2e-3
        requests = []
        for row in rng.choice([[0], [1], [0, 1]]):
            path_now = rows[row].path
            keep = max(1, len(path_now) - rng.choice([0, 0, 1, 2, 5, 12]))
            ids = [rng.randrange(size) for _ in range(rng.choice([1, 1, 1, 3, 12]))]
            requests.append((row, Feed(keep, link([Node(None, i, b"", 0) for i in ids], path_now[keep - 1]))))


def test_nearly_every_candidate_of_a_model_for_itself_is_accepted(hybrid: Any, path: Path) -> None:
    if hybrid.config.model_type == "mamba":
        pytest.skip("falls back to plain decoding as a target")
    tokenizer = small_tokenizer("byte_level_llama3")
    assistant = uag.Assistant(path, tokenizer, tokenizer, num_candidate_tokens=4, prompt_lookup=False)
    for options in (GREEDY, SAMPLED):
        expected = seeded(7, hybrid.generate, **batch(tokenizer), **options)
        assert torch.equal(seeded(7, assistant.generate, hybrid, **batch(tokenizer), **options), expected)
        assert assistant.stats.num_accepted_tokens >= 0.9 * assistant.stats.num_candidate_tokens > 0


@pytest.mark.parametrize("options", [GREEDY, SAMPLED])
def test_a_batch_equals_plain_decoding_in_two_calls(options: dict[str, Any], path: Path) -> None:
    target, tokenizer, _, _ = pair()
    assistant = uag.Assistant(path, small_tokenizer("byte_level_llama3"), tokenizer, num_candidate_tokens=4)
    for num_rows in (3, 1):
        inputs = batch(tokenizer, num_rows)
        expected = seeded(7, target.generate, **inputs, **options)
        state = torch.get_rng_state()
        assert torch.equal(seeded(7, assistant.generate, target, **inputs, **options), expected)
        assert torch.equal(torch.get_rng_state(), state)
        assert assistant.stats.num_candidate_tokens > 0
        assert not assistant.stats.fallbacks
