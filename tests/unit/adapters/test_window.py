"""Text after written ids: its ids equal those of the whole text, and their bytes always equal the text's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tokenizers import BUILDERS, holds, small_tokenizer
from tests.unit.adapters.strategies import SETTINGS, any_bytes
from uag.adapters import TokenizerAdapter, encode_after, from_tokenizer

MERGES_ACROSS_WORDS = {"byte_level_whole", "llama_crossing"}
WORDS = [
    " the", " quick", " brown", " fox", " don't", " 12345", " f(x):", " so,", "\nif", "\n\n    a\tb", " naïve", " 日本",
    " лиса",
]  # fmt: skip


def check_text_after_ids(adapter: TokenizerAdapter, text: bytes, share: float) -> None:
    whole = adapter.encode_continuation(text)
    num_written = int(share * len(whole))
    written = adapter.join(whole[:num_written])
    if holds(adapter, text) and written is not None:
        assert encode_after(adapter, whole[:num_written], text[len(written) :])[0] == whole[num_written:]


@pytest.mark.parametrize("name", sorted(BUILDERS.keys() - MERGES_ACROSS_WORDS))
@SETTINGS
@given(words=st.lists(st.sampled_from(WORDS), max_size=60), share=st.floats(0.0, 1.0))
def test_ids_equal_whole_encoding(name: str, words: list[str], share: float) -> None:
    check_text_after_ids(from_tokenizer(small_tokenizer(name)), "".join(words).encode(), share)


@pytest.mark.parametrize("name", sorted(BUILDERS))
@SETTINGS
@given(written=any_bytes(), text=any_bytes())
def test_the_bytes_of_the_ids_are_the_texts(name: str, written: bytes, text: bytes) -> None:
    adapter = from_tokenizer(small_tokenizer(name))
    ids, ends = encode_after(adapter, adapter.encode_continuation(written), text)
    for num, end in enumerate(ends, 1):
        assert adapter.join(ids[:num]) == text[:end]
    if adapter.is_exact:
        assert adapter.join(ids) == text
