"""Tokenizers that run the `sentencepiece` library: a folder with only `tokenizer.model`, Mistral's v1 to v3.

The library cannot encode without a dummy prefix, so a second processor is made from the same model with the prefix, the
removal of extra spaces and (with byte fallback) the normalization switched off.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from uag.adapters import utf8
from uag.adapters.base import TokenizerAdapter
from uag.adapters.control import added_tokens
from uag.adapters.mistral_common import inner_model
from uag.adapters.rust import backend_of

_MARK = "▁"
# Appended to a serialized ModelProto, protobuf merges it: normalizer_spec (3) with add_dummy_prefix (3) and
# remove_extra_whitespaces (4) false, and precompiled_charsmap (2) empty.
_NO_PREFIX = b"\x1a\x04\x18\x00\x20\x00"
_NO_CHARSMAP = b"\x1a\x02\x12\x00"


class SentencePieceLibraryAdapter(TokenizerAdapter):
    """Adapter for tokenizers with a `SentencePieceProcessor`."""

    family = "sentencepiece_library"

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        original = processor_of(tokenizer)
        size = original.get_piece_size()
        pieces = [original.id_to_piece(i) for i in range(size)]
        is_mistral = inner_model(tokenizer) is not None  # its ids are the processor's
        self._ids = list(range(size)) if is_mistral else [int(i) for i in tokenizer.convert_tokens_to_ids(pieces)]
        self._unk = original.unk_id()
        self._byte_ids = {int(pieces[i][3:5], 16): self._ids[i] for i in range(size) if original.is_byte(i)}
        self._has_bytes = len(self._byte_ids) == 256
        kinds = (original.is_control, original.is_unknown, original.is_byte, original.is_unused)
        has_text = [not any(is_kind(i) for is_kind in kinds) for i in range(size)]
        self._texts = {self._ids[i]: pieces[i].replace(_MARK, " ") for i in range(size) if has_text[i]}
        if "".join(original.encode("a", out_type=str)).startswith(_MARK):
            self.start_prefix = self.control_prefix = b" "
            self.prefix_is_doubled = "".join(original.encode(" a", out_type=str)).startswith(_MARK * 2)
        changes = _NO_PREFIX + (_NO_CHARSMAP if self._has_bytes else b"")
        self._processor = type(original)(model_proto=original.serialized_model_proto() + changes)
        added = {int(i): token.content for i, token in added_tokens(tokenizer).items()}
        self._added = {content: i for i, content in added.items() if i not in self.controls.control_ids and i >= size}
        names = [re.escape(content) for content in sorted(self._added, key=len, reverse=True)]
        self._not_plain = re.compile("|".join([f"[\udc80-\udcff{_MARK if self._has_bytes else ''}]+", *names]))

    @classmethod
    def matches(cls, tokenizer: Any) -> int:
        """Support tokenizers with a processor and without a Rust backend."""
        return 30 if backend_of(tokenizer) is None and processor_of(tokenizer) is not None else 0

    @property
    def loss(self) -> str | None:
        """Why some text cannot be represented: unknown characters without byte fallback."""
        if self._has_bytes:
            return None
        return "no byte fallback: unknown characters become unk; the library may normalize text"

    def _build_token_bytes(self) -> Mapping[int, bytes | None]:
        texts = self._texts | {i: content for content, i in self._added.items()}
        return {i: text.encode() for i, text in texts.items()} | {i: bytes([b]) for b, i in self._byte_ids.items()}

    def _encode_batch(self, batch: Sequence[bytes]) -> list[list[int]]:
        return [self._encode_one(data) for data in batch]

    def _encode_one(self, data: bytes) -> list[int]:
        ids: list[int] = []
        for part, is_matched in utf8.runs(utf8.decode(data), self._not_plain):
            if not is_matched:
                ids += [self._ids[i] for i in self._processor.encode(part)]
            elif part in self._added:
                ids.append(self._added[part])
            else:
                ids += [self._byte_ids[b] for b in utf8.encode(part)] if self._has_bytes else [self._ids[self._unk]]
        return ids

    def _fingerprint_parts(self) -> Iterable[bytes]:
        yield repr(sorted(self._added.items())).encode()
        yield self._processor.serialized_model_proto()


def processor_of(tokenizer: Any) -> Any:
    """Return the `SentencePieceProcessor` of a tokenizer, or None."""
    for processor in (getattr(tokenizer, "sp_model", None), inner_model(tokenizer)):
        if hasattr(processor, "serialized_model_proto"):
            return processor
    return None
