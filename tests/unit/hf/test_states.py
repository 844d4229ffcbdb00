"""Copies of states: which lengths are kept."""

import pytest

from uag.hf.cache.states import MAX_COPIES, Copies


def filled(lengths: range, max_copies: int = MAX_COPIES) -> Copies[int]:
    copies: Copies[int] = Copies(max_copies)
    for length in lengths:
        copies.thin_out()
        copies.by_length[length] = length
    return copies


@pytest.mark.parametrize("max_copies", [3, 4, 5, MAX_COPIES])
@pytest.mark.parametrize("end", [12, 390, 399, 400])
def test_recent_copies_are_dense_and_the_first_one_remains(max_copies: int, end: int) -> None:
    copies = filled(range(10, end), max_copies)
    num_dense = min(max_copies // 2 + 1, end - 10)
    assert list(copies.by_length)[-num_dense:] == list(range(end - num_dense, end))
    assert min(copies.by_length) == 10
    assert len(copies.by_length) <= max_copies


def test_dropped_copies_are_no_longer_found() -> None:
    copies = filled(range(10, 15))
    assert copies.drop(12) == [12, 13, 14]
    assert (copies.nearest(20), copies.nearest(10), copies.nearest(9)) == (11, 10, 0)
