"""The target's passes, and putting its cache back behind what was accepted.

Here every row keeps the same number of tokens of a block; `uag.decoding.ragged` is for rows of different length.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch

from uag.decoding.call import Call
from uag.decoding.candidates import Candidates, Outcome
from uag.decoding.limits import Limits
from uag.decoding.rows import Rows
from uag.hf import models, passes
from uag.hf.cache import caches
from uag.hf.cache.growing import end_buffering
from uag.hf.positions import Cut
from uag.stats import Stats

_MOST_AGAIN = 16
"""Accepted tokens that a pass reads once more behind a state brought back; with more, a pass of their own comes first.

Higher makes passes wider, lower makes more of them.
"""


class Target:
    """Runs the target for one call, whose `model_kwargs` belong to this object from here on.

    Args:
        call: the call.
        stats: counts the passes.
        cuts: lengths at which the target's forward changes.

    Attributes:
        kwargs: what goes to the next pass.
        outputs: of the last pass.
        last_s: its seconds.
        limits: how far blocks may reach.
        keeps_cache: the cache is the caller's: it must end as plain decoding leaves it.
    """

    def __init__(self, call: Call, stats: Stats, cuts: Sequence[Cut]) -> None:
        self.model = call.model
        self.config = call.generation_config
        self.kwargs = call.model_kwargs
        self.stats = stats
        self.is_encoder_decoder = bool(call.model.config.is_encoder_decoder)
        self.limits = Limits(call, cuts)
        self.keeps_cache = caches.outlives_call(self.cache)
        self.last_s = 0.0
        self.outputs: Any = None
        self._is_first = True
        self._cross_layers = models.cross_layers(call.model)
        self._has_states = False
        self._states: Any = None
        self._num_again = 0  # accepted tokens behind the states that were brought back

    @property
    def cache(self) -> Any:
        """The cache, under whatever name the model gives it."""
        return caches.cache_in(self.kwargs)

    def budget(self, length: int) -> int:
        """Return the candidates that the model's positions leave behind `length` ids; records why there are none."""
        budget = self.limits.budget(length, self._is_first)
        if budget < 1:
            self.limits.note(self.stats, length)
        return budget

    def image_layers(self) -> frozenset[int]:
        """Return the places of layers whose keys are an image's; where there is none, such layers do not run."""
        return frozenset(place for place in self._cross_layers if self.cache.get_seq_length(place))

    # ------------------------------------------------------------------ passes

    def read(self, rows: Rows, candidates: Candidates) -> torch.Tensor:
        """Run the prompts, with candidates behind them or none; returns logits as `verify` does."""
        if candidates.width > 1:
            caches.record_past(self.cache)
            return self.verify(rows, candidates)
        ids = rows.buffer[:, : rows.prompt_length]
        began = time.perf_counter()
        outputs = passes.prefill(self.model, ids, self.config, self.kwargs)
        logits = self.finish_pass(outputs, 1, ids.device, began)
        self._is_first = False
        caches.record_past(self.cache)
        self._has_states = caches.has_recurrent_states(self.cache)
        self.limits.num_hidden = max(0, caches.length(self.cache) - rows.prompt_length)
        return logits

    def verify(self, rows: Rows, candidates: Candidates) -> torch.Tensor:
        """Run everything so far and the candidates of all rows, as many for each.

        Returns:
            Logits [batch_size, num_candidates + 1, vocab_size], float32.
        """
        rows.write(candidates)
        num_new = candidates.width - 1
        before_s = 0.0
        if self._num_again >= _MOST_AGAIN:
            before_s = self._catch_up(rows)
        if self._has_states and num_new:
            self._states = caches.copy_states(self.cache)
        ids = rows.buffer[:, : rows.length(0) + num_new]
        began = time.perf_counter()
        inputs = self.model.prepare_inputs_for_generation(
            ids,
            next_sequence_length=None if self._is_first else self._num_again + num_new + 1,
            is_first_iteration=self._is_first,
            **passes.extend_kwargs(self.kwargs, num_new, self.is_encoder_decoder),
        )
        passes.cut_images(inputs)
        if not self._is_first:
            passes.drop_media(inputs)
        return self.run(inputs, num_new + 1, ids.device, began - before_s)

    def _catch_up(self, rows: Rows) -> float:
        """Read the accepted tokens behind the states, and no candidate; returns the pass's seconds."""
        began = time.perf_counter()
        ids = rows.buffer[:, : rows.length(0) - 1]
        kwargs = passes.shorten_kwargs(self.kwargs, 1, self.is_encoder_decoder)
        inputs = self.model.prepare_inputs_for_generation(ids, next_sequence_length=self._num_again, **kwargs)
        self.run(inputs, 1, ids.device, began)
        self._num_again = 0
        return self.last_s

    def finish(self, rows: Rows, is_returned: bool) -> None:
        """Leave a cache that outlives the call, or is returned, as plain decoding does."""
        if self._num_again and (self.keeps_cache or is_returned):
            self._catch_up(rows)
        caches.stop_recording(self.cache)

    def give_up(self, candidates: Candidates) -> None:
        """Take unchecked candidates out of the caller's cache after an error; out of a state they cannot be taken."""
        if self.keeps_cache and not self._has_states:
            caches.crop(self.cache, candidates.width - 1, self._cross_layers)

    def run(self, inputs: dict[str, Any], width: int, device: torch.device, began: float) -> torch.Tensor:
        """Run one pass that began at `began` with its preparation; returns the last `width` logits of each row."""
        if "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = width
        outputs = self.model(**inputs, return_dict=True)
        return self.finish_pass(outputs, width, device, began)

    def finish_pass(self, outputs: Any, width: int, device: torch.device, began: float) -> torch.Tensor:
        """Count a pass and return its last `width` logits of each row, float32."""
        logits: torch.Tensor = outputs.logits[:, -width:].to(copy=True, dtype=torch.float32, device=device)
        if outputs.logits.device.type == "cuda":
            torch.cuda.synchronize(outputs.logits.device)
        self.outputs = outputs
        self.last_s = time.perf_counter() - began
        self.stats.target_s += self.last_s
        self.stats.num_target_forwards += 1
        return logits

    def keep(self, outcome: Outcome) -> None:
        """Put the cache back behind what was accepted; the token behind it is the next pass's first."""
        num_kept, width = outcome.num_written[0], outcome.candidates.width
        if not outcome.is_prefill:
            if self._has_states and num_kept < width:
                self._states.put_back()
                caches.crop(self.cache, self._num_again + width)
                self._num_again += num_kept
            else:
                caches.crop(self.cache, width - num_kept, self._cross_layers)
                self._num_again = 0
        self._states = None
        before = self.cache
        self.kwargs = passes.next_kwargs(self.model, self.outputs, self.kwargs, num_kept)
        if self.cache is not before:  # Phi-3 makes a new one where its rotary factors change
            end_buffering(before)
            self.cache.activate_past_recording()
        self._is_first = False
