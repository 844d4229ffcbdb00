"""The target's sampling options that are also applied to the draft."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers.generation import logits_process

from uag.hf.processors import FOLLOWED
from uag.proposal import Warpers


class DraftRules:
    """The stateless options of a call's prepared logits processors, for the draft."""

    def __init__(self, processors: Sequence[Any]) -> None:
        values: dict[str, Any] = {}
        banned: set[int] = set()
        self._late: list[tuple[int, frozenset[int]]] = []
        for processor in processors:
            kind = type(processor)
            if kind in FOLLOWED:
                option, name = FOLLOWED[kind]
                values[option] = getattr(processor, name)
            elif kind is logits_process.SuppressTokensLogitsProcessor:
                banned |= _ids(processor.suppress_tokens)
            elif kind is logits_process.NoBadWordsLogitsProcessor:
                banned.update(int(word[0]) for word in processor.bad_word_ids if len(word) == 1)
            elif kind is logits_process.MinLengthLogitsProcessor:
                self._late.append((int(processor.min_length), _ids(processor.eos_token_id)))
            elif kind is logits_process.MinNewTokensLengthLogitsProcessor:
                length = int(processor.prompt_length_to_skip) + int(processor.min_new_tokens)
                self._late.append((length, _ids(processor.eos_token_id)))
        self.warpers = Warpers(banned=frozenset(banned), **values)

    @property
    def needs_normalizer(self) -> bool:
        return self.warpers.repetition_penalty != 1.0

    def at(self, length: int) -> Warpers:
        """Return the options for the token after `length` ids of a row, including its prompt."""
        early = frozenset().union(*(ids for bound, ids in self._late if length < bound))
        return replace(self.warpers, banned=self.warpers.banned | early) if early else self.warpers


def _ids(value: Any) -> frozenset[int]:
    return frozenset(int(i) for i in torch.as_tensor(value).flatten().tolist())
