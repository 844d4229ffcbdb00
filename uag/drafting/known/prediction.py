"""Predictions: texts or ids that the caller expects as output, as a source of candidates.

The place after the longest match of the output's end is searched in them, and of several, the next one. In the round
after the output has left a prediction, it is also guessed to return after the word that it replaced.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import torch

from uag.adapters import Place, TokenizerAdapter, encode_after
from uag.drafting.known.index import KnownIds
from uag.drafting.known.source import KnownSource, level_of
from uag.drafting.ranked import AcceptanceRates
from uag.errors import OptionError, PairError

Expected = str | tuple[int, ...]  # a prediction: text, or target ids

_START = [np.iinfo(np.int32).max] * 8  # precedes predictions and outputs; no vocabulary has this id

_IN_WORD = re.compile(rb"[0-9A-Za-z_\x80-\xff]")
"""The beginning of an id that continues a word; bytes from 128 on are parts of letters in most texts."""

_PIECE = 16_384  # bytes of a text that are encoded at once, when the output nears the end of what was encoded
_NUM_UNSETTLED_BYTES = 32  # bytes at the end of a piece whose ids the text after them may change
_NUM_AHEAD = 128  # ids after the output's place that should be encoded


class _Text:
    """A prediction for a row: its ids so far, and the index of the next one, or of the one where the output left it."""

    def __init__(self, pieces: Iterator[Sequence[int]], adapter: TokenizerAdapter | None) -> None:
        self.known, self._pieces, self._adapter = KnownIds(), pieces, adapter
        self.known.append(_START)
        self.place = self.known.end
        self._after_replaced: int | None = None
        self.read_on(self.place)

    def read_on(self, place: int) -> None:
        if place + _NUM_AHEAD > self.known.end:
            self.known.append(next(self._pieces, ()))

    def guesses(self, last_ids: Sequence[int]) -> list[tuple[int, int]]:
        """Return where the output may go on: how many of its last ids match there, and the place."""
        num_matching, places = self.known.find(last_ids)
        next_one = min(int(places.searchsorted(self.place)), len(places) - 1)
        guesses = [(num_matching, int(places[next_one]))] if num_matching else []
        replaced, self._after_replaced = self._after_replaced, None
        return guesses if replaced is None or replaced >= self.known.end else [*guesses, (0, replaced)]

    def go_on(self, place: int, has_left: bool) -> None:
        """Move to a place, which the output has reached, and where it has written another id if it `has_left`."""
        self.place = place
        if has_left:
            rest = takewhile(self._is_in_word, self.known.continuation(place + 1, _NUM_AHEAD))
            self._after_replaced = place + 1 + len(list(rest))
        self.read_on(place)

    def _is_in_word(self, token_id: int) -> bool:
        return self._adapter is not None and _IN_WORD.match(self._adapter.join([token_id]) or b"") is not None


class PredictionSource(KnownSource):
    """Candidates from the predictions for each row of one call; see `read_predictions`.

    `find_adapter` returns the adapter of the target's tokenizer, and is called if a prediction is text. Raises an
    `OptionError` for ids that the target lacks, and a `PairError` for text without a tokenizer.
    """

    strategy = source = "prediction"

    def __init__(
        self,
        prediction: Any,
        num_rows: int,
        vocab_size: int,
        find_adapter: Callable[[], TokenizerAdapter | None] = lambda: None,
        rates: AcceptanceRates | None = None,
    ) -> None:
        super().__init__(rates)
        self._adapter: TokenizerAdapter | None = None
        self._predictions = read_predictions(prediction, num_rows)
        check_ids(self._predictions, vocab_size)
        if any(isinstance(text, str) for text in self._predictions):
            self._adapter = find_adapter()
            if self._adapter is None:
                raise PairError(
                    "A text prediction requires the target's tokenizer. Pass it: uag.Assistant(draft, "
                    "draft_tokenizer, tokenizer), or model.generate(..., tokenizer=tokenizer); or pass ids instead."
                )
        self._rows: list[_Text | None] = []
        self._chosen: dict[int, int] = {}

    @property
    def may_propose(self) -> bool:
        return any(self._predictions)

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Any = None) -> None:  # noqa: ARG002
        super().start([_START] * len(prompts))
        self._rows = [
            _Text(known_ids(text, self._adapter, prompt), self._adapter) if text else None
            for prompt, text in zip(prompts, self._predictions, strict=True)
        ]

    def _look_up(self, row: int, num: int) -> tuple[int, list[int]]:
        text = self._rows[row]
        guesses = text.guesses(self._last_ids[row]) if text else []
        if not text or not guesses:
            return 0, []
        num_matching, place = max(guesses, key=lambda guess: (self._rates[level_of(guess[0])], guess[0]))
        self._chosen[row] = place
        return num_matching, text.known.continuation(place, num)

    def _written(self, row: int, output_ids: Sequence[int], num_right: int) -> None:
        super()._written(row, output_ids, num_right)
        place, text = self._chosen.pop(row, None), self._rows[row]
        if place is not None and text and (num_right or place == text.place):
            text.go_on(place + num_right, has_left=num_right < len(output_ids))


def known_ids(text: Expected, adapter: TokenizerAdapter | None, prompt: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield target ids, or a text as the target would write it after a prompt, in pieces."""
    if adapter is None or isinstance(text, tuple):
        yield text  # type: ignore[misc]
        return
    data = text.encode("utf-8", "replace")
    data = adapter.prefix(data, _place_behind(prompt, adapter)) + data
    if not adapter.is_exact:
        data = b"".join(adapter.join([token_id]) or b"" for token_id in adapter.encode_continuation(data))
    written = prompt
    while data:
        ids, ends = encode_after(adapter, written, data[:_PIECE])
        if len(data) > _PIECE:  # the text after the last ids may change them
            del ids[bisect_right(ends, _PIECE - _NUM_UNSETTLED_BYTES) :]
        if not ids:
            return
        yield ids
        written, data = ids, data[ends[len(ids) - 1] :]


def _place_behind(prompt: Sequence[int], adapter: TokenizerAdapter) -> Place:
    is_text = [adapter.join([token_id]) is not None for token_id in prompt]
    if is_text and is_text[-1]:
        return Place.CONTINUATION
    return Place.AFTER_CONTROL if any(is_text) else Place.START


def read_predictions(prediction: Any, num_rows: int) -> list[Expected | None]:
    """Return each row's prediction; None or an empty one for a row without.

    Args:
        prediction: None; or text or target ids (a list of integers or a 1D tensor) for all rows; or a list with one of
            these per row, or a 2D tensor.
        num_rows: number of rows of the batch; with fewer entries than rows, each entry is repeated for consecutive
            rows, as with `num_return_sequences`.
    """
    value = _normalized(prediction)
    entries = value if isinstance(value, list) else [value]
    for entry in entries:
        if not isinstance(entry, str | tuple | None):
            raise OptionError(
                f"prediction={entry!r:.80} ({type(entry).__name__}) is not a prediction. Pass text, target ids (a list "
                "or a tensor of integers), or a list with one of these or None for each row."
            )
    if num_rows % len(entries):
        raise OptionError(
            f"prediction has {len(entries)} entries and the batch {num_rows} rows. Pass one entry per row: text, ids "
            "or None."
        )
    return [entry for entry in entries for _ in range(num_rows // len(entries))]


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


def check_ids(texts: Sequence[Expected | None], vocab_size: int) -> None:
    """Raise an `OptionError` for ids that the target lacks."""
    ends = (end for text in texts if isinstance(text, tuple) and text for end in (min(text), max(text)))
    wrong = next((token_id for token_id in ends if not 0 <= token_id < vocab_size), None)
    if wrong is not None:
        raise OptionError(f"prediction contains the id {wrong}; the target's ids are 0 to {vocab_size - 1}.")
