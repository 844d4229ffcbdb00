"""Predictions that are still being made when a call starts, such as a tool call written by another model."""

from collections.abc import Callable, Sequence
from typing import Any

from uag.drafting.drafter import Ask
from uag.drafting.ranked import AcceptanceRates, Evidence, FreeSource


class LatePrediction(FreeSource):
    """Proposes nothing until a `concurrent.futures.Future` is done, then what the source of its prediction proposes.

    `make` returns that source. The error of a future ends the call; a cancelled one is no prediction.
    """

    strategy = source = "prediction"
    max_proposed = 64

    def __init__(self, future: Any, make: Callable[[Any], FreeSource], rates: AcceptanceRates) -> None:
        super().__init__(rates)
        self._future, self._make = future, make
        self._arrived: FreeSource | None = None

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Any = None) -> None:  # noqa: ARG002
        """Keep the prompts until the prediction has arrived."""
        self._prompts, self._outputs = prompts, [list[int]() for _ in prompts]

    def _candidates(self, row: int, num: int, ask: Ask) -> tuple[list[int], list[Evidence]]:
        if self._arrived is None and self._future.done():
            self._arrived = self._make(None if self._future.cancelled() else self._future.result())
            self._arrived.start(self._prompts)
            for each, output_ids in enumerate(self._outputs):
                self._arrived.accept(each, 0, output_ids)
        return ([], []) if self._arrived is None else self._arrived._candidates(row, num, ask)

    def _written(self, row: int, output_ids: Sequence[int], num_right: int) -> None:
        if self._arrived is None:
            self._outputs[row].extend(output_ids)
        else:
            self._arrived._written(row, output_ids, num_right)
