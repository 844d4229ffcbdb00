"""Tokenizers inside GGUF files: any kind that llama.cpp supports, with llama.cpp's bytes and ids."""

import re
from collections.abc import Mapping
from typing import Any

from uag.adapters.generic import GenericAdapter

_PART = re.compile(r".{1,512}\Z|.{,511}\S(?= )|.{1,512}", re.DOTALL)
"""The parts in which long texts are encoded, cut before a space if there is one.

For many models llama.cpp matches words by `std::regex`, which recurses for each character: 2,000 spaces in a row
overflow a stack of 512 KB and crash the process.
"""


class LlamaCppAdapter(GenericAdapter):
    """Adapter for `uag.gguf.GgufTokenizer`."""

    family = "llama_cpp"

    @classmethod
    def matches(cls, tokenizer: Any) -> int:
        return 30 if hasattr(tokenizer, "encode_bytes") and hasattr(tokenizer, "pieces") else 0

    def _build_token_bytes(self) -> Mapping[int, bytes | None]:
        return dict(self.tokenizer.pieces)

    def _encode_text(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in _PART.findall(text):
            data = part.encode()
            part_ids = self.tokenizer.encode_bytes(data)
            # llama.cpp rewrites some texts: it reads "▁" as a space, for example.
            ids += part_ids if self.join(part_ids) == data else self._spell(data) or part_ids
        return ids
