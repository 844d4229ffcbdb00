"""Text that ends inside a character or a token."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tokenizers import small_tokenizer
from tests.unit.adapters.strategies import SETTINGS
from uag.adapters import from_tokenizer
from uag.projection import TokenizerPair, num_unfinished


@SETTINGS
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=6), cut=st.integers(0, 24))
def test_unfinished_bytes_equal_those_that_a_decoder_buffers(text: str, cut: int) -> None:
    data = text.encode()[:cut]
    decoder = codecs.getincrementaldecoder("utf-8")()
    decoder.decode(data)
    assert num_unfinished(data) == num_unfinished(bytearray(data)) == len(decoder.getstate()[0])


@pytest.mark.parametrize(("data", "number"), [(b"\x80", 0), (b"a\x80\x80\x80", 0), (b"\xff", 1), (b"", 0)])
def test_invalid_bytes_are_not_unfinished(data: bytes, number: int) -> None:
    assert num_unfinished(data) == number


def test_white_space_alone_keeps_every_boundary() -> None:
    """GPT-2's pattern assigns the last space to the following word: before a word, two spaces are two tokens."""
    target, draft = (from_tokenizer(small_tokenizer(name)) for name in ("byte_level", "byte_level_digits"))
    reader = TokenizerPair.of(target, draft).first_target
    assert target.token_bytes[reader.of_text(b"  ")] == b"  "
    assert reader.keeps_boundary(b" ", b" return")
    assert reader.keeps_boundary(b" ", b" ")
