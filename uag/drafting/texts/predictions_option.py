"""Parses `prediction=`."""

from typing import Any

import numpy as np
import torch

from uag.drafting.texts.prediction import Expected
from uag.errors import OptionError


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


def check_ids(texts: list[Expected], vocab_size: int) -> None:
    """Refuse ids that the target lacks.

    Raises:
        OptionError: there are such ids.
    """
    ids = (token_id for text in texts if isinstance(text, tuple) for token_id in text)
    wrong = next((token_id for token_id in ids if not 0 <= token_id < vocab_size), None)
    if wrong is not None:
        raise OptionError(f"prediction contains the id {wrong}; the target's ids are 0 to {vocab_size - 1}.")
