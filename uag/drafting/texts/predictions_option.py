"""Parses `prediction=`, and creates the drafters of calls that have one."""

from typing import Any

import numpy as np
import torch

from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.drafting.drafter import Drafter
from uag.drafting.lookup import PromptLookup
from uag.drafting.models.opening import tokenizer_of
from uag.drafting.ranked import FreeFirst
from uag.drafting.rates import AcceptanceRates
from uag.drafting.texts.follower import PRIORS
from uag.drafting.texts.prediction import Expected, PredictionSource
from uag.errors import OptionError, PairError
from uag.hf import models


def read_predictions(prediction: Any, num_rows: int) -> list[list[Expected]]:
    """Return each row's predictions, without empty ones.

    Args:
        prediction: None; or text or target ids (a list of integers or a 1D tensor) for all rows; or a list with an
            entry per row, or a 2D tensor. An entry is such a prediction, None, or a list of several predictions.
        num_rows: number of rows of the batch; with fewer entries than rows, each entry is repeated for consecutive
            rows, as with `num_return_sequences`.

    Raises:
        OptionError: `prediction` is anything else.
    """
    is_one = prediction is None or _single(prediction) is not None
    entries = [prediction] if is_one else _parts(prediction)
    if not entries or num_rows % len(entries):
        raise OptionError(
            f"prediction has {len(entries)} entries and the batch {num_rows} rows. Pass one entry per row: "
            "text, ids, None, or a list of several predictions."
        )
    repeats = num_rows // len(entries)
    return [_of_row(entry) for entry in entries for _ in range(repeats)]


def _of_row(entry: Any) -> list[Expected]:
    if entry is None:
        return []
    parts = [entry] if _single(entry) is not None else _parts(entry)
    singles = [(part, _single(part)) for part in parts]
    for part, single in singles:
        if single is None:
            raise _refused(part)
    return [single for _, single in singles if single]


def _single(value: Any) -> Expected | None:
    """Return a value as a single prediction, or None if it is not one."""
    if isinstance(value, str):
        return value
    if isinstance(value, torch.Tensor | np.ndarray):
        value = value.tolist()
    is_ids = isinstance(value, list | tuple) and all(
        isinstance(i, int | np.integer) and not isinstance(i, bool) for i in value
    )
    return tuple(map(int, value)) if is_ids else None


def _parts(value: Any) -> list[Any]:
    if isinstance(value, list | tuple) or (isinstance(value, torch.Tensor | np.ndarray) and value.ndim == 2):
        return list(value)
    raise _refused(value)


def _refused(value: Any) -> OptionError:
    text = repr(value)
    return OptionError(
        f"prediction={text if len(text) < 80 else text[:77] + '...'} ({type(value).__name__}) is not a prediction. "
        "Pass text, target ids (a list or a tensor of integers), or a list with one of these or None for each row."
    )


class Predictions:
    """Creates the drafters of calls with predictions, and keeps their learned rates between calls.

    Args:
        looks_up: use prompt lookup together with a prediction if the call has no other drafter.
    """

    def __init__(self, looks_up: bool) -> None:
        self._rates = AcceptanceRates(PRIORS)
        self._lookup = PromptLookup() if looks_up else None
        self._adapter: TokenizerAdapter | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copying and pickling."""
        return vars(self) | {"_adapter": None}

    def drafter(
        self, other: Drafter | None, prediction: Any, model: Any, num_rows: int, tokenizer: Any
    ) -> Drafter | None:
        """Return the drafter of a call, which uses predictions where they promise the most tokens per second.

        Args:
            other: the call's drafter without predictions; None if there is none.
            prediction: see `read_predictions`; None for a call without predictions.
            model: the target.
            num_rows: number of rows of the batch.
            tokenizer: the target's tokenizer; None for the one saved with its weights.

        Raises:
            OptionError: the prediction is invalid, or has ids that the target lacks.
            PairError: the prediction is text, and no tokenizer is known.
        """
        predictions = read_predictions(prediction, num_rows)
        texts = [text for of_row in predictions for text in of_row]
        if not texts:
            return other
        _check_ids(texts, models.head_size(model))
        if any(isinstance(text, str) for text in texts):
            tokenizer = tokenizer or tokenizer_of(model)
            if tokenizer is None:
                raise PairError(
                    "A text prediction requires the target's tokenizer. Pass it: uag.Assistant(draft, "
                    "draft_tokenizer, tokenizer), or model.generate(..., tokenizer=tokenizer); or pass ids instead."
                )
        if tokenizer is not None:
            self._adapter = from_tokenizer(tokenizer)  # kept, so that the next call need not build it again
        source = PredictionSource(predictions, self._adapter, self._rates)
        if isinstance(other, FreeFirst):
            return other.with_first(source)
        if other is None or isinstance(other, PromptLookup):
            lookup = other or self._lookup
            return FreeFirst(None, [source] if lookup is None else [source, lookup])
        return FreeFirst(other, [source])


def _check_ids(texts: list[Expected], vocab_size: int) -> None:
    """Refuse ids that the target lacks."""
    ids = (token_id for text in texts if isinstance(text, tuple) for token_id in text)
    wrong = next((token_id for token_id in ids if not 0 <= token_id < vocab_size), None)
    if wrong is not None:
        raise OptionError(f"prediction contains the id {wrong}; the target's ids are 0 to {vocab_size - 1}.")
