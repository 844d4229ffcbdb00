"""The target's passes, the rollback of its cache, and the number of candidates that its positions allow."""

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from uag.decoding.call import Call, Candidates, Outcome
from uag.decoding.rows import Rows
from uag.hf import blocks, foreign_code, models, passes
from uag.hf.cache import caches, static
from uag.hf.cache.recorded import RecordedTarget
from uag.hf.devices import synchronize
from uag.hf.positions import Cut
from uag.kernels import OwnKernels, Watch, one_call
from uag.lookahead import clock
from uag.stats import Stats

_log = logging.getLogger("uag")

TRUST = "if it treats each token independently, pass trust_changes=True to uag.Assistant or uag.install"

_MAX_REREAD = 16  # accepted tokens that a verifying pass recomputes after a restored state; more get their own pass


class Limits:
    """Limits the candidates of one call, before its first pass, to the target's positions, `cuts` and cache.

    Attributes:
        num_hidden: cache slots before the ids, from a prompt passed as embeddings or from the caller's cache.
        is_static: whether the cache is static.
        is_padded: whether passes are padded to the widths that are compiled.
        last_position: the largest position that a candidate may have.
    """

    def __init__(self, call: Call, cuts: Sequence[Cut]) -> None:
        ids = None if call.model.config.is_encoder_decoder else call.model_kwargs.get("position_ids")
        self._prompt_slots = max(call.input_ids.shape[1], 0 if ids is None else ids.shape[-1])
        self.num_hidden = self._prompt_slots - call.input_ids.shape[1]
        self._cut = min(cuts, key=lambda cut: cut.at, default=Cut(1 << 30, ""))
        self._max_positions = models.max_positions(call.model)
        self._max_slots = min(self._max_positions, self._cut.at)
        self.last_position = self._max_slots - 1
        cache = caches.cache_in(call.model_kwargs)
        self.is_static = static.is_static(cache)
        most = blocks.most_tokens(call.model)
        copied = blocks.most_copied(call.model)
        widths = most, copied and max(copied // call.input_ids.shape[0], 1), self.is_static and static.max_width(cache)
        self._max_width = min(width or 1 << 30 for width in widths)
        if self.is_static:
            self._max_slots = min(self._max_slots, static.capacity(cache))
        self.is_padded = self.is_static and (call.is_compiled or models.is_compiled(call.model))
        self.fixed_width = call.fixed_width

    def width(self, num_tokens: int) -> int:
        """Return the tokens per row of a pass over `num_tokens`, including padding."""
        if self.fixed_width is not None:
            return self.fixed_width
        return passes.padded(num_tokens) if self.is_padded else num_tokens

    def budget(self, length: int) -> int:
        """Return how many candidates, and their padding, may follow `length` ids of a row."""
        num_slots = length + self.num_hidden - 1
        width = min(self._max_slots - num_slots, self._max_width)
        if self.fixed_width is not None or not self.is_padded:
            return max(min(width, self.fixed_width or width), 1) - 1
        if num_slots < self._max_width:  # the pass in which a window overflows would need a graph of its own
            width = min(width, self._max_width - num_slots)
        return max((padded for padded in passes.WIDTHS if padded <= width), default=1) - 1

    def plain_reason(self, length: int | None = None) -> str:
        """Return why no candidate can be verified after `length` ids (None: after the prompt), or an empty string."""
        # The target's own token comes between the prompt and the first candidate.
        num_slots = self._prompt_slots + 1 if length is None else length + self.num_hidden
        if num_slots >= self._cut.at:
            return self._cut.why
        # A prompt beyond the positions needs no other passes: there is just no room for candidates.
        is_beyond = length is not None and num_slots > self._max_positions
        return f"has only {self._max_positions} positions" if is_beyond else ""

    def lockstep_reason(self, batch_size: int, max_length: int | None) -> str:
        """Return why rows must advance in lockstep until `max_length` ids (None: no limit), or an empty string."""
        # Rows that lag are padded with at most as many slots as the other rows write.
        is_before = max_length is not None and (max_length + self.num_hidden) * batch_size <= self._cut.at
        return "" if is_before else self._cut.why


class Target:
    """Runs the target for one call, and counts the passes in `stats`.

    Attributes:
        kwargs: keyword arguments of the next pass.
        kernels: what uag's kernels compute; in the prompt's pass, only products.
        last_s: seconds of the last pass.
        last_width: tokens per row of the last pass that verified, with those that it read again.
        has_compiled: whether the last pass compiled, recorded or was watched, so that its time predicts nothing.
        keeps_cache: whether the caller owns the cache, so that its final state must match plain decoding's.
    """

    def __init__(
        self,
        call: Call,
        stats: Stats,
        limits: Limits,
        kernels: OwnKernels,
        recorded: RecordedTarget | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.model = call.model
        self._recorded = recorded
        self.watch = watch or Watch()
        is_foreign = foreign_code.of_others(call.model) and not call.options.trust_changes
        self._foreign = passes.foreign_arguments(call.model, call.model_kwargs) if is_foreign else set[str]()
        self.may_verify = not self._foreign  # the first pass after the prompt shows whether it has such arguments
        self.kernels = kernels
        self.config = call.generation_config
        self.kwargs = dict(call.model_kwargs)  # advanced by every pass; the call's own stay as they are
        self.stats = stats
        self.is_encoder_decoder = bool(call.model.config.is_encoder_decoder)
        self.limits = limits
        self.keeps_cache = caches.outlives_call(self.cache)
        self.last_s, self.last_width = 0.0, 1
        self.has_compiled = False
        self._is_compiled = call.is_compiled
        self._outputs: Any = None  # of the last pass
        self._has_states = False
        self._states: Any = None
        self._num_reread = 0  # accepted tokens that the restored states do not contain
        self._windows: static.Windows = {}  # of a static cache, before the last pass
        self._width = 1  # tokens per row of the last pass, without reread ones
        self.rows: Sequence[int] = range(call.input_ids.shape[0])  # of the batch, in the cache

    @property
    def cache(self) -> Any:
        return caches.cache_in(self.kwargs)

    def verified(self) -> tuple[Any, dict[int, int]]:
        """Return the cache, and the place in it of each row; none if it has tokens whose ids are not known."""
        return self.cache, {} if self.limits.num_hidden else {row: place for place, row in enumerate(self.rows)}

    def budget(self, length: int) -> int:
        """Return how many candidates may follow `length` ids; record the reason if none may."""
        budget = self.limits.budget(length) if self.may_verify else 0
        if budget < 1 and (why := self.limits.plain_reason(length)):
            self.stats.fall_back(f"the target {why}, so the rest of this call falls back to plain decoding")
        return budget

    def read(self, rows: Rows) -> torch.Tensor:
        """Run the prompts without candidates, and return logits [batch_size, 1, vocab_size], float32."""
        ids, start_time = rows.buffer[:, : rows.prompt_length], clock.now()
        with self.kernels.reading():
            outputs = passes.prefill(self.model, ids, self.config, self.kwargs)
        logits = self.finish_pass(outputs, 1, ids.device, start_time)
        caches.record_past(self.cache)
        self._has_states = caches.has_recurrent_states(self.cache)
        self.limits.num_hidden = max(0, caches.length(self.cache) - rows.prompt_length)
        return logits

    def verify(self, rows: Rows, candidates: Candidates) -> torch.Tensor:
        """Run the last known tokens and the candidates of all rows, the same number for each row.

        Returns logits [batch_size, num_candidates + 1, vocab_size], float32.
        """
        self._width = width = self.limits.width(candidates.width)
        num_new = width - 1
        rows.write(candidates, num_new)
        before_s = self._catch_up(rows) if self._num_reread >= _MAX_REREAD else 0.0
        self.last_width = self._num_reread + width
        if self._has_states and num_new:
            self._states = caches.copy_states(self.cache)
        if self.limits.is_static and num_new:
            self._windows = static.copy_windows(self.cache, width)
        ids = rows.buffer[:, : rows.length(0) + num_new]
        start_time = clock.now()
        # Where states were put back, the accepted tokens that they do not contain come first in the pass again. Their
        # logits are known, so `run` returns those of the last known token and the candidates alone.
        kwargs = passes.extend_kwargs(self.kwargs, num_new, self.is_encoder_decoder)
        if self.limits.fixed_width is not None:
            passes.limit_positions(kwargs, width, self.limits.last_position)
        inputs = self.model.prepare_inputs_for_generation(
            ids, next_sequence_length=self.last_width, is_first_iteration=False, **kwargs
        )
        if self._foreign:
            self._look_for_foreign(inputs)
        return self.run(inputs, width, ids.device, start_time - before_s)[:, : candidates.width]

    def _look_for_foreign(self, inputs: dict[str, Any]) -> None:
        """Verify no candidates in this call if its passes have arguments that the target's trial lacks."""
        names = sorted(name for name in self._foreign if inputs.get(name) is not None)
        self._foreign = set()
        self.may_verify = not names
        if names:
            why = f"the target takes {', '.join(map(repr, names))} in every pass, which its trial lacks ({TRUST})"
            self.stats.fall_back(f"{why}, so this call falls back to plain decoding")

    def _catch_up(self, rows: Rows) -> float:
        """Run the accepted tokens that the states do not contain, and return the seconds of the pass."""
        start_time = clock.now()
        ids = rows.buffer[:, : rows.length(0) - 1]
        kwargs = passes.extend_kwargs(self.kwargs, -1, self.is_encoder_decoder)
        inputs = self.model.prepare_inputs_for_generation(ids, next_sequence_length=self._num_reread, **kwargs)
        self.run(inputs, 1, ids.device, start_time)
        self._num_reread = 0
        return self.last_s

    def finish(self, rows: Rows, is_returned: bool) -> None:
        """Bring a cache that the caller sees to plain decoding's final state."""
        if self._num_reread and (self.keeps_cache or is_returned):
            self._catch_up(rows)

    def undo(self) -> None:
        """Roll the cache back to before the last pass, which is then repeated without candidates."""
        if self._states is not None:
            self._states.put_back()
            self._states = None
            caches.crop(self.cache, self._num_reread + self._width)
            return
        self._crop(self._width)
        if self.limits.is_static:
            static.wipe(self.cache, caches.length(self.cache))

    def give_up(self) -> None:
        """Remove unverified candidates from the caller's cache after an error, unless it has a recurrent state."""
        if self.keeps_cache and not self._has_states:
            self._crop(self._width - 1)

    def _crop(self, num_tokens: int) -> None:
        if self.limits.is_static:
            static.crop(self.cache, num_tokens, self._windows, self._width)
        else:
            caches.crop(self.cache, num_tokens)
        self._windows = {}

    def run(self, inputs: dict[str, Any], width: int, device: torch.device, start_time: float) -> torch.Tensor:
        """Run one pass and return the last `width` logits of each row. The time includes its preparation."""
        if "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = width
        passes.drop_router_logits(self.model, inputs)
        self._outputs = None  # a long prompt's logits must not take memory during the next pass
        forward = self.model.get_compiled_call(self.config.compile_config) if self._is_compiled else self.model
        inputs["return_dict"] = True
        has_own_graph = self.limits.is_padded and width > 1  # plain decoding shares the graph of width 1
        if self._recorded is not None:
            outputs, self.has_compiled = self._recorded.run_prepared(inputs)
            if self._recorded.failure:
                self.stats.fall_back(f"the target's passes are not recorded: {self._recorded.failure}")
            return self.finish_pass(outputs, width, device, start_time)
        lengths = static.constant_lengths(self.cache) if self.limits.is_padded else nullcontext()
        decoder, outputs = self.kernels.decoder, None
        with lengths, self.kernels.running(), self.watch.over(width) as is_close:
            if decoder is not None:
                self.has_compiled, outputs = False, one_call.run(decoder, inputs, width)
            if outputs is None:
                outputs, self.has_compiled = passes.run(forward, inputs, has_own_graph=has_own_graph)
        logits = self.finish_pass(outputs, width, device, start_time)
        self.has_compiled = self.has_compiled or is_close
        return logits

    def finish_pass(self, outputs: Any, width: int, device: torch.device, start_time: float) -> torch.Tensor:
        """Count a pass and return its last `width` logits of each row, float32."""
        logits: torch.Tensor = outputs.logits[:, -width:].to(copy=True, dtype=torch.float32, device=device)
        synchronize(outputs.logits.device)
        self._outputs = outputs
        self.last_s = clock.now() - start_time
        self.stats.target_s += self.last_s
        if self.has_compiled:
            self.stats.compile_s += self.last_s
            _log.info("compiled the target's passes of %d tokens per row in %.1f s", width, self.last_s)
        self.stats.num_target_forwards += 1
        return logits

    def keep(self, outcome: Outcome) -> None:
        """Roll the cache back to the accepted tokens; the last written token is the next pass's first."""
        num_kept, width = outcome.num_written[0], self._width
        if not outcome.is_prefill:
            if self._has_states and num_kept < width:
                self._states.put_back()
                caches.crop(self.cache, self._num_reread + width)
                self._num_reread += num_kept
            else:
                self._crop(width - num_kept)
                self._num_reread = 0
        self._states = None
        self.kwargs = passes.next_kwargs(self.model, self._outputs, self.kwargs, num_kept)
