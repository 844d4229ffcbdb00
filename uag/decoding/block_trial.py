"""The trial of a target: does a block of tokens have the same logits as single tokens?

It runs three passes over synthetic ids through `Target`, as a call does: a prompt, a block that is rolled back to its
first token, and the block's second token alone. The second token's logits must be the same in both passes.

The trial does not switch the target to evaluation mode. In training mode, a target whose passes draw random numbers is
refused, because plain decoding draws once per token and the generator's final state must match plain decoding's.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import StoppingCriteriaList

from uag.decoding.call import Call, Candidates, Outcome
from uag.decoding.rows import Rows
from uag.decoding.target import Limits, Target
from uag.hf import foreign_code, models
from uag.hf.cache import caches
from uag.hf.inspection import is_training, modules
from uag.hf.once import DrawsError, once
from uag.proposal import Proposal
from uag.stats import Stats

_PROMPT_LENGTH, _BLOCK_LENGTH = 6, 3
"""The fewest tokens that exercise masks, positions and the rollback of the cache."""

_MAX_DIFFERENCE, _MAX_DIFFERENCE_IN_HALF = 1e-3, 0.1
"""Largest RMS difference of two rows of logits, relative to their standard deviation, that is treated as rounding.

Increase to accept targets with more rounding; decrease to detect smaller errors. Measured rounding was up to 3e-6 in
float32 and 0.03 in bfloat16; real errors were 0.2 or more.
"""


def refusal(call: Call) -> str:
    """Return how blocks differ from single tokens, phrased to follow "the target", or an empty string.

    Runs three passes, once per model and mode, on all ranks together.
    """
    model = call.model
    failed = "could not be tested ({})".format
    trial = once(model, "block", lambda: _compare(call), failed, _key(model))
    reason = call.ranks.broadcast(trial)
    return f"{reason} in training mode (call model.eval() first)" if reason and is_training(model) else reason


def _key(model: Any) -> Any:
    """Return what the result depends on: layers, dtype, device and attention; in training mode, all numbers."""
    kinds = *models.kinds_of(model), foreign_code.layers_of_others(model)
    if not is_training(model):
        return kinds
    numbers = [v for m in modules(model) for v in list(vars(m).values()) if isinstance(v, bool | int | float)]
    return *kinds, tuple(numbers), repr(model.config)


def _compare(call: Call) -> str:
    before = random.getstate(), repr(np.random.get_state())  # noqa: NPY002 - only read; layers may be dropped by them
    ids = models.ordinary_ids(call.model, _PROMPT_LENGTH + _BLOCK_LENGTH)
    num_rows = call.input_ids.shape[0] if call.model.config.is_encoder_decoder else 1
    prompt, block = torch.tensor([ids[:_PROMPT_LENGTH]] * num_rows, device=call.input_ids.device), ids[_PROMPT_LENGTH:]
    try:
        passes = SyntheticPasses(call, prompt)
        in_block, alone = passes.verify([block] * num_rows)[:, 1], passes.verify([block[1:2]] * num_rows)[:, 0]
    except DrawsError:
        return "draws random numbers in its passes"
    if is_training(call.model) and (random.getstate(), repr(np.random.get_state())) != before:  # noqa: NPY002
        return "draws random numbers in its passes"
    ratio = (in_block - alone).pow(2).mean().sqrt() / alone.std()
    difference = float(torch.nan_to_num(ratio, nan=float("inf")))
    if difference <= (_MAX_DIFFERENCE if call.model.dtype.itemsize >= 4 else _MAX_DIFFERENCE_IN_HALF):
        return ""
    return (
        f"computes different logits for a block than for single tokens ({difference:.2g} of their standard deviation)"
    )


class SyntheticPasses:
    """Passes over synthetic ids, as a call runs them; the call is not changed.

    The prompt [num_rows, prompt_length] int64 is read at once, into an empty cache (None: a default one).
    """

    def __init__(self, call: Call, prompt: torch.Tensor, cache: Any = None) -> None:
        criteria, kwargs = StoppingCriteriaList(), _kwargs(call, prompt, cache)
        trial = replace(call, input_ids=prompt, stopping_criteria=criteria, model_kwargs=kwargs, streamer=None)
        self._target, self._rows = Target(trial, Stats(), Limits(trial, ())), Rows(trial)
        candidates = self._candidates([[]] * len(prompt))
        self._target.read(self._rows, candidates)
        self._keep(candidates, is_first=True)

    def verify(self, blocks: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the logits [num_rows, width, vocab_size] of a block for each row, and keep the block's first token."""
        for row, (progress, block) in enumerate(zip(self._rows.all, blocks, strict=True)):
            progress.outputs.append(block[0])
            self._rows.buffer[row, self._rows.length(row) - 1] = block[0]
        candidates = self._candidates([block[1:] for block in blocks])
        logits = self._target.verify(self._rows, candidates)
        self._keep(candidates, is_first=False)
        return logits

    def _candidates(self, by_row: Sequence[Sequence[int]]) -> Candidates:
        return Candidates(range(len(by_row)), [[Proposal(i, 1.0) for i in ids] for ids in by_row])

    def _keep(self, candidates: Candidates, *, is_first: bool) -> None:
        num_rows = len(candidates.rows)
        self._target.keep(Outcome(candidates, [1] * num_rows, [0] * num_rows, is_first))


def _kwargs(call: Call, prompt: torch.Tensor, cache: Any) -> dict[str, Any]:
    """Return the forward's arguments for synthetic tokens: the call's, except those that depend on a row's text."""
    of_call, is_encoder_decoder = call.model_kwargs, call.model.config.is_encoder_decoder
    names = ["use_cache", "logits_to_keep", *(["encoder_outputs", "attention_mask"] if is_encoder_decoder else [])]
    kwargs = {name: of_call[name] for name in names if name in of_call}
    for name in caches.CACHE_NAMES:
        if of_call.get(name) is not None:
            kwargs[name] = caches.default_cache(call.model) if cache is None else cache
    if is_encoder_decoder:
        return kwargs
    mask = torch.ones_like(prompt)
    kwargs["attention_mask"] = mask
    if of_call.get("position_ids") is not None:
        positions = mask.cumsum(-1) - 1
        kwargs["position_ids"] = positions.expand(*of_call["position_ids"].shape[:-2], *positions.shape)
    return kwargs
