"""Tokenizers inside GGUF files: any kind that llama.cpp supports, with llama.cpp's bytes and ids."""

import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from uag.adapters import utf8
from uag.adapters.generic import GenericAdapter

# Long texts are encoded in parts, cut before a space if there is one. For many models llama.cpp matches words by
# `std::regex`, which recurses for each character: 2,000 spaces in a row overflow a 512 KB stack and crash the process.
_PART = re.compile(r".{1,512}\Z|.{,511}\S(?= )|.{1,512}", re.DOTALL)


class LlamaCppAdapter(GenericAdapter):
    """Adapter for `uag.gguf.GgufTokenizer`."""

    family = "llama_cpp"

    @classmethod
    def matches(cls, tokenizer: Any) -> int:
        """Support tokenizers that encode bytes with llama.cpp."""
        return 30 if hasattr(tokenizer, "encode_bytes") and hasattr(tokenizer, "pieces") else 0

    def _build_token_bytes(self) -> Mapping[int, bytes | None]:
        return dict(self.tokenizer.pieces)

    def _encode_one(self, data: bytes) -> list[int]:
        return utf8.encode_broken(data, self._encode_text, self._spell, self._last_token)

    def _encode_text(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in _PART.findall(text):
            data = part.encode()
            part_ids = self.tokenizer.encode_bytes(data)
            # llama.cpp rewrites some texts: it reads "▁" as a space, for example.
            ids += part_ids if self.join(part_ids) == data else self._spell(data) or part_ids
        return ids

    def _spell(self, data: bytes) -> list[int]:
        return utf8.spell(data, self._ids_of_bytes, self._longest) or []

    def _last_token(self, text: str) -> int:
        """Return the offset of the token that contains the start of the last character."""
        ends = accumulate(len(self.token_bytes[i] or b"") for i in self._encode_text(text))
        start = max((end for end in ends if end <= len(text[:-1].encode())), default=0)
        return len(utf8.decode(text.encode()[:start]))
