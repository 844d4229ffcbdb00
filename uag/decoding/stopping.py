"""Stopping criteria: known classes are evaluated row by row, unknown ones are called as plain decoding does."""

from typing import Any

import torch
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)


class Stopping:
    """The criteria of one call, grouped by what they need.

    Args:
        criteria: the criteria that transformers prepared.

    Attributes:
        max_length: number of ids, prompt included, at which a row ends; None without a limit.
        eos_ids: ids that end a row.
        has_eos: whether a finished row is padded, as in plain decoding.
        needs_text: whether there are stop strings.
        has_time_limit: whether a time limit can end all rows at once; `ends` does not check it.
        others: criteria of other classes, which must be called once for each output step.
        unknown: their names.
    """

    def __init__(self, criteria: StoppingCriteriaList) -> None:
        self.criteria = criteria
        lengths: list[int] = []
        eos: set[int] = set()
        self._strings: list[Any] = []
        self.has_time_limit = False
        self.others = StoppingCriteriaList()
        for criterion in criteria:
            kind = type(criterion)
            if kind is MaxLengthCriteria:
                lengths.append(criterion.max_length)
            elif kind is EosTokenCriteria:
                eos.update(int(i) for i in torch.as_tensor(criterion.eos_token_id).flatten().tolist())
            elif kind is StopStringCriteria:
                self._strings.append(criterion)
            elif kind is MaxTimeCriteria:
                self.has_time_limit = True
            else:
                self.others.append(criterion)
        self.max_length: int | None = min(lengths, default=None)
        self.eos_ids: frozenset[int] = frozenset(eos)
        self.has_eos = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        self.needs_text = bool(self._strings)
        self.unknown = [type(criterion).__name__ for criterion in self.others]

    def ends(self, token_id: int, length: int, ids: torch.Tensor | None) -> bool:
        """Return whether a known criterion ends a row.

        Args:
            token_id: the last id of the row.
            length: number of ids of the row.
            ids: [1, length] all ids of the row; needed only for stop strings.
        """
        if token_id in self.eos_ids or (self.max_length is not None and length >= self.max_length):
            return True
        return ids is not None and any(bool(criterion(ids, None)[0]) for criterion in self._strings)
