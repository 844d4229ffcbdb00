"""Mistral's own backend (`MistralCommonBackend`) with Tekken, a byte-level BPE run by tiktoken.

`uag.adapters.sentencepiece_library` supports the backend's older SentencePiece models.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Regex, pre_tokenizers

from uag.adapters import utf8
from uag.adapters.base import TokenizerAdapter


def inner_tokenizer(tokenizer: Any) -> Any:
    """Return mistral_common's tokenizer inside a `MistralCommonBackend`, or None."""
    instruct = getattr(getattr(tokenizer, "tokenizer", None), "instruct_tokenizer", None)
    return getattr(instruct, "tokenizer", None)


def inner_model(tokenizer: Any) -> Any:
    """Return the tiktoken encoding or SentencePiece processor inside a `MistralCommonBackend`, or None."""
    return getattr(inner_tokenizer(tokenizer), "_model", None)


class TekkenAdapter(TokenizerAdapter):
    """Adapter for Tekken."""

    family = "mistral_common"

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        inner = inner_tokenizer(tokenizer)
        self._model = inner_model(tokenizer)
        self._shift: int = inner.num_special_tokens
        self._ranks: dict[bytes, int] = inner._tekken_token2id_nospecial
        self._pattern: str = self._model._pat_str
        self._splitter = pre_tokenizers.Split(Regex(self._pattern), "isolated")

    @classmethod
    def matches(cls, tokenizer: Any) -> int:
        """Support the backend if it contains a Tekkenizer."""
        return 30 if hasattr(inner_tokenizer(tokenizer), "_tekken_token2id_nospecial") else 0

    def _build_token_bytes(self) -> Mapping[int, bytes | None]:
        return {rank + self._shift: data for data, rank in self._ranks.items()}

    def _encode_batch(self, batch: Sequence[bytes]) -> list[list[int]]:
        model, last_word = self._model, self._last_word
        rows = (utf8.encode_broken(d, model.encode_ordinary, model._encode_single_piece, last_word) for d in batch)
        return [[i + self._shift for i in row] for row in rows]

    def _last_word(self, text: str) -> int:
        start: int = self._splitter.pre_tokenize_str(text)[-1][1][0]
        return start

    def _fingerprint_parts(self) -> Iterable[bytes]:
        yield self._pattern.encode()
        yield repr(self._shift).encode()
