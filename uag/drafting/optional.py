"""Adds a call's free sources to its drafter: predictions, a memory, prompt lookup, and a grammar's forced tokens."""

from functools import partial
from typing import Any

from uag.adapters import TokenizerAdapter
from uag.drafting.drafter import Drafter
from uag.drafting.grammar import GrammarTokens
from uag.drafting.known.memory import Memory
from uag.drafting.known.prediction import PredictionSource
from uag.drafting.known.source import PRIORS, MemorySource, PromptLookup
from uag.drafting.models.open_draft import tokenizer_of
from uag.drafting.pairing import adapter_of
from uag.drafting.ranked import AcceptanceRates, FreeFirst, FreeSource
from uag.hf import models


class OptionalSources:
    """Adds free sources to the drafters of calls, and keeps their learned rates between calls.

    Args:
        looks_up: use prompt lookup beside a draft model, and beside the other sources; False with a custom drafter.
        memory: the memory of earlier calls; None for none.

    Attributes:
        rates: the learned rates of each kind of source.
    """

    def __init__(self, looks_up: bool, memory: Memory | None) -> None:
        self._looks_up, self._memory = looks_up, memory
        self.rates = {each: AcceptanceRates(PRIORS) for each in (PredictionSource, MemorySource, PromptLookup)}
        self._adapter: TokenizerAdapter | None = None  # kept, so that the next call need not build it again

    def drafter(
        self, other: Drafter | None, prediction: Any, model: Any, num_rows: int, tokenizer: Any, processors: Any = ()
    ) -> Drafter | None:
        """Return the drafter of a call, which uses these sources where they promise the most tokens per second.

        Args:
            other: the call's drafter without these sources; None if there is none.
            prediction: see `PredictionSource`; None for a call without predictions.
            model: the target.
            num_rows: number of rows of the batch.
            tokenizer: the target's tokenizer; None for the one saved with its weights.
            processors: the call's logits processors, whose grammars may force tokens beside another source.

        Raises:
            OptionError: the prediction is invalid, or has ids that the target lacks.
            PairError: the prediction is text, and no tokenizer is known; or the memory has ids of another tokenizer.
        """
        find_adapter = partial(self._find_adapter, model, tokenizer)
        sources: list[FreeSource] = []
        if prediction is not None:
            rates = self.rates[PredictionSource]
            of_call = PredictionSource(prediction, num_rows, models.head_size(model), find_adapter, rates)
            sources += [of_call] if of_call.may_propose else []
        if self._memory is not None:
            if (adapter := find_adapter()) is not None:
                self._memory.bind(adapter.fingerprint)
            sources.append(MemorySource(self._memory, self.rates[MemorySource]))
        if isinstance(other, PromptLookup):
            sources, other = [*sources, other], None
        elif self._looks_up and (sources or other is not None):
            sources.append(PromptLookup(self.rates[PromptLookup]))
        if sources or other is not None:
            sources += GrammarTokens.of(processors, num_rows, find_adapter)
        return FreeFirst(other, sources) if sources else other

    def _find_adapter(self, model: Any, tokenizer: Any) -> TokenizerAdapter | None:
        self._adapter = adapter_of(tokenizer_of(model) if tokenizer is None else tokenizer)
        return self._adapter
