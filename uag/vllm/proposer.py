"""Drafts inside vLLM, through its `custom_class` proposer.

vLLM makes one `Proposer` per worker and asks it, after each step, for candidates of every running request. Nothing here
imports vLLM: it hands over its configuration and its buffers. docs/vllm.md says how to use it, and which versions were
tried.
"""

import logging
import time
from collections.abc import Sequence, Sized
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from uag.adapters import from_tokenizer
from uag.errors import OptionError
from uag.loading import load_model, load_tokenizer
from uag.projection import TokenizerPair
from uag.proposal import Proposal
from uag.vllm.drafter import RequestDrafter
from uag.vllm.settings import Settings
from uag.vllm.stats import ServingStats

logger = logging.getLogger("vllm.uag")  # below vLLM's own logger, so that its lines stand beside vLLM's

_LONGEST_PAUSE = 1024
"""Steps without drafting after repeated errors, at most: longer hides a lasting error, and a passing one, too."""

_CONFIDENCE_WITHOUT_CLOCKS = 0.2
"""Stands for `min_confidence` where ranks may not go by their clocks: lower drafts further, at more risk."""


class Proposer:
    """What vLLM's `custom_class` method asks for candidates.

    Args:
        vllm_config: vLLM's configuration; `speculative_config`, `model_config`, `parallel_config` and
            `additional_config` are read.

    Attributes:
        stats: what was drafted so far.

    Raises:
        OptionError: the settings are missing or wrong, or the target's tokenizer cannot be told.
        PairError: the draft's text can never become target tokens.
        TokenizerError: a tokenizer that no adapter serves.
        OSError: a folder or hub name that holds no tokenizer.
    """

    def __init__(self, vllm_config: Any) -> None:
        self.settings = Settings.read(vllm_config.additional_config)
        model_config, parallel = vllm_config.model_config, vllm_config.parallel_config
        self.num_candidate_tokens = int(vllm_config.speculative_config.num_speculative_tokens)
        self.max_length = int(model_config.max_model_len)
        self.vocab_size = int(model_config.get_vocab_size())
        # vLLM takes the candidates of the first rank of a tensor-parallel group and sends them to the others. With an
        # external launcher every rank schedules for itself, so every rank must draft, and drafts the same.
        self.has_own_schedule = parallel.distributed_executor_backend == "external_launcher"
        self.is_drafting = self.has_own_schedule or parallel.rank % parallel.tensor_parallel_size == 0
        self._drafter: RequestDrafter | None = None
        self._pair: TokenizerPair | None = None
        if self.is_drafting:
            target = from_tokenizer(_target_tokenizer(model_config, self.settings.tokenizer))
            draft = from_tokenizer(load_tokenizer(self.settings.draft_tokenizer or self.settings.draft))
            self._pair = TokenizerPair.of(target, draft)  # refuses a pair that cannot work before any weights are read
        self.stats = ServingStats()
        self._pause = self._longest_pause = 0
        self._logged = (time.monotonic(), self.stats)

    def load_model(self, target_model: Any) -> None:
        """Load the draft; called by vLLM when the target is loaded.

        Args:
            target_model: vLLM's model; only where it lies is asked. None for any device.

        Raises:
            OptionError: a device that torch does not know, or a folder of something else than a language model.
            UnsupportedError: the draft cannot draft.
            OSError: a folder or hub name that holds no model.
        """
        if self._pair is None:
            return
        settings = self.settings
        if settings.min_confidence is None and self.has_own_schedule:
            # All ranks must draft the same, and their clocks differ.
            settings = replace(settings, min_confidence=_CONFIDENCE_WITHOUT_CLOCKS)
        first = next(target_model.parameters(), None) if hasattr(target_model, "parameters") else None
        device = settings.device or (None if first is None else str(first.device))
        model = load_model(settings.draft, dtype=settings.dtype, device=device)
        self._drafter = RequestDrafter(
            model, self._pair, settings, vocab_size=self.vocab_size, most_candidates=self.num_candidate_tokens
        )
        self.stats = self._drafter.stats
        logger.info(
            "uag drafts with %s (%s, %s), at most %d candidates per step",
            settings.draft, self._drafter.strategy, model.device, self.num_candidate_tokens,
        )  # fmt: skip

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: npt.NDArray[np.int32],
        slot_mappings: Any = None,  # noqa: ARG002 - part of vLLM's call
    ) -> list[list[int]]:
        """Return candidates for every running request; called by vLLM after each step.

        Args:
            sampled_token_ids: what each request wrote in this step; empty for one whose prompt is not read yet.
            num_tokens_no_spec: [max_num_requests], ids of each request so far, prompt included.
            token_ids_cpu: [max_num_requests, max_model_len], those ids.
            slot_mappings: not used.

        Returns:
            Target ids for each entry of `sampled_token_ids`: at most `num_speculative_tokens`, all in the target's
            head, none that would not fit `max_model_len`. Nothing is raised: an error is logged, counted in
            `stats.failures` and answered with no candidates, since vLLM would not survive it.
        """
        drafter, sampled = self._drafter, sampled_token_ids
        nothing: list[list[int]] = [[] for _ in range(len(sampled) if isinstance(sampled, Sized) else 0)]
        if drafter is None or self._pause > 0:
            self._pause = max(self._pause - 1, 0)
            return nothing
        try:
            sizes = [int(num_tokens_no_spec[row]) for row in range(len(sampled))]
            contexts = [token_ids_cpu[row, :size] for row, size in enumerate(sizes)]
            # One place is kept for the token that the target writes itself behind the last accepted candidate.
            rooms = [min(self.num_candidate_tokens, self.max_length - size - 1) for size in sizes]
            limits = [max(room, 0) if len(new) else 0 for room, new in zip(rooms, sampled, strict=True)]
            proposals = drafter.propose(contexts, limits)
            candidates = [self._valid(row[:limit]) for row, limit in zip(proposals, limits, strict=True)]
            self._longest_pause = 0
            self._log()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the engine
            self._fail(drafter, error)
            return nothing
        return candidates

    def _valid(self, proposals: Sequence[Proposal]) -> list[int]:
        """Return the ids up to the first that the target's head lacks."""
        ids = (int(proposal.target_id) for proposal in proposals)
        return list(takewhile(range(self.vocab_size).__contains__, ids))

    def _fail(self, drafter: RequestDrafter, error: Exception) -> None:
        """Forget every request, log each kind of error once, and pause twice as long as the last time."""
        kind, failures = type(error).__name__, self.stats.failures
        if kind not in failures:
            logger.warning(
                "uag could not draft and proposed nothing; further errors of this kind are counted, not logged",
                exc_info=error,
            )
        failures[kind] = failures.get(kind, 0) + 1
        drafter.reset()
        self._pause = self._longest_pause
        self._longest_pause = min(2 * self._longest_pause + 1, _LONGEST_PAUSE)

    def _log(self) -> None:
        """Log what was drafted since the last line, at most once per interval."""
        (then, before), now, stats = self._logged, time.monotonic(), self.stats
        recent = stats.since(before)
        interval = self.settings.log_interval_s
        if not interval or now - then < interval or not recent.num_row_rounds + recent.num_paused_rounds:
            return
        self._logged = (now, replace(stats))
        num_rounds = max(recent.num_row_rounds, 1)
        logger.info(
            "uag: mean acceptance length: %.2f, drafted: %.2f per request and step, acceptance rate: %.1f%%, "
            "time spent drafting: %.1f%%, steps without drafting because it would not pay: %d, requests begun: %d, "
            "parked: %d, failures: %d",
            1.0 + recent.num_accepted_tokens / num_rounds,
            recent.num_candidate_tokens / num_rounds,
            100.0 * recent.num_accepted_tokens / max(recent.num_candidate_tokens, 1),
            100.0 * recent.draft_s / (now - then),
            recent.num_paused_rounds,
            recent.num_begun,
            recent.num_parked,
            sum(stats.failures.values()),
        )


def _target_tokenizer(model_config: Any, name: str | None) -> Any:
    """Load the target's tokenizer.

    Raises:
        OptionError: vLLM runs without one, and none was named.
    """
    if name is not None:
        return load_tokenizer(name)
    if not model_config.tokenizer:
        raise OptionError(
            "vLLM has no tokenizer for the target. Name it: "
            'additional_config={"uag": {"draft": ..., "tokenizer": "path/or/hub-name"}}.'
        )
    return load_tokenizer(
        model_config.tokenizer,
        revision=model_config.tokenizer_revision,
        trust_remote_code=model_config.trust_remote_code,
    )
