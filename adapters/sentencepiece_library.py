"""Tokenizers that run the `sentencepiece` library: a folder with only `tokenizer.model`, Mistral's v1 to v3.

The library cannot encode without a dummy prefix, so a second processor is made from the same model with the prefix, the
removal of extra spaces and (with byte fallback) the normalization switched off. Text is split into words first, unless
some piece contains a word and the space after it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from uag.adapters import utf8
from uag.adapters.base import TokenizerAdapter
from uag.adapters.rust import backend_of

_MARK = "▁"
_WORD = re.compile(r" *[^ ]+| +")
# Appended to a serialized ModelProto, protobuf merges it: normalizer_spec (3) with add_dummy_prefix (3) and
# remove_extra_whitespaces (4) false, and precompiled_charsmap (2) empty.
_NO_PREFIX = b"\x1a\x04\x18\x00\x20\x00"
_NO_CHARSMAP = b"\x1a\x02\x12\x00"


class SentencePieceLibraryAdapter(TokenizerAdapter):
    """Adapter for tokenizers with a `SentencePieceProcessor`."""

    family = "sentencepiece_library"

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        original = self._processor_of()
        size = original.get_piece_size()
        self._pieces = [original.id_to_piece(i) for i in range(size)]
        self._ids = self._convert_ids(self._pieces)
        self._byte_ids = {int(self._pieces[i][3:5], 16): self._ids[i] for i in range(size) if original.is_byte(i)}
        self._has_bytes = len(self._byte_ids) == 256
        self._unk = original.unk_id()
        others = (original.is_control, original.is_unknown, original.is_byte, original.is_unused)
        texts = [i for i in range(size) if not any(is_kind(i) for is_kind in others)]
        self._texts = [i for i in texts if self._ids[i] not in self.controls.control_ids]
        if "".join(original.encode("a", out_type=str)).startswith(_MARK):
            self.start_prefix = self.control_prefix = b" "
            self.prefix_is_doubled = "".join(original.encode(" a", out_type=str)).startswith(_MARK * 2)
        changes = _NO_PREFIX + (_NO_CHARSMAP if self._has_bytes else b"")
        self._processor = type(original)(model_proto=original.serialized_model_proto() + changes)
        added = self._added_tokens()
        self._added = {content: i for i, content in added.items() if i not in self.controls.control_ids and i >= size}
        longest_first = sorted(self._added, key=len, reverse=True)
        self._added_pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._broken = re.compile(f"[\udc80-\udcff{_MARK}]+" if self._has_bytes else "[\udc80-\udcff]+")

    @classmethod
    def matches(cls, tokenizer: Any) -> int:
        """Support tokenizers with a processor and without a Rust backend."""
        return 20 if backend_of(tokenizer) is None and processor_of(tokenizer) is not None else 0

    def _processor_of(self) -> Any:
        return processor_of(self.tokenizer)

    def _convert_ids(self, pieces: list[str]) -> list[int]:
        return [int(i) for i in self.tokenizer.convert_tokens_to_ids(pieces)]

    def _added_tokens(self) -> dict[int, str]:
        return {int(i): token.content for i, token in self.tokenizer.added_tokens_decoder.items()}

    @property
    def loss(self) -> str | None:
        """Why some text cannot be represented: unknown characters without byte fallback."""
        if self._has_bytes:
            return None
        return "no byte fallback: unknown characters become unk; the library may normalize text"

    @cached_property
    def _cuts_at_spaces(self) -> bool:
        texts = [self._pieces[i].replace(_MARK, " ") for i in self._texts]
        return not any(re.search("[^ ] ", text) for text in (*texts, *self._added))

    def _build_token_bytes(self) -> Mapping[int, bytes | None]:
        table: dict[int, bytes | None] = {i: content.encode() for content, i in self._added.items()}
        table |= {self._ids[i]: self._pieces[i].replace(_MARK, " ").encode() for i in self._texts}
        return table | {i: bytes([byte]) for byte, i in self._byte_ids.items()}

    def _encode_batch(self, batch: Sequence[bytes]) -> list[list[int]]:
        # One call of the library encodes each distinct word of all texts.
        plans = [list(self._plan(data)) for data in batch]
        words = list(dict.fromkeys(part for plan in plans for part in plan if isinstance(part, str)))
        rows = dict(zip(words, self._processor.encode(words), strict=True)) if words else {}
        encoded: list[list[int]] = []
        for plan in plans:
            ids: list[int] = []
            for part in plan:
                ids += [self._ids[i] for i in rows[part]] if isinstance(part, str) else part
            encoded.append(ids)
        return encoded

    def _plan(self, data: bytes) -> Iterator[str | list[int]]:
        """Split a text into words to encode and ids that are known already."""
        for part, is_broken in utf8.runs(utf8.decode(data), self._broken):
            if is_broken:
                yield [self._byte_ids[b] for b in utf8.encode(part)] if self._has_bytes else [self._ids[self._unk]]
                continue
            for text, is_added in utf8.runs(part, self._added_pattern) if self._added_pattern else [(part, False)]:
                if is_added:
                    yield [self._added[text]]
                elif self._cuts_at_spaces:
                    yield from _WORD.findall(text)
                else:
                    yield text

    def _fingerprint_parts(self) -> Iterable[bytes]:
        yield repr(sorted(self._added.items())).encode()
        yield self._processor.serialized_model_proto()


def processor_of(tokenizer: Any) -> Any:
    """Return the `SentencePieceProcessor` of a tokenizer, or None."""
    processor = getattr(tokenizer, "sp_model", None)
    return processor if hasattr(processor, "serialized_model_proto") else None
