"""The bounded dictionary that remembers texts."""

from __future__ import annotations

from uag.adapters.memo import Memo


def test_a_full_memo_empties_itself_and_goes_on() -> None:
    memo: Memo[int, str] = Memo(3)
    sizes = []
    for key in range(8):
        memo.put(key, str(key))
        assert memo.get(key) == str(key)
        sizes.append(len(memo))
    assert sizes == [1, 2, 3, 1, 2, 3, 1, 2]
    assert memo.get(0) is None
    assert memo.get(6) == "6"


def test_putting_a_key_again_counts_once() -> None:
    memo: Memo[str, int] = Memo(2)
    memo.put("a", 1)
    memo.put("a", 2)
    memo.put("b", 3)
    assert (memo.get("a"), memo.get("b")) == (2, 3)
