"""Drafts inside vLLM, through its `custom_class` method.

vLLM creates one `Proposer` per worker, with its configuration, and calls it after each step for candidates of every
running request. This package does not import vLLM. See docs/integrations.md for usage and tested versions.
"""

import logging
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from uag import forks
from uag.adapters import from_tokenizer
from uag.errors import OptionError, UnsupportedError
from uag.loading import check_dtype, load_model, load_tokenizer
from uag.projection import TokenizerPair
from uag.proposal import Proposal
from uag.vllm.drafter import RequestDrafter, ServingStats

logger = logging.getLogger("vllm.uag")  # a child of vLLM's logger, whose handlers it uses

_MAX_PAUSE = 1024  # steps without drafting, at most, after repeated errors
_CONFIDENCE_WITHOUT_CLOCKS = 0.1  # `min_confidence` if ranks may not use their clocks


@dataclass(frozen=True)
class Settings:
    """The settings in vLLM's `additional_config={"uag": {...}}`.

    Attributes:
        draft: folder or hub name of the draft model; required.
        draft_tokenizer: folder or hub name of its tokenizer; None for the draft's own.
        tokenizer: folder or hub name of the target's tokenizer; None for the one that vLLM uses.
        dtype: of the draft's weights; None for float32 on a CPU and the checkpoint's own type elsewhere.
        device: of the draft; None for the target's.
        min_confidence: draft for a request while the probability that all its candidates are accepted is at least this;
            0 always drafts `num_speculative_tokens`. None drafts as many as pay off at the engine's measured speed.
        max_cached_tokens: slots of the draft's cache; more of them serve more or longer requests.
    """

    draft: str
    draft_tokenizer: str | None = None
    tokenizer: str | None = None
    dtype: str | None = None
    device: str | None = None
    min_confidence: float | None = None
    max_cached_tokens: int = 131_072

    @classmethod
    def read(cls, additional_config: Any) -> Self:
        """Read and check vLLM's `additional_config`."""
        settings = additional_config.get("uag") if isinstance(additional_config, Mapping) else None
        if not isinstance(settings, Mapping) or not settings.get("draft"):
            raise OptionError(
                f"uag.vllm.Proposer finds no draft: additional_config is {additional_config!r}. Pass "
                'additional_config={"uag": {"draft": "path/or/hub-name"}}, or on the command line '
                '--additional-config \'{"uag": {"draft": "path/or/hub-name"}}\'.'
            )
        known = {field.name: field for field in fields(cls)}
        if unknown := sorted(settings.keys() - known.keys()):
            raise OptionError(
                f"additional_config['uag'] has unknown settings: {', '.join(map(repr, unknown))}. "
                f"Known are {', '.join(known)}."
            )
        for name, value in settings.items():
            expected, is_right = "a string", isinstance(value, str)
            if name == "min_confidence":
                expected, is_right = "a number from 0 to 1", type(value) in (int, float) and 0 <= value <= 1
            elif name == "max_cached_tokens":
                expected, is_right = "an integer of at least 1", type(value) is int and value >= 1
            if not is_right and (value is not None or known[name].default is not None):
                raise OptionError(f"additional_config['uag'][{name!r}] is {value!r}, it must be {expected}.")
        check_dtype(settings.get("dtype"))
        return cls(**settings)


class Proposer:
    """The class that vLLM's `custom_class` method calls for candidates, with vLLM's configuration.

    Raises:
        OptionError: the settings are missing or invalid, or the target has no tokenizer.
        PairError: the draft's text can never become target tokens.
        UnsupportedError: the target keeps states that vLLM would lose.
    """

    def __init__(self, vllm_config: Any) -> None:
        self.settings = Settings.read(vllm_config.additional_config)
        model_config, parallel = vllm_config.model_config, vllm_config.parallel_config
        if model_config.is_hybrid or model_config.is_attention_free:
            raise UnsupportedError(
                "uag.vllm.Proposer cannot draft for a target with recurrent states or short convolutions: after a step "
                "without candidates, vLLM reads an outdated state and the output changes (vLLM issue 39273). "
                "Serve it without uag, or use a method that always drafts, like the model's own MTP head."
            )
        self.num_candidate_tokens = int(vllm_config.speculative_config.num_speculative_tokens)
        self.max_length = int(model_config.max_model_len)
        self.vocab_size = int(model_config.get_vocab_size())
        # vLLM broadcasts the candidates of a tensor-parallel group's first rank. With an external launcher every rank
        # schedules independently, so every rank must draft, and all must draft the same.
        has_own_schedule = parallel.distributed_executor_backend == "external_launcher"
        self.is_drafting = has_own_schedule or parallel.rank % parallel.tensor_parallel_size == 0
        if has_own_schedule and self.settings.min_confidence is None:  # the clocks of ranks differ
            self.settings = replace(self.settings, min_confidence=_CONFIDENCE_WITHOUT_CLOCKS)
        self._drafter: RequestDrafter | None = None
        self._pair: TokenizerPair | None = None
        if self.is_drafting:
            target = from_tokenizer(_target_tokenizer(model_config, self.settings.tokenizer))
            draft = from_tokenizer(load_tokenizer(self.settings.draft_tokenizer or self.settings.draft))
            self._pair = TokenizerPair.of(target, draft)  # refuses an unusable pair before any weights are read
        self.stats = ServingStats()
        self._num_to_skip = self._next_pause = 0

    def load_model(self, target_model: Any) -> None:
        """Load the draft on the target's device, or the default one; vLLM calls this after loading the target."""
        if self._pair is None:
            return
        settings = self.settings
        first = next(target_model.parameters(), None) if hasattr(target_model, "parameters") else None
        device = settings.device or (None if first is None else str(first.device))
        model = load_model(settings.draft, dtype=settings.dtype, device=device)
        self._drafter = RequestDrafter(
            model,
            self._pair,
            vocab_size=self.vocab_size,
            min_confidence=settings.min_confidence,
            max_cached_tokens=settings.max_cached_tokens,
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
        """Return candidates for every running request; vLLM calls this after each step.

        Args:
            sampled_token_ids: ids that each request generated in this step; empty while its prompt is being read.
            num_tokens_no_spec: [max_num_requests], number of ids of each request, prompt included.
            token_ids_cpu: [max_num_requests, max_model_len], target ids.
            slot_mappings: not used.

        An error would end vLLM's engine, so it is logged, counted in `stats.failures`, and no candidates are returned.
        """
        drafter, sampled = self._drafter, sampled_token_ids
        nothing: list[list[int]] = [[] for _ in range(len(sampled) if isinstance(sampled, Sized) else 0)]
        if drafter is None or self._num_to_skip > 0:
            self._num_to_skip = max(self._num_to_skip - 1, 0)
            return nothing
        try:
            sizes: list[int] = num_tokens_no_spec[: len(sampled)].tolist()
            contexts = [token_ids_cpu[row, :size] for row, size in enumerate(sizes)]
            # One position is reserved for the bonus token that the target generates after the accepted candidates.
            budgets = [min(self.num_candidate_tokens, self.max_length - size - 1) for size in sizes]
            limits = [max(budget, 0) if len(new) else 0 for budget, new in zip(budgets, sampled, strict=True)]
            proposals = drafter.propose(contexts, limits)
            candidates = [self._valid(row[:limit]) for row, limit in zip(proposals, limits, strict=True)]
            self._next_pause = 0
        except Exception as error:  # noqa: BLE001 - no error may end the engine
            forks.let_pass(error)
            self._fail(drafter, error)
            return nothing
        return candidates

    def _valid(self, proposals: Sequence[Proposal]) -> list[int]:
        ids = (int(proposal.target_id) for proposal in proposals)
        return list(takewhile(range(self.vocab_size).__contains__, ids))

    def _fail(self, drafter: RequestDrafter, error: Exception) -> None:
        """Drop every request, log each exception class once, and pause twice as long as last time."""
        name, failures = type(error).__name__, self.stats.failures
        if name not in failures:
            logger.warning(
                "uag could not draft and proposed nothing; further errors of this kind are counted, not logged",
                exc_info=error,
            )
        failures[name] = failures.get(name, 0) + 1
        drafter.reset()
        self._num_to_skip = self._next_pause
        self._next_pause = min(2 * self._next_pause + 1, _MAX_PAUSE)


def _target_tokenizer(model_config: Any, name: str | None) -> Any:
    if name is not None:
        return load_tokenizer(name)
    if not model_config.tokenizer:
        raise OptionError(
            "vLLM has no tokenizer for the target. Pass its name: "
            'additional_config={"uag": {"draft": ..., "tokenizer": "path/or/hub-name"}}.'
        )
    return load_tokenizer(
        model_config.tokenizer,
        revision=model_config.tokenizer_revision,
        trust_remote_code=model_config.trust_remote_code,
    )
