"""What `prediction=` may be, and the drafters of calls that have one."""

from typing import Any

import numpy as np
import torch

from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.drafting.drafter import Drafter
from uag.drafting.lookup import PromptLookup
from uag.drafting.models.opening import tokenizer_of
from uag.drafting.ranked import FreeFirst
from uag.drafting.texts.grounds import Learnt
from uag.drafting.texts.prediction import Expected, PredictionSource
from uag.errors import OptionError, PairError
from uag.hf import models


def read_predictions(prediction: Any, num_rows: int) -> list[list[Expected]]:
    """Return each row's predictions.

    Args:
        prediction: for all rows text, or target ids (a list of whole numbers, or a tensor of one dimension); or a list
            with an entry for each row, and a tensor of two dimensions: such a prediction, None, or a list of several.
        num_rows: rows of the batch; with fewer entries than rows each entry is for as many rows in turn, as with
            `num_return_sequences`.

    Raises:
        OptionError: anything else.
    """
    if prediction is None:
        return [[] for _ in range(num_rows)]
    whole = _one(prediction)
    if whole is not None:
        return [[whole] if whole else [] for _ in range(num_rows)]
    if isinstance(prediction, torch.Tensor | np.ndarray) and prediction.ndim == 2:
        prediction = list(prediction)
    if not isinstance(prediction, list | tuple):
        raise OptionError(_message(prediction))
    if not prediction or num_rows % len(prediction):
        raise OptionError(
            f"prediction has {len(prediction)} entries and the batch {num_rows} rows. Give one entry for each row: "
            "text, ids, None, or a list of several predictions."
        )
    each = num_rows // len(prediction)
    return [_several(entry) for entry in prediction for _ in range(each)]


def _several(entry: Any) -> list[Expected]:
    """Return one row's predictions."""
    if entry is None:
        return []
    one = _one(entry)
    if one is not None:
        return [one] if one else []
    if not isinstance(entry, list | tuple):
        raise OptionError(_message(entry))
    found = [_one(part) for part in entry]
    wrong = next((part for part, known in zip(entry, found, strict=True) if known is None), None)
    if None in found:
        raise OptionError(_message(wrong))
    return [one for one in found if one]


def _one(value: Any) -> Expected | None:
    """Return a single prediction; None where this is none."""
    if isinstance(value, str):
        return value
    if isinstance(value, torch.Tensor | np.ndarray):
        values = value.tolist() if value.ndim == 1 else None
        return _one(values) if isinstance(values, list) else None
    if isinstance(value, list | tuple) and all(
        isinstance(i, int | np.integer) and not isinstance(i, bool) for i in value
    ):
        return tuple(map(int, value))
    return None


def _message(value: Any) -> str:
    shown = repr(value)
    return (
        f"prediction={shown if len(shown) < 80 else shown[:77] + '...'} ({type(value).__name__}) is none: give text, "
        "target ids (a list or a tensor of whole numbers), or a list with one of these or None for each row."
    )


class Predictions:
    """Makes the drafters of calls with predictions, and keeps what they teach from call to call.

    Args:
        looks_up: prompt lookup goes along where there is no other drafter.
    """

    def __init__(self, looks_up: bool) -> None:
        self._learnt = Learnt()
        self._lookup = PromptLookup() if looks_up else None
        self._held: TokenizerAdapter | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or another process needs."""
        return vars(self) | {"_held": None}

    def drafter(
        self, own: Drafter | None, prediction: Any, model: Any, num_rows: int, tokenizer: Any
    ) -> Drafter | None:
        """Return the drafter of a call: its predictions come first where they promise most.

        Args:
            own: what the call drafts with otherwise; None where there is nothing.
            prediction: see `read_predictions`; None for a call without.
            model: the target.
            num_rows: rows of the batch.
            tokenizer: the target's; None where unknown: then the one that lies with its weights.

        Raises:
            OptionError: this is no prediction, or it has ids that the target lacks.
            PairError: it is text, and there is no tokenizer.
        """
        predictions = read_predictions(prediction, num_rows)
        given = [text for texts in predictions for text in texts]
        if not given:
            return own
        vocab_size = models.head_size(model)
        ids = (i for text in given if not isinstance(text, str) for i in text)
        wrong = next((i for i in ids if not 0 <= i < vocab_size), None)
        if wrong is not None:
            raise OptionError(f"prediction holds {wrong}; the target's ids go from 0 to {vocab_size - 1}.")
        if any(isinstance(text, str) for text in given):
            tokenizer = tokenizer or tokenizer_of(model)
            if tokenizer is None:
                raise PairError(
                    "A prediction that is text needs the target's tokenizer. Pass it: uag.Assistant(draft, "
                    "draft_tokenizer, tokenizer), or model.generate(..., tokenizer=tokenizer); or give ids."
                )
        if tokenizer is not None:
            self._held = from_tokenizer(tokenizer)  # held, so that the next call need not build it again
        source = PredictionSource(predictions, self._held, self._learnt, vocab_size)
        if isinstance(own, FreeFirst):
            return own.with_first(source)
        if own is None or isinstance(own, PromptLookup):
            others = [other for other in (own or self._lookup,) if other is not None]
            return FreeFirst(None, [source, *others])
        return FreeFirst(own, [source])
