"""A known text as the target would write it."""

from __future__ import annotations

from tests.support.tokenizers import small_tokenizer
from uag.adapters import from_tokenizer
from uag.drafting.texts.known_text import KnownText


def test_a_text_begins_as_the_target_would_write_it() -> None:
    adapter = from_tokenizer(small_tokenizer("llama"))
    bos = adapter.controls.bos_id
    assert bos is not None
    word = adapter.encode_continuation(b" word")
    assert KnownText.of_text("Hello", adapter, [bos]).symbols == " Hello"
    assert KnownText.of_text("Hello", adapter, [*word, bos]).symbols == "Hello"
    assert KnownText.of_text("Hello", adapter, [bos, *word]).symbols == "Hello"
    lossy = from_tokenizer(small_tokenizer("wordpiece"))
    assert KnownText.of_text("The Fox", lossy, [*lossy.encode_continuation(b"so")]).symbols == "the fox"


def test_words_end_behind_letters_of_any_script() -> None:
    adapter = from_tokenizer(small_tokenizer("byt5"))
    known = KnownText.of_text("naïve_2 日本 x", adapter, [3])
    for start, word in ((0, "naïve_2"), (len("naïve_2 ".encode()), "日本"), (len("naïve_2".encode()), "")):
        assert known.word_end(start) == start + len(word.encode())
