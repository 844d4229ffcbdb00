"""A book finds each row's tokens in its cache after any appends and cuts, and when rows come and go."""

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig

from uag.hf.cache import static
from uag.hf.cache.book import Book
from uag.hf.cache.caches import dynamic_cache

ROWS, PADDING = 3, -1.0
CONFIG = LlamaConfig(hidden_size=8, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=1)


class Model:
    config = CONFIG


STEP = st.one_of(
    st.tuples(st.just("append"), st.lists(st.integers(0, 7), min_size=ROWS, max_size=ROWS).filter(any)),
    st.tuples(st.just("cut"), st.lists(st.integers(0, 9), min_size=ROWS, max_size=ROWS)),
    st.tuples(st.just("take"), st.permutations([None, None, *range(ROWS)]).map(lambda rows: rows[:ROWS])),
    st.tuples(st.just("put"), st.tuples(st.integers(0, ROWS - 1), st.integers(1, 7))),
)


def append(book: Book, texts: list[list[float]], counts: list[int], first: float) -> None:
    """Run a pass whose keys are its tokens, which are numbered from `first`; values are negative."""
    width = max(counts)
    keys = torch.full((len(counts), 2, width, 4), PADDING)
    book.tidy()
    for row, count in enumerate(counts):
        new = [first + row + 10 * place for place in range(count)]
        texts[row] += new
        keys[row, :, width - count :] = torch.tensor(new)[:, None]
    if static.is_static(book.cache):
        static.set_length(book.cache, book.num_slots)
    book.append({row: count for row, count in enumerate(counts) if count})
    book.cache.update(keys, -keys, 0)


def check(book: Book, texts: list[list[float]]) -> None:
    mask = torch.from_numpy(book.mask()).bool()
    assert mask.shape == (len(texts), book.num_slots)
    for row, text in enumerate(texts):
        slots = torch.tensor(book.slots[row], dtype=torch.long)
        assert mask[row].nonzero().flatten().tolist() == book.slots[row] == sorted(set(book.slots[row]))
        if text:
            layer = book.cache.layers[0]
            assert layer.keys[row, 1, slots, 0].tolist() == text
            assert torch.equal(layer.values[row, :, slots], -layer.keys[row, :, slots])


@pytest.mark.parametrize("is_static", [False, True])
@settings(max_examples=30, deadline=None)
@given(st.lists(STEP, max_size=25))
@torch.no_grad()
def test_rows_of_a_book_hold_their_tokens(is_static: bool, steps: list[tuple[str, Any]]) -> None:
    book = Book(partial(static.static_cache, Model(), 400) if is_static else dynamic_cache, ROWS)
    texts: list[list[float]] = [[] for _ in range(ROWS)]
    for number, (what, how) in enumerate(steps):
        if what == "append":
            append(book, texts, how, 1000.0 * number)
        elif what == "cut":
            for row, num_cut in enumerate(how):
                length = max(0, len(texts[row]) - num_cut)
                assert book.cut(row, length) == length
                del texts[row][length:]
        elif what == "take" and not is_static:
            book.take(how)
            texts = [[] if row is None else texts[row] for row in how]
        elif what == "put" and not is_static:
            row, length = how
            other, texts[row] = Book(dynamic_cache), []
            append(other, [texts[row]], [length], 1000.0 * number)
            book.put(row, other)
        check(book, texts)
    book.tidy()
    check(book, texts)
    assert book.num_slots <= max(map(len, texts)) + 16


@torch.no_grad()
def test_gaps_are_closed_once_there_are_many() -> None:
    book = Book(dynamic_cache, 2)
    texts: list[list[float]] = [[], []]
    append(book, texts, [4, 4], 0.0)
    sizes = []
    for number in range(1, 60):  # one row after the other; the other one gets padding
        append(book, texts, [2, 0] if number % 2 else [0, 2], 100.0 * number)
        sizes.append(book.num_slots - max(map(len, texts)))
    assert max(sizes) <= 18
    assert sum(later < earlier for earlier, later in pairwise(sizes)) > 1
    check(book, texts)


@torch.no_grad()
def test_wiping_zeroes_only_the_slots_without_a_token() -> None:
    book = Book(dynamic_cache, 2)
    texts: list[list[float]] = [[], []]
    append(book, texts, [3, 5], torch.nan)
    append(book, texts, [2, 1], 7.0)
    for row, length in ((0, 0), (1, 2)):
        assert book.cut(row, length) == length
        del texts[row][length:]
    append(book, texts, [2, 1], 7.0)
    layer, is_used = book.cache.layers[0], torch.from_numpy(book.mask()).bool()
    kept = [tensor.clone() for tensor in (layer.keys, layer.values)]
    book.wipe()
    for tensor, before in zip((layer.keys, layer.values), kept, strict=True):
        of_slots, before = tensor.transpose(1, 2), before.transpose(1, 2)
        assert (of_slots[~is_used] == 0).all()
        assert torch.equal(of_slots[is_used].nan_to_num(), before[is_used].nan_to_num())
        assert (before[~is_used] != 0).any()


@torch.no_grad()
def test_a_row_that_is_left_alone_has_no_gaps() -> None:
    """A pass over one row has no mask."""
    book = Book(dynamic_cache, 2)
    texts: list[list[float]] = [[], []]
    append(book, texts, [3, 5], 0.0)
    append(book, texts, [2, 1], 100.0)
    book.take([1])
    book.tidy()
    check(book, texts[1:])
    assert book.slots == [list(range(6))]
