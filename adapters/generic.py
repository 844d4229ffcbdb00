"""Any other tokenizer, through its public methods only: slow. A continuation is encoded after a known anchor text."""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from uag.adapters.base import TEXT_BYTES, TokenizerAdapter

_ANCHORS = ("a", "\n", ".", "一")  # texts that precede a continuation, tried until the ids decode to the same bytes

_REQUIRED = ("decode", "get_vocab", "convert_ids_to_tokens")
_REPLACEMENT = "\ufffd"
_BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")


class GenericAdapter(TokenizerAdapter):
    """Adapter for any tokenizer with `encode`, `decode`, `get_vocab` and `convert_ids_to_tokens`."""

    family = "generic"

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        if self.join(self._encode_plain("a")) == b" a":
            self.start_prefix = self.control_prefix = b" "
            self.prefix_is_doubled = self.join(self._encode_plain(" a")) == b"  a"

    @classmethod
    def matches(cls, tokenizer: Any) -> int:
        return int(all(hasattr(tokenizer, name) for name in _REQUIRED))

    @cached_property
    def loss(self) -> str | None:
        missing = [byte for byte in TEXT_BYTES if bytes([byte]) not in self._ids_of_bytes]
        return f"no token for {len(missing)} of the bytes that occur in text" if missing else None

    def _decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _encode_plain(self, text: str) -> list[int]:
        return [int(i) for i in self.tokenizer.encode(text, add_special_tokens=False)]

    def _build_token_bytes(self) -> Mapping[int, bytes | None]:
        ids = sorted(i for i in set(self.tokenizer.get_vocab().values()) if i not in self.controls.control_ids)
        around = self._encode_plain("a")[-1:]
        both, wholes = self._decode(around * 2), {i: self._decode([*around, i, *around]) for i in ids}
        # A space between words belongs to the word after it, unless some token ends with it ("</w>").
        num_before = len(self._decode(around))
        if not all(whole.endswith(both[num_before:]) for whole in wholes.values()):
            num_before = len(both)
            while not all(whole.startswith(both[:num_before]) for whole in wholes.values()):
                num_before -= 1
        num_after = len(both) - num_before
        table: dict[int, bytes | None] = {}
        for token_id, whole in wholes.items():
            piece = self.tokenizer.convert_ids_to_tokens(token_id)
            text = whole[num_before : len(whole) - num_after]
            if isinstance(piece, bytes):
                table[token_id] = piece
            elif byte := _BYTE_PIECE.fullmatch(piece):
                table[token_id] = bytes.fromhex(byte[1])
            elif _REPLACEMENT not in text or _REPLACEMENT in str(piece):  # else U+FFFD hides the real bytes
                table[token_id] = text.encode("utf-8", "replace")
        return table

    def _encode_text(self, text: str) -> list[int]:
        best: list[int] | None = None
        for anchor in _ANCHORS:
            head = self._encode_plain(anchor)
            ids = self._encode_plain(anchor + text)
            if head and ids[: len(head)] == head:
                tail = ids[len(head) :]
                if self.join(tail) == text.encode():
                    return tail
                best = tail if best is None else best
        spelled = self._spell(text.encode())
        if spelled is not None:
            return spelled
        return self._encode_plain(text) if best is None else best
