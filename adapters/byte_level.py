"""ByteLevel BPE: GPT-2, Llama 3, Qwen, SmolLM, StarCoder, DeepSeek, Whisper, tiktoken conversions.

Unicode normalizers are skipped: they only lose bytes, and nearly all text has the same ids without them.
"""

from codecs import charmap_encode
from functools import cached_property
from typing import Any

from uag.adapters.base import TEXT_BYTES
from uag.adapters.rust import RustAdapter, backend_of, steps_of

_DROPPED_NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD", "Prepend", "Strip", "Lowercase", "StripAccents", "Precompiled")


def byte_alphabet() -> dict[str, int]:
    """Map each character of the byte alphabet to its byte (GPT-2's `bytes_to_unicode`).

    >>> byte_alphabet()["Ġ"]
    32
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = byte_alphabet()
_BYTE_OF_CODE = {ord(character): byte for character, byte in _BYTE_OF.items()}
_CHARACTER_OF = {byte: character for character, byte in _BYTE_OF.items()}


class ByteLevelAdapter(RustAdapter):
    """Adapter for byte-level BPE."""

    family = "byte_level"

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self._keeps = [step for step in self._normalizers if step["type"] not in _DROPPED_NORMALIZERS]
        if any(step["type"] == "ByteLevel" and step["add_prefix_space"] for step in self._pre_tokenizers):
            self.start_prefix = self.control_prefix = b" "

    @classmethod
    def matches(cls, tokenizer: Any) -> int:
        backend = backend_of(tokenizer)
        if backend is None or type(backend.model).__name__ != "BPE":
            return 0
        return 20 if any(step["type"] == "ByteLevel" for step in steps_of(backend.pre_tokenizer)) else 0

    @cached_property
    def loss(self) -> str | None:
        missing = [byte for byte in TEXT_BYTES if _CHARACTER_OF[byte] not in self._vocabulary]
        if missing:
            return f"no token for {len(missing)} of the bytes that occur in text, first 0x{missing[0]:02X}"
        if self._keeps:
            return f"normalizes text ({', '.join(step['type'] for step in self._keeps)})"
        return None

    def _encoder_steps(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        no_prefix = {"add_prefix_space": False}
        steps = [step | (no_prefix if step["type"] == "ByteLevel" else {}) for step in self._pre_tokenizers]
        return self._keeps, steps

    def _piece_bytes(self, piece: str) -> bytes | None:
        try:
            return charmap_encode(piece, "strict", _BYTE_OF_CODE)[0]
        except UnicodeEncodeError:
            return piece.encode()  # a piece outside the alphabet is decoded as raw text
