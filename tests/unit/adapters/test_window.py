"""The alignment window: windowed ids equal those of the whole text, and their bytes always equal the text's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tokenizers import BUILDERS, holds, small_tokenizer
from tests.unit.adapters.strategies import SETTINGS, any_bytes
from uag.adapters import AlignmentWindow, TokenizerAdapter, from_tokenizer

MERGES_ACROSS_WORDS = {"byte_level_whole", "llama_crossing"}
WORDS = [
    " the", " quick", " brown", " fox", " don't", " 12345", " f(x):", " so,", "\nif", "\n\n    a\tb", " naïve", " 日本",
    " лиса",
]  # fmt: skip


def windowed(adapter: TokenizerAdapter, parts: Sequence[bytes], written_ids: Sequence[int] = ()) -> AlignmentWindow:
    """Append parts and check the invariants after each, for every tokenizer and any bytes."""
    window = AlignmentWindow(adapter, written_ids)
    data = b""
    for part in parts:
        settled = window.ids[: window.num_settled]
        window.append(part)
        data += part
        assert window.ids[: len(settled)] == settled
        assert len(settled) <= window.num_settled <= len(window.ids)
        for num, end in enumerate(window.byte_ends, 1):
            assert adapter.join(window.ids[:num]) == data[:end]
    return window


@pytest.mark.parametrize("name", sorted(BUILDERS.keys() - MERGES_ACROSS_WORDS))
@SETTINGS
@given(parts=st.lists(st.lists(st.sampled_from(WORDS), max_size=30).map("".join), max_size=6))
def test_windowed_ids_equal_whole_encoding(name: str, parts: list[str]) -> None:
    adapter = from_tokenizer(small_tokenizer(name))
    text = "".join(parts).encode()
    window = windowed(adapter, [part.encode() for part in parts])
    whole = adapter.encode_continuation(text)
    assert window.ids == whole[: len(window.ids)]
    assert len(window.ids) == len(whole) or not holds(adapter, text)


@pytest.mark.parametrize("name", sorted(BUILDERS))
@SETTINGS
@given(written=any_bytes(), parts=st.lists(any_bytes(), max_size=6))
def test_the_bytes_of_the_ids_are_the_texts(name: str, written: bytes, parts: list[bytes]) -> None:
    adapter = from_tokenizer(small_tokenizer(name))
    window = windowed(adapter, parts, adapter.encode_continuation(written))
    if adapter.is_exact:
        assert adapter.join(window.ids) == b"".join(parts)
