"""Unigram: T5, XLM-R and others. As SentencePiece BPE, but the model picks the likeliest pieces of a whole word.

Differs in its safe places: sums of floats depend on where they start, so only places where the pre-tokenizer cuts
count. Where text is normalized, letters that normalization leaves alone must stand on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from uag.adapters import utf8
from uag.adapters.pretokens import place_offsets
from uag.adapters.sentencepiece import SentencePieceAdapter, model_state


class UnigramAdapter(SentencePieceAdapter):
    """Adapter for Unigram models."""

    family = "unigram"
    model_type = "Unigram"

    def _takes_names(self) -> bool:
        return True

    def _unk_piece(self) -> str | None:
        unk_id = self._settings.get("unk_id")
        return None if unk_id is None else str(self._model.id_to_token(unk_id))

    def _decides_bytes(self) -> bool:
        return bool(self._settings.get("byte_fallback"))

    @cached_property
    def _settings(self) -> dict[str, Any]:
        state = model_state(self._model)
        return {key: value for key, value in state.items() if key != "vocab"}

    def split_offsets(self, text: str) -> Iterator[tuple[int, int]]:
        """Find the places where the pre-tokenizer cuts."""
        if self._is_raw:
            yield from place_offsets(self._safe_places, text)
            return
        if not (self._splits_words or self._cuts_words):
            return
        place = text.find(" ", 1)
        while place != -1:
            following = text[place + 1 : place + 2]
            if not self._rewrites:
                if text[place - 1] != " " and not self._broken.match(text[place - 1]):
                    yield place, place + 1
            elif following and utf8.is_settled(text[place - 1]) and utf8.is_settled(following):
                yield place, place + 2
            place = text.find(" ", place + 1)

    @cached_property
    def _splits_words(self) -> bool:
        is_known = all(step["type"] in ("Metaspace", "WhitespaceSplit", "Digits") for step in self._pre_tokenizers)
        metaspaces = [step for step in self._pre_tokenizers if step["type"] == "Metaspace"]
        single = any(token.single_word for token in self._ordinary_added.values())
        added = any(" " in token.content or self._mark in token.content for token in self._ordinary_added.values())
        splits = bool(metaspaces) and all(step.get("split", True) for step in metaspaces)
        return is_known and splits and not single and not added

    @cached_property
    def _cuts_words(self) -> bool:
        return not self._splits_words and super()._cuts_words

    @cached_property
    def _rewrites(self) -> bool:
        return any(step["type"] != "Replace" for step in self._kept_normalizers())
