"""Passes of one fixed width, over a cache of one fixed length, whose output does not depend on the candidates at all.

A kernel rounds by the shape of its inputs. Here every pass after the prompt has the same shape, with candidates or
with padding, so a token's logits depend only on the tokens before it, provided that the kernels compute a token in the
same way in every row of a pass. A trial checks this once per model. Calls that cannot keep the promise are refused.
On devices with graphs, the one shape is recorded (`uag.hf.cache.recorded_target`).
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from uag.decoding.block_trial import SyntheticPasses
from uag.decoding.call import Call
from uag.decoding.target import Limits
from uag.decoding.verdict import Verdict, examine
from uag.errors import UnsupportedError
from uag.hf import blocks, models, passes, positions, weights
from uag.hf.cache import caches, static
from uag.hf.cache.recorded_target import RecordedTarget
from uag.hf.trials import once
from uag.kernels import OwnKernels

WIDTH = 8
"""Tokens per row of every pass after the prompt. Increase to verify more candidates in a pass; decrease to make passes
cheaper, which all cost as much as this many tokens."""

_PROMPT_LENGTH = 6
"""Tokens of the trial's prompt. More would only take longer."""

_SLOTS_STEP = 512
"""The cache has a multiple of this many slots, since rounding may depend on the length. Increase to give more calls the
same length, and so one trial; decrease to compute attention over fewer slots."""

_MOST_SLOTS = 1 << 16
"""Slots of the longest cache for a target with fewer positions. Increase for longer texts; decrease to save memory."""

_WITH_KEYS = DynamicLayer, DynamicSlidingWindowLayer
"""Layers of a dynamic cache that keep keys and values, and nothing else."""

_SAME_FOR_ALL_LENGTHS = ("sdpa", "eager")
"""Attention implementations that do not choose a kernel by the number of tokens that a cache holds."""


def examined(call: Call, verdict: Verdict) -> tuple[Call, Verdict]:
    """Return a call with a fixed width and a cache of fixed length, and its verdict.

    `verdict` is that of the same call without a fixed width, which does not keep the promise.

    Raises:
        UnsupportedError: candidates may change the call's output in this way, too.
    """
    if verdict.plain:
        raise _refusal(verdict.plain)
    call = replace(call, fixed_width=WIDTH, model_kwargs=dict(call.model_kwargs))
    if reason := next(filter(None, _refusals(call)), ""):
        raise _refusal(f"the target {verdict.dependence}, and in passes of a fixed width {reason}")
    is_compiled = call.is_compiled or models.is_compiled(call.model)  # decided before the call gets a static cache
    num_slots = _SLOTS_STEP * -(-(_most_slots(call) + WIDTH - 1) // _SLOTS_STEP)
    # The caller gets a static cache that it asked for; `generate` compiles the passes over it.
    is_recorded = not is_compiled and call.generation_config.cache_implementation != "static"
    recorded = RecordedTarget.take(call.model, call.input_ids.shape[0], num_slots) if is_recorded else None
    cache = static.static_cache(call.model, num_slots) if recorded is None else recorded.cache
    caches.replace(call.model_kwargs, cache)
    verdict, kernels = examine(call), verdict.kernels
    if verdict.limits is None:
        raise _refusal(verdict.plain)
    name = f"fixed width x {call.input_ids.shape[0]} over {num_slots} slots"
    failed = "the target cannot run passes over a cache of fixed length ({})".format
    # Whatever chooses the kernels of a pass: what the trial found with some does not hold for others.
    key = models.kinds_of(call.model), weights.shapes(call.model), torch.get_num_threads(), is_compiled, len(kernels)
    trial = partial(_trial, call, static.static_cache(call.model, num_slots), kernels)
    reason = call.ranks.broadcast(once(call.model, name, trial, failed, key, compiles=is_compiled))
    if reason:
        raise _refusal(reason)
    lockstep = verdict.lockstep or ("rows share a fixed width" if call.input_ids.shape[0] > 1 else "")
    return call, replace(verdict, lockstep=lockstep, dependence="", kernels=kernels, recorded=recorded)


def as_requested(call: Call, cache: Any) -> Any:
    """Return the cache at the end of a call in the form that plain decoding returns."""
    if call.generation_config.cache_implementation == "static":
        return cache
    dynamic, num_tokens = caches.default_cache(call.model), caches.length(cache)
    for index, layer in enumerate(cache.layers):
        if layer.is_initialized:
            dynamic.update(layer.keys[:, :, :num_tokens], layer.values[:, :, :num_tokens], index)
    return dynamic


def _refusal(reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"draft_independent=True cannot promise the same output for every draft here: {reason}. Remove the option, or "
        "the cause."
    )


def _most_slots(call: Call) -> int:
    """Return the cache slots of a call's longest output, in addition to those of a prompt of embeddings."""
    return (call.stopping.max_length or 0) + Limits(call, ()).num_hidden


def _refusals(call: Call) -> Iterator[str]:
    """Yield why the output of a call would depend on the candidates; some reasons may be empty."""
    model, cache = call.model, caches.cache_in(call.model_kwargs)
    if model.config.is_encoder_decoder:
        yield "the target is an encoder-decoder, whose cache has no fixed length"
    if cache is None or not call.model_kwargs.get("use_cache", True):
        yield "the target keeps no cache (use_cache=False, or its own state)"
    if caches.outlives_call(cache):
        yield "the caller passed a cache, which may have another length"
    layers = models.default_cache_refusals(model) or models.layers_other_than(_WITH_KEYS, model)
    yield layers and f"the target's cache has layers without a fixed length ({layers})"
    if blocks.has_experts(model):  # the trial finds their differences in float32, but in bfloat16 not always
        yield "the target has experts, and how many tokens each gets depends on the other tokens"
    if (attention := models.attention_of(model)) not in _SAME_FOR_ALL_LENGTHS:
        yield f"attn_implementation={attention!r} may choose its kernel by the length of the text"
    if call.stopping.max_length is None:
        yield "the call has no maximum length (pass max_new_tokens)"
    num_slots = _most_slots(call)
    if num_slots > max(models.max_positions(model), _MOST_SLOTS):
        yield f"all {num_slots} cache slots that the call may fill are allocated at once (pass fewer max_new_tokens)"
    cut = next((cut for cut in positions.cuts(model) if num_slots > cut.at), None)
    yield f"the target {cut.why}, and the call may reach it" if cut else ""
    # Positions of padding are limited to the model's, if the call has positions.
    is_beyond = num_slots + WIDTH - 1 > models.max_positions(model)
    if is_beyond and call.model_kwargs.get("position_ids") is None:
        yield "padding would exceed the target's positions (pass fewer max_new_tokens)"


def _trial(call: Call, cache: Any, kernels: OwnKernels) -> str:
    """Return how a token's logits depend on its row in a pass, or an empty string. The call is not changed.

    Each pass starts one token later than the one before it, so the same token is computed in every row.
    """
    width, num_rows = WIDTH, call.input_ids.shape[0]
    size = _PROMPT_LENGTH + 2 * width
    ids = models.ordinary_ids(call.model, size + num_rows)
    texts = torch.tensor([ids[row : row + size] for row in range(num_rows)], device=call.input_ids.device)
    known: dict[int, torch.Tensor] = {}
    with passes.optimized_for_decode(call.model), kernels.in_place():
        synthetic = SyntheticPasses(call, texts[:, :_PROMPT_LENGTH], kernels, cache)
        for start in range(width):
            first = _PROMPT_LENGTH + start
            logits = synthetic.verify(texts[:, first : first + width].tolist())
            for place in range(width):
                if not torch.equal(logits[:, place], known.setdefault(start + place, logits[:, place])):
                    return (
                        f"the target {type(call.model).__name__!r} computes a token differently in row {place} of a "
                        f"pass of {width} tokens than in row {place + 1}, as mixtures of experts do"
                    )
    return ""
