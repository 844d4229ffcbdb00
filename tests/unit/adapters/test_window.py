"""The alignment window: what stays, what a call costs, control tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.tokenizers import BUILDERS, llama, small_tokenizer
from uag.adapters import AlignmentWindow, from_tokenizer

# generic finds no safe place, byte_level_whole and unigram_raw_whole have none
BOUNDED = sorted(set(BUILDERS) - {"slow_python", "end_of_word", "byte_level_whole", "unigram_raw_whole"})


def test_a_word_that_goes_on_changes_only_its_own_ids() -> None:
    adapter = from_tokenizer(small_tokenizer("byte_level"))
    window = AlignmentWindow(adapter)
    window.append(b"the quick brown fo")
    before = list(window.ids)
    same = window.append(b"x jumps")
    assert window.ids == adapter.encode_continuation(b"the quick brown fox jumps")
    assert 0 < same < len(before)
    assert window.ids[:same] == before[:same]
    assert window.byte_ends[-1] == window.num_bytes == len(b"the quick brown fox jumps")


@pytest.mark.parametrize("name", BOUNDED)
def test_an_append_encodes_the_last_words_not_the_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = from_tokenizer(small_tokenizer(name))
    window = AlignmentWindow(adapter, at_start=True)
    window.append(b"the little girl lived in a small house, " * 100)
    encoded = 0
    encode = adapter.encode_continuations

    def counting(batch: Sequence[bytes]) -> list[list[int]]:
        nonlocal encoded
        encoded += sum(map(len, batch))
        return encode(batch)

    monkeypatch.setattr(adapter, "encode_continuations", counting)
    for word in (b"and", b" then", b" the", b" dog"):
        window.append(word)
    window.cut(window.num_bytes - 300)
    assert 0 < encoded < 300
    assert window.ids == adapter.encode_start(window.data)


def test_cut_keeps_bytes_and_refuses_others() -> None:
    window = AlignmentWindow(from_tokenizer(small_tokenizer("llama")))
    window.append("the 😀".encode())
    window.cut(6)
    assert window.data == "the 😀".encode()[:6]
    with pytest.raises(ValueError, match="cut to 7 bytes of a text of 6"):
        window.cut(7)
    with pytest.raises(ValueError, match="cut to -1 bytes"):
        window.cut(-1)
    assert window.cut(0) == 0
    assert window.ids == []


@pytest.mark.parametrize("scheme", ["first", "always", None])
def test_text_behind_a_control_token_is_encoded_as_such(scheme: str | None) -> None:
    tokenizer = llama(scheme)
    adapter = from_tokenizer(tokenizer)
    eos_id = adapter.controls.eos_id or 0
    window = AlignmentWindow(adapter, at_start=True)
    window.append(b"the dog")
    num_ids = len(window.ids)
    assert window.append_control(eos_id) == num_ids
    assert window.append(b"the") == num_ids + 1
    window.append(b" fox jumps")
    assert window.ids == tokenizer.encode("the dog</s>the fox jumps", add_special_tokens=False)
    window.cut(len(b"the dogthe"))
    assert window.ids == [*adapter.encode_start(b"the dog"), eos_id, *adapter.encode_after_control(b"the")]
    window.cut(len(b"the dog"))
    assert window.ids == [*adapter.encode_start(b"the dog"), eos_id]
    window.cut(len(b"the do"))
    assert window.ids == adapter.encode_start(b"the do")


def test_words_on_both_sides_of_a_control_token_stay_apart() -> None:
    adapter = from_tokenizer(small_tokenizer("byte_level"))
    eos_id = adapter.controls.eos_id or 0
    window = AlignmentWindow(adapter)
    window.append(b"th")
    window.append_control(eos_id)
    window.append(b"e")
    assert window.ids == [*adapter.encode_continuation(b"th"), eos_id, *adapter.encode_continuation(b"e")]
    assert window.byte_ends[-2:] == [2, 3]


@pytest.mark.parametrize("name", sorted(BUILDERS))
@pytest.mark.parametrize("following", [b"re", b" x", "\u0301".encode(), b","])
def test_a_place_is_forgotten_with_the_bytes_that_proved_it(name: str, following: bytes) -> None:
    adapter = from_tokenizer(small_tokenizer(name))
    text = b"the dog, and  the"
    for keep in range(len(text)):
        window = AlignmentWindow(adapter)
        window.append(text)
        window.cut(keep)
        window.append(following)
        assert window.ids == adapter.encode_continuation(text[:keep] + following)
