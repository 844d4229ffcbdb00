"""What one call of an assistant uses at a time, so that calls that overlap share a draft and learn separately."""

from functools import partial
from typing import Any

from uag.adapters import TokenizerAdapter
from uag.drafting.drafter import Drafter
from uag.drafting.grammar import GrammarTokens
from uag.drafting.known.memory import Memory
from uag.drafting.known.prediction import PredictionSource
from uag.drafting.known.source import PRIORS, MemorySource, PromptLookup
from uag.drafting.models.open_draft import tokenizer_of
from uag.drafting.models.own_copy import CopyPairing
from uag.drafting.pairing import Pairing, adapter_of
from uag.drafting.ranked import AcceptanceRates, FreeFirst, FreeSource
from uag.errors import PairError
from uag.hf import models
from uag.lookahead import Lookahead
from uag.options import Options


class Session:
    """A drafter with its caches, and what its calls have taught it. `call` is the call that uses it, or None.

    `source` is a draft model with its drafters, or a drafter for all targets; None for free sources alone. Rejection
    sampling with a drafter that cannot provide its probabilities raises a `PairError`.
    """

    def __init__(self, source: Pairing | CopyPairing | Drafter | None, options: Options, memory: Memory | None) -> None:
        self.call: object = None
        self.pairing = None if source is None or isinstance(source, Drafter) else source
        self.drafter = source if source is None or isinstance(source, Drafter) else source.for_all
        self.lookahead = Lookahead(options.num_candidate_tokens, options.min_confidence)
        self.rates = {each: AcceptanceRates(PRIORS) for each in (PredictionSource, MemorySource, PromptLookup)}
        self._memory, self._is_rejection = memory, options.sampling == "rejection"
        is_adaptive = options.num_candidate_tokens is None
        self._looks_up = options.prompt_lookup and is_adaptive and not isinstance(source, Drafter)
        self._adapter: TokenizerAdapter | None = None  # kept, so that the next call need not build it again
        self._check_sampling(self.drafter)

    def drafter_for(self, model: Any) -> tuple[Drafter | None, bool]:
        """Return a target's drafter or None, and whether shared ids are only assumed; see `Pairing.drafter_for`."""
        if self.pairing is None:
            return self.drafter, False
        drafter, is_assumed = self.pairing.drafter_for(model)
        self._check_sampling(drafter)
        return drafter, is_assumed

    def _check_sampling(self, drafter: Drafter | None) -> None:
        if self._is_rejection and drafter is not None and drafter.strategy == "cross-tokenizer":
            raise PairError(
                "sampling='rejection' needs the draft's exact probability of every target token, which a draft with "
                "another tokenizer cannot provide. Use the default sampling='shared-noise', exact for any draft."
            )

    def with_free_sources(
        self, other: Drafter | None, prediction: Any, model: Any, num_rows: int, tokenizer: Any, processors: Any
    ) -> Drafter | None:
        """Return the drafter of a call, which uses free sources where they promise the most tokens per second.

        The grammars of the call's logits processors may force tokens beside another source.
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
