"""Stopping criteria: known classes are evaluated row by row, unknown ones are called as plain decoding does."""

import math
from typing import Any

import torch
from transformers import StoppingCriteriaList
from transformers.generation import stopping_criteria as known

_KNOWN = (known.MaxLengthCriteria, known.EosTokenCriteria, known.StopStringCriteria, known.MaxTimeCriteria)


class Stopping:
    """The criteria that transformers prepared for one call, grouped by what they need.

    Attributes:
        max_length: number of ids, prompt included, at which a row ends; None without a limit.
        has_eos: whether a finished row is padded, as in plain decoding.
        has_time_limit: whether a time limit can end all rows at once; `ends` does not check it.
        others: criteria of other classes, which must be called once for each output step.
    """

    def __init__(self, criteria: StoppingCriteriaList) -> None:
        self.criteria = criteria
        groups: list[list[Any]] = [[each for each in criteria if type(each) is kind] for kind in _KNOWN]
        lengths, eos, self.strings, times = groups
        finite = (math.ceil(each.max_length) for each in lengths if each.max_length < math.inf)  # may be other numbers
        self.max_length: int | None = min(finite, default=None)
        self.eos_ids = frozenset(int(i) for each in eos for i in torch.as_tensor(each.eos_token_id).flatten().tolist())
        self.has_eos = any(hasattr(each, "eos_token_id") for each in criteria)
        self.has_time_limit = bool(times)
        self.others = StoppingCriteriaList(each for each in criteria if type(each) not in _KNOWN)

    def ends(self, token_id: int, length: int, ids: torch.Tensor | None) -> bool:
        """Return whether a known criterion ends a row of `length` ids; stop strings need them, as `ids` [1, length]."""
        if token_id in self.eos_ids or (self.max_length is not None and length >= self.max_length):
            return True
        return ids is not None and any(bool(criterion(ids, None)[0]) for criterion in self.strings)
