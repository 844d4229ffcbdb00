"""Plain bytes (ByT5): one id per byte, at a fixed offset."""

from collections.abc import Mapping
from typing import Any

from uag.adapters.base import TokenizerAdapter
from uag.adapters.rust import backend_of


class ByteAdapter(TokenizerAdapter):
    """Adapter for tokenizers whose ids are bytes."""

    family = "byte"

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self._offset = _byte_offset(tokenizer) or 0

    @classmethod
    def matches(cls, tokenizer: Any) -> int:
        if backend_of(tokenizer) is not None:
            return 0
        return 20 if _byte_offset(tokenizer) is not None else 0

    def _build_token_bytes(self) -> Mapping[int, bytes | None]:
        table: dict[int, bytes | None] = {byte + self._offset: bytes([byte]) for byte in range(256)}
        added = self.tokenizer.added_tokens_decoder
        return table | {i: token.content.encode() for i, token in added.items() if i not in self.controls.control_ids}

    def _encode(self, data: bytes) -> list[int]:
        return [byte + self._offset for byte in data]


def _byte_offset(tokenizer: Any) -> int | None:
    convert = getattr(tokenizer, "convert_tokens_to_ids", None)
    if convert is None or len(tokenizer) > 4096:  # ByT5 has 384; larger vocabularies are not byte vocabularies
        return None
    ids = convert([chr(byte) for byte in range(256)])
    if not isinstance(ids, list) or len(ids) != 256 or not isinstance(ids[0], int):
        return None
    return ids[0] if ids == list(range(ids[0], ids[0] + 256)) else None
