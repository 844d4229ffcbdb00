"""Adds a call's free sources to its drafter: its predictions, the assistant's memory, and prompt lookup."""

import copy
from typing import Any

from uag.adapters import TokenizerAdapter
from uag.drafting.drafter import Drafter
from uag.drafting.late import LatePrediction
from uag.drafting.lookup import PromptLookup
from uag.drafting.memory.memory import Memory
from uag.drafting.memory.source import PRIORS as MEMORY_PRIORS
from uag.drafting.memory.source import MemorySource
from uag.drafting.models.opening import tokenizer_of
from uag.drafting.pairing import adapter_of
from uag.drafting.ranked import AcceptanceRates, FreeFirst, FreeSource
from uag.drafting.texts.follower import PRIORS as PREDICTION_PRIORS
from uag.drafting.texts.follower import Expected
from uag.drafting.texts.prediction import PredictionSource, check_ids, read_predictions
from uag.errors import PairError
from uag.hf import models


class OptionalSources:
    """Adds free sources to the drafters of calls, and keeps their learned rates between calls.

    Args:
        looks_up: use prompt lookup beside a draft model, and beside the other sources; False with a custom drafter.
        memory: the memory of earlier calls; None for none.
    """

    def __init__(self, looks_up: bool, memory: Memory | None) -> None:
        self._memory = memory
        self._prediction_rates = AcceptanceRates(PREDICTION_PRIORS)
        self._memory_rates = AcceptanceRates(MEMORY_PRIORS)
        self._lookup = PromptLookup() if looks_up else None
        self._adapter: TokenizerAdapter | None = None  # kept, so that the next call need not build it again

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copying and pickling. A copy may run at the same time: it learns and looks up alone."""
        rates = {name: copy.copy(getattr(self, name)) for name in ("_prediction_rates", "_memory_rates")}
        return vars(self) | rates | {"_adapter": None, "_lookup": None if self._lookup is None else PromptLookup()}

    def drafter(
        self, other: Drafter | None, prediction: Any, model: Any, num_rows: int, tokenizer: Any
    ) -> Drafter | None:
        """Return the drafter of a call, which uses these sources where they promise the most tokens per second.

        Args:
            other: the call's drafter without these sources; None if there is none.
            prediction: see `read_predictions`, or a future of it; None for a call without predictions.
            model: the target.
            num_rows: number of rows of the batch.
            tokenizer: the target's tokenizer; None for the one saved with its weights.

        Raises:
            OptionError: the prediction is invalid, or has ids that the target lacks.
            PairError: the prediction is text, and no tokenizer is known; or the memory has ids of another tokenizer.
        """
        is_late = callable(getattr(prediction, "done", None))
        predictions = read_predictions(None if is_late else prediction, num_rows)
        if is_late or _has_text(predictions) or self._memory is not None:
            self._adapter = adapter_of(tokenizer_of(model) if tokenizer is None else tokenizer)
        sources: list[FreeSource] = []
        if is_late:
            late = LatePrediction(
                prediction,
                lambda value: self._prediction_source(model, read_predictions(value, num_rows)),
                self._prediction_rates,
            )
            sources.append(late)
        elif any(predictions):
            sources.append(self._prediction_source(model, predictions))
        if self._memory is not None:
            if self._adapter is not None:
                self._memory.bind(self._adapter.fingerprint)
            sources.append(MemorySource(self._memory, self._memory_rates))
        if isinstance(other, PromptLookup):
            return FreeFirst(None, [*sources, other])
        if self._lookup is not None and (sources or other is not None):
            sources.append(self._lookup)
        return FreeFirst(other, sources) if sources else other

    def _prediction_source(self, model: Any, predictions: list[list[Expected]]) -> PredictionSource:
        if self._adapter is None and _has_text(predictions):
            raise PairError(
                "A text prediction requires the target's tokenizer. Pass it: uag.Assistant(draft, "
                "draft_tokenizer, tokenizer), or model.generate(..., tokenizer=tokenizer); or pass ids instead."
            )
        check_ids([text for of_row in predictions for text in of_row], models.head_size(model))
        return PredictionSource(predictions, self._adapter, self._prediction_rates)


def _has_text(predictions: list[list[Expected]]) -> bool:
    return any(isinstance(text, str) for of_row in predictions for text in of_row)
