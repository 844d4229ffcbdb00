"""Mistral's own backend (`MistralCommonBackend`) with Tekken, a byte-level BPE run by tiktoken."""

from collections.abc import Mapping
from typing import Any

from uag.adapters.base import TokenizerAdapter


class TekkenAdapter(TokenizerAdapter):
    """Adapter for Tekken."""

    family = "mistral_common"

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        tekken = _tekkenizer(tokenizer)
        self._model = tekken._model
        self._shift: int = tekken.num_special_tokens
        self._ranks: dict[bytes, int] = tekken._tekken_token2id_nospecial

    @classmethod
    def matches(cls, tokenizer: Any) -> int:
        return 30 if hasattr(_tekkenizer(tokenizer), "_tekken_token2id_nospecial") else 0

    def _build_token_bytes(self) -> Mapping[int, bytes | None]:
        return {rank + self._shift: data for data, rank in self._ranks.items()}

    def _encode_text(self, text: str) -> list[int]:
        return [rank + self._shift for rank in self._model.encode_ordinary(text)]


def _tekkenizer(tokenizer: Any) -> Any:
    instruct = getattr(getattr(tokenizer, "tokenizer", None), "instruct_tokenizer", None)
    return getattr(instruct, "tokenizer", None)
