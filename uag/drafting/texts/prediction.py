"""Predictions: texts that the caller expects as output, as a free source of candidates.

A candidate's likelihood depends on its evidence: how long the output has followed the text, or which guess led it back
there (`uag.drafting.texts.follower`). Acceptance rates are learned over all calls, so guesses that are usually wrong
soon stop.
"""

from collections.abc import Sequence
from typing import Any

from uag.adapters import TokenizerAdapter
from uag.drafting.drafter import Ask
from uag.drafting.ranked import FreeSource
from uag.drafting.rates import AcceptanceRates, Evidence
from uag.drafting.texts.follower import Follower, Guess
from uag.drafting.texts.known_text import Expected, KnownText


class PredictionSource(FreeSource):
    """Candidates from the predictions for each row of one call.

    Args:
        predictions: each row's predictions, in the caller's order.
        adapter: the target's tokenizer; None if all predictions are ids.
        rates: acceptance rates of earlier calls, updated by this one.
    """

    strategy = "prediction"
    source = "prediction"
    max_proposed = 64

    def __init__(
        self, predictions: Sequence[Sequence[Expected]], adapter: TokenizerAdapter | None, rates: AcceptanceRates
    ) -> None:
        super().__init__(rates)
        self._predictions = predictions
        self._adapter = adapter
        self._rows: list[list[Follower]] = []
        self._guessed: list[tuple[Follower, Guess] | None] = []

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Any = None) -> None:  # noqa: ARG002
        """Start new sequences; an encoder's text is no prediction."""
        self._rows = [
            [Follower(KnownText.of(text, self._adapter, prompt), prompt) for text in texts]
            for prompt, texts in zip(prompts, self._predictions, strict=True)
        ]
        self._guessed = [None] * len(prompts)

    def _candidates(self, row: int, num: int, ask: Ask) -> tuple[list[int], list[Evidence]]:  # noqa: ARG002
        """Return candidates from the row's likeliest guess; ties go to the longest run, then to the first text."""
        guesses = [(follower, guess) for follower in self._rows[row] for guess in follower.guesses()]
        likeliest = max(guesses, key=lambda pair: (self._rates[pair[1].evidence], pair[1].run), default=None)
        self._guessed[row] = likeliest
        return ([], []) if likeliest is None else likeliest[0].continuation(likeliest[1], num)

    def _written(self, row: int, output_ids: Sequence[int], num_right: int) -> None:
        guessed = self._guessed[row]
        if guessed is not None and num_right:
            guessed[0].continue_at(guessed[1])
        self._guessed[row] = None
        for follower in self._rows[row]:
            follower.write(output_ids)

    def release(self) -> None:
        """Drop all sequences."""
        super().release()
        self._rows, self._guessed = [], []
