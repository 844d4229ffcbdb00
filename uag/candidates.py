"""Candidates for transformers' own `_assisted_decoding`: the same drafts, without uag's decoding loop.

`uag.install()` and `uag.Assistant` have their own loop, which supports batches and stop strings and keeps statistics.
This module is for code that builds on transformers' loop. That loop asks its model for a candidate generator, so a
subclass of the model can return uag's:

    class Target(CandidateGeneratorMixin, LlamaForCausalLM):
        pass

    target = Target.from_pretrained(...)
    target.generate(**inputs, assistant_model=draft, tokenizer=tokenizer, assistant_tokenizer=draft_tokenizer)
"""

from itertools import takewhile
from typing import Any

import torch
from transformers.generation import candidate_generator

from uag.decoding import Ranks
from uag.drafting import Ask, Drafter, Pairing
from uag.errors import UnsupportedError
from uag.hf import models, passes
from uag.lookahead import Lookahead
from uag.projection import Scoring
from uag.sampling import DraftRules

_NUM_CANDIDATE_TOKENS = 5
"""Default number of candidates. Increase to draft more aggressively; decrease to reduce wasted passes."""


class CandidateGenerator(candidate_generator.CandidateGenerator):
    """Proposes target ids for the single row of an assisted generation.

    It infers from each call's ids which candidates were accepted; all other new ids are the target's own. Ids that do
    not continue the previous ones start a new sequence.

    Args:
        drafter: the source of candidates (see `uag.drafting.Pairing`).
        target: the target model.
        generation_config: the config that transformers prepared for the call.
        logits_processor: the call's prepared processors; the draft applies the stateless ones.
        source_ids: [1, source_length] encoder input of an encoder-decoder target, else None.
        num_candidate_tokens: maximum number of candidates per round.
        min_confidence: stop when the draft's confidence in all candidates of a round falls below this, 0 to 1.

    Raises:
        UnsupportedError: the target is pipeline parallel, or its logits for a block differ from those of single tokens.
    """

    def __init__(
        self,
        drafter: Drafter,
        target: Any,
        generation_config: Any,
        logits_processor: Any = (),
        source_ids: torch.Tensor | None = None,
        *,
        num_candidate_tokens: int = _NUM_CANDIDATE_TOKENS,
        min_confidence: float = 0.0,
    ) -> None:
        if models.is_pipelined(target):
            raise UnsupportedError(
                f"The target {type(target).__name__!r} is pipeline parallel: ranks without the first layer cannot "
                "verify candidates. Call generate without an assistant."
            )
        if reason := models.candidates_refusal(target):
            raise UnsupportedError(
                f"The target {type(target).__name__!r} {reason}, so candidates cannot be verified. Call generate "
                "without an assistant."
            )
        self.drafter = drafter
        self._vocab_size = models.head_size(target)
        self._bound = models.max_positions(target)
        if generation_config.max_length is not None:
            self._bound = min(self._bound, generation_config.max_length - 1)  # the target writes the last id itself
        self._rules = DraftRules(logits_processor)
        self._lookahead = Lookahead(num_candidate_tokens, min_confidence)
        self._ranks = Ranks.of(target)
        self._source_ids = None if source_ids is None else source_ids.tolist()
        self._eos_ids = passes.eos_ids(generation_config)
        self._ids: list[int] = []
        self._candidates: list[int] = []

    def get_candidates(self, input_ids: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        """Return `input_ids` ([1, length], target ids) with candidates appended, and no logits.

        Without logits, transformers accepts candidates while they are what the target itself selects, even in sampling.
        """
        ids: list[int] = input_ids[0].tolist()
        self._follow(ids)
        self._candidates = self._ranks.broadcast(self._propose(len(ids)) if self._ranks.decides else [])
        candidates = torch.tensor([self._candidates], dtype=input_ids.dtype, device=input_ids.device)
        return torch.cat([input_ids, candidates], dim=-1), None

    def _follow(self, ids: list[int]) -> None:
        """Report the accepted candidates to the drafter, or start a new sequence."""
        if self._ids and ids[: len(self._ids)] == self._ids:
            written = ids[len(self._ids) :]
            pairs = zip(written, self._candidates, strict=False)
            num_accepted = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            self.drafter.accept(0, num_accepted, written)
        else:
            self.drafter.start([ids], self._source_ids)
        self._ids = ids

    def _propose(self, length: int) -> list[int]:
        budget = self._bound - length
        if budget <= 0:
            return []
        ask = Ask(
            [budget],
            self._lookahead.plan(),
            self._lookahead,
            self._scoring,
            self._eos_ids,
            self._rules.needs_normalizer,
            self._vocab_size,
        )
        ids = [proposal.target_id for proposal in ask.put_to(self.drafter)[0]]
        # The target writes nothing after an EOS.
        end = next((index for index, target_id in enumerate(ids) if target_id in self._eos_ids), len(ids))
        return ids[: end + 1]

    def _scoring(self, row: int, num_before: int) -> Scoring:  # noqa: ARG002 - there is one row
        warpers = self._rules.at(len(self._ids) + num_before)
        seen = frozenset(self._ids) if warpers.repetition_penalty != 1.0 else frozenset()
        return Scoring(self._vocab_size, warpers, seen=seen)

    def update_candidate_strategy(self, input_ids: torch.Tensor, scores: torch.Tensor, num_matches: int) -> None:
        """Do nothing: the next call's ids show which candidates were accepted."""


class CandidateGeneratorMixin:
    """A mixin that makes a model class's assisted generation draft with uag; list it before the model class."""

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
        if assistant_model is None:
            return super()._get_candidate_generator(  # type: ignore[misc]
                generation_config, input_ids, inputs_tensor, logits_processor, model_kwargs
            )
        drafter, _ = Pairing(assistant_model, target_tokenizer, assistant_tokenizer).drafter_for(self)
        has_source = self.config.is_encoder_decoder and not inputs_tensor.is_floating_point()  # type: ignore[attr-defined]
        config = getattr(assistant_model, "generation_config", None)
        return CandidateGenerator(
            drafter,
            self,
            generation_config,
            logits_processor,
            inputs_tensor if has_source else None,
            num_candidate_tokens=getattr(config, "num_assistant_tokens", None) or _NUM_CANDIDATE_TOKENS,
            min_confidence=getattr(config, "assistant_confidence_threshold", None) or 0.0,
        )
