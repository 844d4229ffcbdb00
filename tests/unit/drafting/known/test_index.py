"""The index of known ids: every search finds what a plain search finds, however the ids are stored."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.adapters.strategies import SETTINGS
from uag.drafting.known import index
from uag.drafting.known.index import END, NUM_LAST, KnownIds

texts = st.lists(st.lists(st.integers(0, 5), max_size=60), max_size=12)


def matches(stored: Sequence[int], last_ids: Sequence[int]) -> tuple[int, list[list[int]]]:
    """Return the length of the longest match and what follows each such match, by a plain search."""
    found: dict[int, list[list[int]]] = {}
    for place in range(1, len(stored)):
        length = 0
        while length < min(place, len(last_ids), NUM_LAST) and stored[place - 1 - length] == last_ids[-1 - length]:
            length += 1
        if length and stored[place] != END:
            following = list(stored[place:])
            found.setdefault(length, []).append(following[: following.index(END)])
    longest = max(found, default=0)
    return longest, found.get(longest, [])


@SETTINGS
@given(
    texts,
    st.lists(st.integers(0, 5), max_size=20),
    st.integers(64, 400),
    st.sampled_from([0, 20, 10_000]),
    st.sampled_from([0, 3, 10_000]),
    st.booleans(),
)
def test_matches_are_those_of_a_plain_search(
    rows: list[list[int]], last_ids: list[int], most: int, num_unsorted: int, few: int, all_collide: bool
) -> None:
    """Whatever was dropped, sorted or narrowed first, and if all pairs have the same hash."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "_NUM_UNSORTED", num_unsorted)
        patch.setattr(index, "_FEW", few)
        patch.setattr(index, "_FACTORS", (0, 0) if all_collide else index._FACTORS)
        known = KnownIds(most)
        for row in rows:
            known.append([*row, END])
            known.find(last_ids)  # sorts what is stored so far
        length, places = known.find(last_ids)
        look_up = known.look_up(last_ids, 1000)
    expected, following = matches([END, *known.ids.tolist()], last_ids)
    is_sorted = len(known._sorted) > 0
    assert length == expected or (is_sorted and not length and expected == 1)  # sorted ids are found by pairs
    if length > 1 or (length and not is_sorted):
        assert [known.continuation(place, 1000) for place in places.tolist()] == following
        assert look_up == (length, following[-1])


@SETTINGS
@given(texts)
def test_the_latest_texts_are_kept_and_the_oldest_dropped(rows: list[list[int]]) -> None:
    known = KnownIds(100)
    everything: list[int] = []
    for row in rows:
        known.append([*row, END])
        everything += [*row, END]
        kept = known.ids.tolist()
        assert everything[-len(kept) :] == kept
        assert min(len(everything), 100 - 100 // 32) <= len(kept) <= 100


def test_a_text_that_grows_is_searched_to_its_end() -> None:
    known = KnownIds()
    known.append([1, 2, 3])
    assert known.look_up([2, 3], 5) == (0, [])  # nothing follows yet
    known.append([4])
    assert known.look_up([2, 3], 5) == (2, [4])
    known.append(np.array([1, 2, 3], np.int32))
    assert known.look_up([1, 2, 3], 5) == (3, [4, 1, 2, 3])


def test_ids_below_zero_match_nothing_and_end_a_text() -> None:
    """Some models use them for images."""
    known = KnownIds()
    known.append([5, 6, 7, -200, 8, 5, 6])
    assert known.look_up([5, 6], 5) == (2, [7])
    assert known.look_up([6, 7], 5) == (0, [])
    assert known.look_up([7, -200], 5) == (0, [])


def test_long_matches_are_told_apart() -> None:
    known, alike = KnownIds(), list(range(100, 100 + NUM_LAST - 1))
    for first in (1, 2, 3):
        known.append([first, *alike, 10 * first, END])
    for first in (1, 2, 3):
        assert known.look_up([9, first, *alike], 1) == (NUM_LAST, [10 * first])
    assert known.look_up([4, *alike], 1) == (NUM_LAST - 1, [30])
