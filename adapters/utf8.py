"""Helpers for bytes that are not whole characters."""

import re
from collections.abc import Callable, Mapping

BROKEN = re.compile("[\udc80-\udcff]+")
TEXT_BYTES = sorted(frozenset(range(0xF5)) - {0xC0, 0xC1})
"""Bytes that occur in valid UTF-8; DeepSeek's vocabulary lacks the 13 others."""


def decode(data: bytes) -> str:
    """Decode; each undecodable byte becomes one lone surrogate."""
    return data.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """Encode the result of `decode`."""
    return text.encode("utf-8", "surrogateescape")


def runs(text: str, pattern: re.Pattern[str] = BROKEN) -> list[tuple[str, bool]]:
    """Split a decoded text into (part, whether it matches the pattern), by default into whole and broken characters."""
    parts: list[tuple[str, bool]] = []
    end = 0
    for match in pattern.finditer(text):
        parts += [(text[end : match.start()], False), (match.group(), True)]
        end = match.end()
    return [(part, is_match) for part, is_match in (*parts, (text[end:], False)) if part]


def complete(data: bytes) -> str | None:
    """Return some character that begins with these bytes; None if there is none.

    >>> complete("é".encode()[:1]) is not None, complete(b"ab")
    (True, None)
    """
    for second in (b"\x98", b"\xa0", b"\x80"):  # 0xE0 needs at least 0xA0, 0xF4 less than 0x90
        for num_missing in range(1, 4):
            text = decode(data + (second + b"\x98\x98")[:num_missing])
            if len(text) == 1:
                return text
    return None


def spell(data: bytes, ids: Mapping[bytes, int], longest: int) -> list[int] | None:
    """Spell bytes with the longest tokens from the left; None if no token matches.

    Args:
        data: The bytes.
        ids: The id of each token's bytes.
        longest: Length of the longest token.
    """
    spelled: list[int] = []
    while data:
        size = next((n for n in range(min(len(data), longest), 0, -1) if data[:n] in ids), 0)
        if not size:
            return None
        spelled.append(ids[data[:size]])
        data = data[size:]
    return spelled


def encode_broken(
    data: bytes,
    encode_text: Callable[[str], list[int]],
    encode_bytes: Callable[[bytes], list[int]],
    last_word: Callable[[str], int],
) -> list[int]:
    r"""Encode bytes that are not whole characters, with a byte-level vocabulary.

    An incomplete character at the end is encoded with the word that a whole character would belong to, because
    " \xf0\x9f" is one token of many vocabularies.

    Args:
        data: Any bytes.
        encode_text: Encodes whole characters.
        encode_bytes: Encodes bytes as one word.
        last_word: Returns where the last word of a text starts.
    """
    ids: list[int] = []
    parts = runs(decode(data))
    for number, (part, is_broken) in enumerate(parts):
        rest = encode(parts[-1][0])
        if is_broken:
            ids += encode_bytes(encode(part))
        elif number == len(parts) - 2 and (last := complete(rest)):
            start = last_word(part + last)
            return ids + encode_text(part[:start]) + encode_bytes(part[start:].encode() + rest)
        else:
            ids += encode_text(part)
    return ids
