"""Predictions: texts that the caller expects as output, as a free source of candidates.

A candidate's likelihood depends on its evidence: how long the output has followed the text, or which guess led it back
there (`uag.drafting.texts.follower`). Acceptance rates are learned over all calls, so guesses that are usually wrong
soon stop.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from uag.adapters import TokenizerAdapter
from uag.drafting.drafter import Ask
from uag.drafting.ranked import AcceptanceRates, Evidence, FreeSource
from uag.drafting.texts.follower import Expected, Follower, Guess
from uag.errors import OptionError


class PredictionSource(FreeSource):
    """Candidates from the predictions for each row of one call; `adapter` is None if all predictions are ids."""

    strategy = source = "prediction"
    max_proposed = 64

    def __init__(
        self, predictions: Sequence[Sequence[Expected]], adapter: TokenizerAdapter | None, rates: AcceptanceRates
    ) -> None:
        super().__init__(rates)
        self._predictions = predictions
        self._adapter = adapter
        self._rows: list[list[Follower]] = []
        self._guessed: dict[int, tuple[Follower, Guess]] = {}

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Any = None) -> None:  # noqa: ARG002
        """Start new sequences; an encoder's text is no prediction."""
        self._rows = [
            [Follower(text, self._adapter, prompt) for text in texts]
            for prompt, texts in zip(prompts, self._predictions, strict=True)
        ]

    def _candidates(self, row: int, num: int, ask: Ask) -> tuple[list[int], list[Evidence]]:  # noqa: ARG002
        """Return candidates from the row's likeliest guess; ties go to the longest run, then to the first text."""
        guesses = [(follower, guess) for follower in self._rows[row] for guess in follower.guesses()]
        if not guesses:
            return [], []
        follower, guess = max(guesses, key=lambda pair: (self._rates[pair[1].evidence], pair[1].run))
        self._guessed[row] = follower, guess
        return follower.continuation(guess, num)

    def _written(self, row: int, output_ids: Sequence[int], num_right: int) -> None:
        guessed = self._guessed.pop(row, None)
        if guessed is not None and num_right:
            guessed[0].continue_at(guessed[1])
        for follower in self._rows[row]:
            follower.write(output_ids)


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
    value = _normalized(prediction)
    entries = value if isinstance(value, list) else [value]
    if num_rows % len(entries):
        raise OptionError(
            f"prediction has {len(entries)} entries and the batch {num_rows} rows. Pass one entry per row: "
            "text, ids, None, or a list of several predictions."
        )
    repeats = num_rows // len(entries)
    return [row for row in map(_of_row, entries) for _ in range(repeats)]


def _normalized(value: Any) -> Any:
    """Return ids as a tuple, and other sequences as lists; a prediction may have a million ids, so scan them once."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        return value
    if _are_ids(value):
        return tuple(value)
    parts = [_normalized(part) for part in value]
    return tuple(parts) if _are_ids(parts) else parts  # ids can be integers of NumPy or tensors


def _are_ids(values: Sequence[Any]) -> bool:
    return {*map(type, values)} <= {int}


def _of_row(entry: Any) -> list[Expected]:
    if entry is None:
        return []
    parts = entry if isinstance(entry, list) else [entry]
    for part in parts:
        if not isinstance(part, str | tuple):
            raise OptionError(
                f"prediction={part!r:.80} ({type(part).__name__}) is not a prediction. Pass text, target ids (a list "
                "or a tensor of integers), or a list with one of these or None for each row."
            )
    return [part for part in parts if part]


def check_ids(texts: list[Expected], vocab_size: int) -> None:
    """Raise an `OptionError` for ids that the target lacks."""
    ends = (end for text in texts if isinstance(text, tuple) for end in (min(text), max(text)))
    wrong = next((token_id for token_id in ends if not 0 <= token_id < vocab_size), None)
    if wrong is not None:
        raise OptionError(f"prediction contains the id {wrong}; the target's ids are 0 to {vocab_size - 1}.")
