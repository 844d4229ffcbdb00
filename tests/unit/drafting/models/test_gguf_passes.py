"""llama.cpp's passes yield PyTorch's distributions for the same weights, after any sequence of feeds and rollbacks."""

import gc
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.gguf_files import write_llama
from tests.support.models import tiny_model
from tests.support.tokenizers import small_tokenizer
from uag.drafting import Passes, TorchPasses
from uag.drafting.models.base import PassError
from uag.drafting.models.llama_cpp import LlamaPasses
from uag.gguf import GgufDraft
from uag.projection import DraftRow, Feed, Node, link

pytestmark = pytest.mark.gguf
pytest.importorskip("gguf", reason="GGUF files are written with the gguf package")
pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (extra gguf)")

_TOLERANCE = 1e-3
"""llama.cpp keeps keys and values in half precision."""


@cache
def model() -> Any:
    small = {"hidden_size": 64, "intermediate_size": 96, "num_key_value_heads": 4}
    return tiny_model("llama", len(small_tokenizer("llama")) + 5, max_position_embeddings=2048, **small)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf", model(), small_tokenizer("llama"))


def llama_passes(draft: GgufDraft, num_ids: int | None = None) -> LlamaPasses:
    return LlamaPasses(draft, num_ids, "is tested")


def chain(ids: Sequence[int], parent: Node | None = None) -> list[Node]:
    return link([Node(None, i, b"", 0) for i in ids], parent)


def ids_of(num: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 300, num).tolist()  # type: ignore[no-any-return]


def started(passes: Passes, num_rows: int = 1) -> list[DraftRow]:
    rows = [DraftRow() for _ in range(num_rows)]
    passes.start(rows)
    return rows


def path_ids(node: Node | None) -> list[int]:
    ids: list[int] = []
    while node is not None:
        ids.append(node.draft_id)
        node = node.parent
    return ids[::-1]


def check(nodes: Sequence[Node]) -> None:
    """Compare distributions with PyTorch's."""
    for node in nodes:
        assert node.probs is not None
        with torch.no_grad():
            due = torch.softmax(model()(torch.tensor([path_ids(node)])).logits[0, -1], dim=-1).numpy()
        assert due.max() > 0.02, "a distribution that says nothing"
        assert np.abs(node.probs - due[: node.probs.size]).max() < _TOLERANCE
        assert node.probs.dtype == np.float32


def test_distributions_equal_those_of_the_same_weights(path: Path) -> None:
    passes, theirs = llama_passes(GgufDraft(path, threads=1)), TorchPasses(model())
    assert (passes.vocab_size, passes.max_positions) == (theirs.vocab_size, theirs.max_positions)
    assert 0 < passes.counts.num_bytes <= theirs.counts.num_bytes
    for each in (passes, theirs):
        each.needs_normalizer = True
    (row,), (other,) = started(passes), started(theirs)
    for one, it in ((passes, row), (theirs, other)):
        one.feed([(0, Feed(0, chain(ids_of(20, 1))))])
        one.feed([(0, Feed(20, chain([7], it.path[-1])))])
        one.feed([(0, Feed(15, chain([9, 11, 13], it.path[14])))])  # rolled back
    check(row.path[15:])
    assert [node.draft_id for node in row.path] == [node.draft_id for node in other.path]
    assert row.path[-1].log_normalizer == pytest.approx(other.path[-1].log_normalizer, abs=1e-2)
    mine, its = passes.counts, theirs.counts
    assert (mine.num_forwards, mine.num_tokens) == (its.num_forwards, its.num_tokens) == (3, 4)
    assert 0 < mine.prefill_s < mine.forward_s


def test_only_the_last_distributions_of_a_long_pass_are_kept(path: Path) -> None:
    passes = llama_passes(GgufDraft(path))
    (row,) = started(passes)
    passes.feed([(0, Feed(0, chain(ids_of(700, 2))))])  # two of llama.cpp's batches
    assert [node.probs is not None for node in row.path] == [False] * 692 + [True] * 8
    check(row.path[-1:])


def test_rows_are_apart(path: Path) -> None:
    passes = llama_passes(GgufDraft(path))
    rows = started(passes, 3)
    common = ids_of(30, 3)
    lines = [[*common, 5, 6], [*common, 5, 6], common + ids_of(9, 4)]
    passes.feed([(i, Feed(0, chain(line))) for i, line in enumerate(lines)])
    assert [path_ids(row.path[-1]) for row in rows] == lines
    check([row.path[-1] for row in rows])
    passes.feed([(1, Feed(20, chain([8], rows[1].path[19])))])
    passes.feed([(0, Feed(32, chain([8], rows[0].path[31]))), (2, Feed(39, chain([4, 4], rows[2].path[38])))])
    check([row.path[-1] for row in rows])


def test_ids_that_the_head_lacks_and_ids_that_it_has_beyond(path: Path) -> None:
    size = model().config.vocab_size
    for num_ids in (size - 5, size + 3):
        passes = llama_passes(GgufDraft(path), num_ids)
        (row,) = started(passes)
        passes.feed([(0, Feed(0, chain([4, size + 1])))])
        probs = row.path[-1].probs
        assert probs is not None
        assert probs.shape == (num_ids,)
        assert probs.sum() == pytest.approx(1, abs=1e-5)


def test_weights_are_one_for_all_and_go_with_the_last(path: Path) -> None:
    first, second = llama_passes(GgufDraft(path)), llama_passes(GgufDraft(path, context=64))
    assert first._model is second._model
    assert second.max_positions == 64
    (row,) = started(first)
    first.feed([(0, Feed(0, chain([1, 2])))])
    assert row.path
    kept = weakref.ref(first._model)
    del first, second
    gc.collect()
    assert kept() is None


def test_what_llama_cpp_says_is_in_the_message_and_nowhere_else(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    passes = llama_passes(GgufDraft(path))
    started(passes)
    broken = chain([1, 2])
    broken[1].depth = 9  # a hole in the positions
    with pytest.raises(PassError, match=r"status -1 \(.*position"):
        passes.feed([(0, Feed(0, broken))])
    assert capfd.readouterr() == ("", "")


def test_more_rows_than_llama_cpp_takes_are_told(path: Path) -> None:
    passes = llama_passes(GgufDraft(path))
    started(passes, 257)
    with pytest.raises(PassError, match="256 rows at most, and there are 257"):
        passes.feed([(0, Feed(0, chain([1])))])
