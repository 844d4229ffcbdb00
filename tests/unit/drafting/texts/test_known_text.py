"""A known text as ids that follow the output; see test_window.py for their encoding."""

from tests.support.tokenizers import small_tokenizer
from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.drafting.texts.follower import KnownText


def known_text(text: bytes, adapter: TokenizerAdapter) -> KnownText:
    return KnownText(text.decode("latin-1"), adapter)


def test_no_token_reaches_across_a_join_that_the_target_has_cut() -> None:
    adapter = from_tokenizer(small_tokenizer("byte_level"))
    text = b"the quick brown fox jumps"
    whole = adapter.encode_continuation(text)
    place = len(adapter.join(whole[:2]) or b"") + 2  # in the middle of a token
    written = [*whole[:2], *adapter.encode_continuation(text[place - 2 : place])]
    ids = known_text(text, adapter).ids_after(written, place, 50)
    assert adapter.join(ids) == text[place:]


def test_candidates_in_a_long_text_are_those_of_the_whole_text() -> None:
    adapter = from_tokenizer(small_tokenizer("byte_level"))
    text = ("the quick brown fox jumps over the lazy dog, " * 30).encode()
    whole, known = adapter.encode_continuation(text), known_text(text, adapter)
    place = 0
    for done in range(0, len(whole), 16):
        assert known.ids_after(whole[max(done - 8, 0) : done], place, 16) == whole[done : done + 16]
        place += len(known.symbols_of(whole[done : done + 16]))


def test_a_text_begins_as_the_target_would_write_it() -> None:
    adapter = from_tokenizer(small_tokenizer("llama"))
    bos = adapter.controls.bos_id
    assert bos is not None
    word = adapter.encode_continuation(b" word")
    assert KnownText.of("Hello", adapter, [bos]).symbols == " Hello"
    assert KnownText.of("Hello", adapter, [*word, bos]).symbols == "Hello"
    assert KnownText.of("Hello", adapter, [bos, *word]).symbols == "Hello"
    lossy = from_tokenizer(small_tokenizer("wordpiece"))
    assert KnownText.of("The Fox", lossy, [*lossy.encode_continuation(b"so")]).symbols == "the fox"


def test_words_end_behind_letters_of_any_script() -> None:
    adapter = from_tokenizer(small_tokenizer("byt5"))
    known = KnownText.of("naïve_2 日本 x", adapter, [3])
    for start, word in ((0, "naïve_2"), (len("naïve_2 ".encode()), "日本"), (len("naïve_2".encode()), "")):
        assert known.word_end(start) == start + len(word.encode())
