"""Mistral's own backend (`MistralCommonBackend`): Tekken, a byte-level BPE run by tiktoken, and older SentencePiece.

It does not implement all methods of other tokenizers (`added_tokens_decoder` raises), so roles come from special ids.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Regex, pre_tokenizers

from uag.adapters import utf8
from uag.adapters.base import TokenizerAdapter
from uag.adapters.control import ControlRoles
from uag.adapters.sentencepiece_library import SentencePieceLibraryAdapter


def inner_tokenizer(tokenizer: Any) -> Any:
    """Return mistral_common's tokenizer inside a `MistralCommonBackend`, or None."""
    instruct = getattr(getattr(tokenizer, "tokenizer", None), "instruct_tokenizer", None)
    return getattr(instruct, "tokenizer", None)


def _controls(tokenizer: Any) -> ControlRoles:
    inner = inner_tokenizer(tokenizer)
    content = {int(i): str(inner.id_to_piece(i)) for i in tokenizer.all_special_ids}

    def role(name: str) -> int | None:
        try:
            token_id = getattr(inner, name)
        except (AttributeError, KeyError, ValueError):
            return None
        return token_id if token_id in content else None

    return ControlRoles(role("bos_id"), role("eos_id"), role("pad_id"), role("unk_id"), frozenset(content), content)


class TekkenAdapter(TokenizerAdapter):
    """Adapter for Tekken."""

    family = "mistral_common"

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        inner = inner_tokenizer(tokenizer)
        self._model = inner._model
        self._shift: int = inner.num_special_tokens
        self._ranks: dict[bytes, int] = inner._tekken_token2id_nospecial
        self._pattern: str = self._model._pat_str
        self._splitter = pre_tokenizers.Split(Regex(self._pattern), "isolated")

    @classmethod
    def matches(cls, tokenizer: Any) -> int:
        """Support the backend if it contains a Tekkenizer."""
        inner = inner_tokenizer(tokenizer)
        return 30 if hasattr(inner, "_tekken_token2id_nospecial") else 0

    def _find_controls(self) -> ControlRoles:
        return _controls(self.tokenizer)

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


class MistralSentencePieceAdapter(SentencePieceLibraryAdapter):
    """Adapter for the backend's older SentencePiece models."""

    family = "mistral_common_sentencepiece"

    @classmethod
    def matches(cls, tokenizer: Any) -> int:
        """Support the backend if it contains a SentencePiece processor."""
        return 30 if hasattr(getattr(inner_tokenizer(tokenizer), "_model", None), "serialized_model_proto") else 0

    def _find_controls(self) -> ControlRoles:
        return _controls(self.tokenizer)

    def _processor_of(self) -> Any:
        return inner_tokenizer(self.tokenizer)._model

    def _convert_ids(self, pieces: list[str]) -> list[int]:
        return list(range(len(pieces)))

    def _added_tokens(self) -> dict[int, str]:
        return {}
