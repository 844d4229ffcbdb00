"""What `prediction=` may be, and the drafters of calls that have one."""

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
        prediction: None; or text or target ids (a list of whole numbers, or a tensor of one dimension) for all rows; or
            a list with an entry for each row, or a tensor of two dimensions. An entry is such a prediction, None, or a
            list of several predictions.
        num_rows: rows of the batch; with fewer entries than rows each entry is for as many rows in turn, as with
            `num_return_sequences`.

    Raises:
        OptionError: anything else.
    """
    is_one = prediction is None or _single(prediction) is not None
    entries = [prediction] if is_one else _parts(prediction)
    if not entries or num_rows % len(entries):
        raise OptionError(
            f"prediction has {len(entries)} entries and the batch {num_rows} rows. Give one entry for each row: "
            "text, ids, None, or a list of several predictions."
        )
    each = num_rows // len(entries)
    return [_of_row(entry) for entry in entries for _ in range(each)]


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
    """Return a single prediction; None if this is not one."""
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
    shown = repr(value)
    return OptionError(
        f"prediction={shown if len(shown) < 80 else shown[:77] + '...'} ({type(value).__name__}) is not a prediction. "
        "Give text, target ids (a list or a tensor of whole numbers), or a list with one of these or None for each row."
    )


class Predictions:
    """Makes the drafters of calls with predictions, and keeps what they learn from call to call.

    Args:
        looks_up: use prompt lookup beside a prediction where the call has no other drafter.
    """

    def __init__(self, looks_up: bool) -> None:
        self._rates = AcceptanceRates(PRIORS)
        self._lookup = PromptLookup() if looks_up else None
        self._adapter: TokenizerAdapter | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or another process needs."""
        return vars(self) | {"_adapter": None}

    def drafter(
        self, other: Drafter | None, prediction: Any, model: Any, num_rows: int, tokenizer: Any
    ) -> Drafter | None:
        """Return the drafter of a call: its predictions are offered where they promise most.

        Args:
            other: what the call drafts with otherwise; None where there is nothing.
            prediction: see `read_predictions`; None for a call without.
            model: the target.
            num_rows: rows of the batch.
            tokenizer: the target's; None where unknown: then the one that lies with its weights.

        Raises:
            OptionError: this is no prediction, or it has ids that the target lacks.
            PairError: it is text, and there is no tokenizer.
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
                    "A prediction that is text needs the target's tokenizer. Pass it: uag.Assistant(draft, "
                    "draft_tokenizer, tokenizer), or model.generate(..., tokenizer=tokenizer); or give ids."
                )
        if tokenizer is not None:
            self._adapter = from_tokenizer(tokenizer)  # held, so that the next call need not build it again
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
        raise OptionError(f"prediction holds {wrong}; the target's ids go from 0 to {vocab_size - 1}.")
