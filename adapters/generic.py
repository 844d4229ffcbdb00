"""A tokenizer of an unknown kind, through its public methods alone. The last resort: correct, not fast.

Ids for a continuation come from encoding the text behind a known anchor. Where that does not give the bytes back, the
longest pieces that spell them are taken.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from uag.adapters import utf8
from uag.adapters.base import TokenizerAdapter

# Texts in front of which a continuation is encoded, one after the other until one gives the bytes back. More of them
# serve more tokenizers with their own ids, and cost a call each where none does.
_ANCHORS = ("a", "\n", ".", "一")
_REPLACEMENT = "\ufffd"


class GenericAdapter(TokenizerAdapter):
    """Adapter for any tokenizer with `encode`, `decode`, `get_vocab` and `convert_ids_to_tokens`."""

    family = "generic"

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        if self.join(self._encode_plain("a")) == b" a":
            self.start_prefix = b" "

    @classmethod
    def matches(cls, tokenizer: Any) -> int:
        """Serve whatever nothing else serves."""
        return int(hasattr(tokenizer, "encode"))

    @cached_property
    def loss(self) -> str | None:
        """Why some text cannot be held: bytes that no piece spells."""
        missing = [byte for byte in range(0xF5) if bytes([byte]) not in self._ids_of_bytes and byte not in (0xC0, 0xC1)]
        return f"no piece for {len(missing)} of the bytes that text can hold" if missing else None

    def _decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _encode_plain(self, text: str) -> list[int]:
        return [int(i) for i in self.tokenizer.encode(text, add_special_tokens=False)]

    def _build_token_bytes(self) -> Mapping[int, bytes | None]:
        ids = sorted(i for i in set(self.tokenizer.get_vocab().values()) if i not in self.controls.control_ids)
        around = self._encode_plain("a")[-1:]
        both, wholes = self._decode(around * 2), {i: self._decode([*around, i, *around]) for i in ids}
        # Spaces between words belong to the word behind them, unless some piece takes them away from there ("</w>").
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
            elif _REPLACEMENT in text and _REPLACEMENT not in str(piece):
                table[token_id] = None  # a decoded U+FFFD hides the true bytes and must never be encoded again
            else:
                table[token_id] = text.encode("utf-8", "replace")
        return table

    @cached_property
    def _ids_of_bytes(self) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for token_id, data in enumerate(self.token_bytes):
            if data is not None:
                found.setdefault(data, token_id)
        return found

    def _encode_batch(self, batch: Sequence[bytes]) -> list[list[int]]:
        return [self._encode_one(data) for data in batch]

    def _encode_one(self, data: bytes) -> list[int]:
        best: list[int] | None = None
        text = data.decode("utf-8", "replace")
        for anchor in _ANCHORS:
            head = self._encode_plain(anchor)
            ids = self._encode_plain(anchor + text)
            if head and ids[: len(head)] == head:
                tail = ids[len(head) :]
                if self.join(tail) == data:
                    return tail
                best = tail if best is None else best
        spelled = utf8.spell(data, self._ids_of_bytes.get, max(map(len, self._ids_of_bytes), default=1))
        if spelled is not None:
            return spelled
        return self._encode_plain(text) if best is None else best

    def _fingerprint_parts(self) -> Iterable[bytes]:
        yield type(self.tokenizer).__qualname__.encode()
        # Merge ranks are out of reach: ask for the ids of texts that tell tokenizers apart.
        for text in ("The quick brown fox can't jump 12345 times.", "  \t\n x", "naïve Ünïcödé", "日本語 текст 😀"):
            yield repr(self._encode_plain(text)).encode()
