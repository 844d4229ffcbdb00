"""Unigram: T5, XLM-R and others. Like SentencePiece BPE, but the model picks the most likely pieces of a word."""

from functools import cached_property
from typing import Any

from uag.adapters.rust import model_settings
from uag.adapters.sentencepiece import SentencePieceAdapter


class UnigramAdapter(SentencePieceAdapter):
    """Adapter for Unigram models."""

    family = "unigram"
    model_type = "Unigram"

    def _looks_up_words(self) -> bool:
        return True  # every piece has a score, names too

    def _unk_piece(self) -> str | None:
        unk_id = self._settings.get("unk_id")
        return None if unk_id is None else str(self._model.id_to_token(unk_id))

    def _falls_back_to_bytes(self) -> bool:
        return bool(self._settings.get("byte_fallback"))

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return model_settings(self._model)[0]
