"""Helpers for bytes that are not whole characters."""

import re

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
