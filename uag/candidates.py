"""uag's candidates in transformers' own assisted decoding.

That loop asks its model for a `CandidateGenerator`, so a subclass of the model can return uag's:

    class Target(CandidateGeneratorMixin, LlamaForCausalLM):
        pass

    target = Target.from_pretrained(...)
    target.generate(**inputs, assistant_model=draft, tokenizer=tokenizer, assistant_tokenizer=draft_tokenizer)
"""

import math
import weakref
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from transformers.generation import candidate_generator

from uag.decoding import Call, Ranks, examine
from uag.drafting import Ask, Drafter, Pairing, adapter_of
from uag.errors import OptionError
from uag.gguf import GgufDraft
from uag.hf import passes
from uag.hf.cache import caches
from uag.kernels import switched
from uag.lookahead import Lookahead
from uag.options import Options
from uag.projection import Scoring
from uag.proposal import num_equal
from uag.sampling import DraftRules
from uag.stats import Stats, remember

_NUM_CANDIDATE_TOKENS = 5  # default number of candidates

_idle: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, list[tuple[Any, Any, Drafter]]]]
_idle = weakref.WeakKeyDictionary()
"""By draft and target, the drafters of calls that have ended, with the adapters of the tokenizers."""

_criteria: ContextVar[Any] = ContextVar("criteria", default=())
"""The stopping criteria of the current call of a `CandidateGeneratorMixin`."""

_OF_ASSISTED_DECODING = ("assistant_model", "assistant_tokenizer", "tokenizer")
"""Arguments of transformers' loop for assisted decoding that the one for plain decoding lacks."""


class CandidateGenerator(candidate_generator.CandidateGenerator):
    """Proposes target ids for the single row of an assisted generation.

    It infers from each call's ids which candidates were accepted; all other new ids are the target's own. Ids that do
    not continue the previous ones start a new sequence. Calls that uag's own loop would decode plainly get no
    candidates, for the reason in `uag.last_stats(model).fallbacks`. The drafter is released with this object.

    Args:
        drafter: the source of candidates (see `uag.drafting.Pairing`).
        call: the call, as transformers prepared it; the draft applies the stateless processors.
        num_candidate_tokens: maximum number of candidates per round.
        min_confidence: stop when the draft's confidence in all candidates of a round falls below this, 0 to 1.
    """

    def __init__(
        self,
        drafter: Drafter,
        call: Call,
        *,
        num_candidate_tokens: int = _NUM_CANDIDATE_TOKENS,
        min_confidence: float = 0.0,
    ) -> None:
        self.drafter = drafter
        self._end = weakref.finalize(self, drafter.release)  # transformers' loop does not say when it ends
        self._end.atexit = False
        with switched(is_on=False):  # transformers' loop runs the target's passes
            verdict = examine(call)
        self._eos_ids = passes.eos_ids(call.generation_config)
        reason = verdict.fallback  # transformers shows processors the steps after a rejected candidate, too
        if call.stopping.strings or call.stopping.eos_ids - self._eos_ids:
            reason = reason or "transformers' loop would pass over stop strings and EOS criteria inside a block"
        self._limits = None if reason else verdict.limits
        if reason:
            remember(call.model, Stats(fallbacks=[reason]))
        self._call, self._ranks, self._rules = call, Ranks.of(call.model), DraftRules(call.logits_processor)
        self._lookahead = Lookahead(num_candidate_tokens, min_confidence)
        self._ids: list[int] = []
        self._candidates: list[int] = []

    def get_candidates(self, input_ids: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        """Return `input_ids` ([1, length], target ids) with candidates appended, and no logits.

        Without logits, transformers accepts candidates while they are what the target itself selects, even in sampling.
        """
        self._candidates = self._ranks.broadcast(self._propose(input_ids[0].tolist()) if self._ranks.decides else [])
        return torch.cat([input_ids, input_ids.new_tensor([self._candidates])], dim=-1), None

    def _propose(self, ids: list[int]) -> list[int]:
        if self._limits is None:
            return []
        if self._ids and ids[: len(self._ids)] == self._ids:
            written = ids[len(self._ids) :]
            self.drafter.accept(0, num_equal(written, self._candidates), written)
        else:
            source_ids = self._call.source_ids
            self.drafter.start([ids], None if source_ids is None else source_ids.tolist())
        self._ids = ids
        budget = self._limits.budget(len(ids))
        for limit in (self._call.generation_config.max_length, self._call.stopping.max_length):
            if limit is not None and limit < math.inf:  # the target writes the last id itself
                budget = min(budget, math.ceil(limit) - 1 - len(ids))
        if budget <= 0 or len(ids) == self._call.input_ids.shape[1]:  # the prompt's own pass has no candidates
            return []
        request = ([budget], self._lookahead.plan(), self._lookahead, self._scoring)
        ask = Ask(*request, self._eos_ids, self._rules.needs_normalizer, self._call.vocab_size)
        proposed = [proposal.target_id for proposal in ask.put_to(self.drafter)[0]]
        # The target writes nothing after an EOS.
        end = next((index for index, target_id in enumerate(proposed) if target_id in self._eos_ids), len(proposed))
        return proposed[: end + 1]

    def _scoring(self, row: int, num_before: int) -> Scoring:  # noqa: ARG002 - there is one row
        warpers = self._rules.at(len(self._ids) + num_before)
        seen = frozenset(self._ids) if warpers.repetition_penalty != 1.0 else frozenset()
        return Scoring(self._call.vocab_size, warpers, seen=seen)

    def update_candidate_strategy(self, input_ids: torch.Tensor, scores: torch.Tensor, num_matches: int) -> None:
        """Do nothing: the next call's ids show which candidates were accepted."""


def _take(target: Any, draft: Any, tokenizer: Any, draft_tokenizer: Any) -> Drafter:
    """Return a drafter that no other call uses: that of an ended call if the tokenizers are the same."""
    idle = _idle.setdefault(draft, weakref.WeakKeyDictionary()).setdefault(target, [])
    adapters = adapter_of(tokenizer), adapter_of(draft_tokenizer)
    while idle:
        with suppress(IndexError):  # another thread took it
            of_target, of_draft, drafter = idle.pop()
            if of_target is adapters[0] and of_draft is adapters[1]:
                return drafter
    # A strong reference would keep the draft, which is the key, alive forever.
    drafter, _ = Pairing(weakref.proxy(draft), tokenizer, draft_tokenizer).drafter_for(target)
    return drafter


def _give_back(idle: list[tuple[Any, Any, Drafter]], known: tuple[Any, Any, Drafter]) -> None:
    known[-1].release()
    idle.append(known)


class CandidateGeneratorMixin:
    """A mixin that makes a model class's assisted generation draft with uag; list it before the model class."""

    def _assisted_decoding(
        self, input_ids: torch.Tensor, *, stopping_criteria: Any, inputs_tensor: Any = None, **kwargs: Any
    ) -> Any:
        """Note the criteria, which transformers does not pass on, and decode plainly if the cache is filled."""
        if caches.length(caches.cache_in(kwargs)):
            remember(self, Stats(fallbacks=["transformers' assisted decoding reads the text of a filled cache again"]))
            plain = {name: value for name, value in kwargs.items() if name not in _OF_ASSISTED_DECODING}
            return passes.sample_plainly(self, input_ids, stopping_criteria=stopping_criteria, **plain)
        kwargs |= {"stopping_criteria": stopping_criteria, "inputs_tensor": inputs_tensor}
        before = _criteria.get()
        try:
            _criteria.set(stopping_criteria)
            return super()._assisted_decoding(input_ids, **kwargs)  # type: ignore[misc]
        finally:
            _criteria.set(before)

    def _get_candidate_generator(
        self,
        generation_config: Any,
        input_ids: torch.Tensor,
        inputs_tensor: torch.Tensor,
        logits_processor: Any,
        model_kwargs: dict[str, Any],
        assistant_model: Any = None,
        target_tokenizer: Any = None,
        assistant_tokenizer: Any = None,
    ) -> Any:
        """Return uag's candidate generator if there is a draft model, else transformers' own."""
        prepared = generation_config, input_ids, inputs_tensor, logits_processor, model_kwargs
        if assistant_model is None:
            return super()._get_candidate_generator(*prepared)  # type: ignore[misc]
        if not isinstance(assistant_model, torch.nn.Module | GgufDraft):
            raise OptionError(
                f"assistant_model={assistant_model!r:.80} must be a model, such as from_pretrained() returns."
            )
        drafter = _take(self, assistant_model, target_tokenizer, assistant_tokenizer)
        has_source = self.config.is_encoder_decoder and not inputs_tensor.is_floating_point()  # type: ignore[attr-defined]
        options = Options(sampling="rejection")  # transformers draws once per round, not once per step
        call = Call(
            *(self, input_ids, logits_processor, _criteria.get(), generation_config, model_kwargs),
            source_ids=inputs_tensor if has_source else None,
            options=options,
        )
        config = getattr(assistant_model, "generation_config", None)
        generator = CandidateGenerator(
            drafter,
            call,
            num_candidate_tokens=getattr(config, "num_assistant_tokens", None) or _NUM_CANDIDATE_TOKENS,
            min_confidence=getattr(config, "assistant_confidence_threshold", None) or 0.0,
        )
        known = adapter_of(target_tokenizer), adapter_of(assistant_tokenizer), drafter
        generator._end.detach()
        give_back = partial(_give_back, _idle[assistant_model][self], known)
        generator._end = weakref.finalize(generator, give_back)
        generator._end.atexit = False
        return generator

    def _validate_generation_mode(self, mode: Any, config: Any, options: dict[str, Any]) -> None:
        """Let uag check the pair: transformers refuses an `assistant_tokenizer` if the vocabularies have one size."""
        others = {name: value for name, value in options.items() if not name.startswith("assistant_")}
        super()._validate_generation_mode(mode, config, others)  # type: ignore[misc]
