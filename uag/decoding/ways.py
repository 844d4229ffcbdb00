"""The ways to run a target's passes, best first, and the choice among them. Each is tried once per model.

With uag's kernels, a token's bits do not depend on the candidates around it; the fastest pass is one call of them.
Passes that a device records as graphs have one fixed width, over a cache of one fixed length, so a token's logits
depend only on the tokens before it. With PyTorch's operations otherwise, candidates may change how logits round.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from uag.decoding import trial
from uag.decoding.call import Call
from uag.decoding.target import Limits
from uag.decoding.trial import Trial, Way
from uag.hf import blocks, foreign_code, models, passes, positions
from uag.hf.cache import caches, static
from uag.hf.cache.recorded import RecordedTarget
from uag.hf.devices import graphs_of
from uag.kernels import Decoder, decoder_of

WIDTH = 8  # tokens per row of every pass after the prompt, which all cost as much as this many tokens
_SLOTS_STEP = 512  # the cache has a multiple of this many slots: rounding may depend on the length
_MOST_SLOTS = 1 << 16  # slots of the longest cache for a target with fewer positions
_SAME_FOR_ALL_LENGTHS = ("sdpa", "eager")  # attention that does not choose a kernel by the length of a cache


def choose(call: Call, *, is_ragged: bool) -> tuple[Way, Trial]:
    """Return the best way to run a call's passes as wide as their candidates, and what its trial found."""
    chosen = None
    ways = [Way(call.kernels), Way(call.kernels.replacing_functions())] if call.kernels else []
    limited = blocks.limited_parts(call.model)
    if limited:  # only blocks that run token by token are like single tokens
        ways = ways[1:] if call.kernels.step(limited) else []
    decoder = _decoder(call) if ways else None
    if decoder is not None:
        way = Way(call.kernels.in_one_call(decoder))
        found = trial.run(call, way, is_ragged=is_ragged)
        if not (found.is_wrong or found.refusal or found.dependence):
            return way, found
    for way in ways:
        found = trial.run(call, way, is_ragged=is_ragged)
        if found.is_wrong:
            break
        if chosen is None or not (found.dependence or found.refusal):
            chosen = way, found
        if found.refusal or not found.dependence:
            break
    if limited and chosen is None:
        return Way(), Trial(refusal=blocks.BEHIND_STATE)
    return chosen or (Way(), trial.run(call, Way(), is_ragged=is_ragged))


def _decoder(call: Call) -> Decoder | None:
    """Return what runs the passes of a call in one call of the kernels each; None if it cannot run all of them."""
    if static.is_static(caches.cache_in(call.model_kwargs)) or not call.stopping.max_length:
        return None
    found = decoder_of(call.model, "model", call.kernels)
    return found if isinstance(found, Decoder) and _most_slots(call) <= found.max_positions else None


def record(call: Call) -> tuple[Call, RecordedTarget | None, str]:
    """Return a call of a fixed width, with its recorded passes, or why a device with graphs cannot record them."""
    # The caller gets a static cache that it asked for; `generate` compiles the passes over it.
    is_compiled = call.is_compiled or models.is_compiled(call.model)
    if graphs_of(call.model.device) is None or is_compiled or call.generation_config.cache_implementation == "static":
        return call, None, ""
    fixed = replace(call, fixed_width=WIDTH, model_kwargs=dict(call.model_kwargs))
    if reason := next(filter(None, _refusals(fixed)), ""):
        return call, None, reason
    num_slots = _SLOTS_STEP * -(-(_most_slots(fixed) + WIDTH - 1) // _SLOTS_STEP)
    found = trial.run(fixed, Way(num_slots=num_slots), is_ragged=False)
    if reason := found.refusal or found.dependence:
        return call, None, reason
    recorded = RecordedTarget.take(call.model, call.input_ids.shape[0], num_slots)
    if recorded is not None:
        caches.replace(fixed.model_kwargs, recorded.cache)
    return (fixed, recorded, "") if recorded is not None else (call, None, "")


def as_requested(call: Call, cache: Any) -> Any:
    """Return the cache at the end of a call in the form that plain decoding returns."""
    if call.fixed_width is None:
        return cache
    dynamic, num_tokens = caches.default_cache(call.model), caches.length(cache)
    for index, layer in enumerate(cache.layers):
        if layer.is_initialized:
            dynamic.update(layer.keys[:, :, :num_tokens], layer.values[:, :, :num_tokens], index)
    return dynamic


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
    layers = models.default_cache_refusals(model) or models.layers_other_than(caches.WITH_KEYS, model)
    yield layers and f"the target's cache has layers without a fixed length ({layers})"
    if foreign_code.of_others(model) and (names := passes.foreign_arguments(model, call.model_kwargs)):
        yield f"the target may take {', '.join(sorted(names))} in every pass, which its trial lacks"
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
