"""Bytes that are not whole characters."""

from __future__ import annotations

import re

_RUN = re.compile("[\udc80-\udcff]+")
_NEXT_BYTES = (b"\x98", b"\x80", b"\xa0", b"\x90")


def decode(data: bytes) -> str:
    """Decode, with each undecodable byte as one lone surrogate."""
    return data.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """Undo `decode`."""
    return text.encode("utf-8", "surrogateescape")


def runs(text: str, broken: re.Pattern[str] = _RUN) -> list[tuple[str, bool]]:
    """Cut a decoded text into (part, whether it is broken), broken parts being runs that match `broken`."""
    parts: list[tuple[str, bool]] = []
    end = 0
    for found in broken.finditer(text):
        if found.start() > end:
            parts.append((text[end : found.start()], False))
        parts.append((found.group(), True))
        end = found.end()
    if end < len(text):
        parts.append((text[end:], False))
    return parts


def complete(data: bytes) -> str | None:
    """Complete the first bytes of one character to some character; None where that cannot be.

    >>> complete("é".encode()[:1]) is not None, complete(b"ab")
    (True, None)
    """
    if not data or data[0] < 0xC2 or len(data) > 3:
        return None
    frontier = [data]
    for _ in range(4 - len(data)):
        frontier = [known + following for known in frontier for following in _NEXT_BYTES]
        for candidate in frontier:
            try:
                text = candidate.decode()
            except UnicodeDecodeError:
                continue
            if len(text) == 1:
                return text
    return None
