"""WordPiece (BERT). Lossy: spaces between words are not kept, and most models lower-case.

A piece that begins a word means a space and its letters, a "##" piece its letters, closing punctuation itself. With
these rules ordinary prose survives a round trip, unless the normalizer changes it.
"""

from functools import cached_property
from typing import Any

from uag.adapters import utf8
from uag.adapters.rust import RustAdapter, backend_of

# Pieces that usually follow a word without a space.
_MOSTLY_ATTACHED = frozenset(".,;:!?)]}%'\"-/’”…»、。，！？；：）")


class WordPieceAdapter(RustAdapter):
    """Adapter for WordPiece models."""

    family = "wordpiece"
    start_prefix = b" "
    control_prefix = b" "

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self._continuing: str = self._model.continuing_subword_prefix

    @classmethod
    def matches(cls, tokenizer: Any) -> int:
        """Support Rust backends with a WordPiece model."""
        backend = backend_of(tokenizer)
        return 20 if backend is not None and type(backend.model).__name__ == "WordPiece" else 0

    @cached_property
    def loss(self) -> str | None:
        """WordPiece always loses the spaces around punctuation."""
        lowers = any(step.get("lowercase") or step["type"] == "Lowercase" for step in self._normalizers)
        return ("lower-cases; " if lowers else "") + "spaces around words are not kept; unknown words become unk"

    def _piece_bytes(self, piece: str) -> bytes | None:
        if piece.startswith(self._continuing):
            return piece.removeprefix(self._continuing).encode()
        return piece.encode() if piece in _MOSTLY_ATTACHED else b" " + piece.encode()

    def _is_plain(self, text: str) -> bool:
        return not text or text[0].isspace()

    def _encode_bytes(self, data: bytes) -> list[int]:
        """Encode text that continues a word: the first word uses continuation pieces."""
        text = data.decode("utf-8", "ignore")
        normalizer, pre_tokenizer = self._encoder.normalizer, self._encoder.pre_tokenizer
        normal = text if normalizer is None else normalizer.normalize_str(text)
        words = pre_tokenizer.pre_tokenize_str(normal) if normal and pre_tokenizer is not None else []
        if not words or self._is_plain(normal):  # Chinese characters are surrounded by spaces
            return self._encode_text([text])[0]
        first, (_, end) = words[0]
        # longest pieces first: the algorithm of arXiv:1609.08144, as BERT runs it
        head = utf8.spell(first, lambda piece: self._vocabulary.get(self._continuing + piece), len(first))
        if head is None:
            return self._encode_text([text])[0]
        return head + (self._encode_text([normal[end:]])[0] if normal[end:] else [])
