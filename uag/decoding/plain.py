"""Calls in which nothing can be drafted: transformers' own loop runs them."""

import time
from collections.abc import Iterable
from typing import Any

import torch
from transformers import StoppingCriteriaList

from uag.decoding.call import Call
from uag.decoding.limits import Limits
from uag.hf import caches, models, passes
from uag.hf.hooks import foreign_preparation, offset_hook
from uag.hf.training import training_effect
from uag.hf.weights import quantized_input
from uag.products import FastProducts
from uag.sampling import as_default, multinomial_is_argmax
from uag.stats import TARGET, Stats


def plain_reason(call: Call, is_synced: bool, is_drafted: bool) -> str:
    """Say why a call can only be decoded plainly; empty where it can be assisted.

    Args:
        call: the call.
        is_synced: whether ranks must run the same passes.
        is_drafted: whether there is anything that would draft; without it, the cache may be of any kind.
    """
    model, device = call.model, call.input_ids.device
    effect = training_effect(model)
    if effect:
        return (
            f"the target is in training mode, in which {effect} differs or may differ, so this call was decoded "
            "plainly: call model.eval() before generate"
        )
    taken_over = foreign_preparation(model) or offset_hook(model)
    if taken_over:
        return f"the target's {taken_over}, so this call was decoded plainly"
    if is_synced:
        return "synced_gpus: ranks must run the same passes, so this call was decoded plainly"
    if models.is_pipelined(model):
        return "pipeline parallel: ranks without the first layer check no candidates, so this call was decoded plainly"
    refused = models.candidates_refusal(model) or Limits(call).plain_reason()
    if refused:
        return f"the target {refused}, so this call was decoded plainly"
    refused = _cache_refusal(call) if is_drafted else ""
    if refused:
        return f"{refused}, so this call was decoded plainly"
    coarse = quantized_input(model)
    if coarse:
        return (
            f"the target's layers ({coarse}) quantize what they read, which gives a block other logits than single "
            "tokens, so this call was decoded plainly"
        )
    if call.generation_config.do_sample and call.sampling == "shared-noise" and not multinomial_is_argmax(device):
        return f"multinomial on {device} is not argmax(probs / noise), so this call was decoded plainly"
    return ""


def _cache_refusal(call: Call) -> str:
    refused = models.default_cache_refusals(call.model)
    if refused:
        name = type(call.model).__name__
        return f"the target {name!r} keeps a state that cannot be rewound after a rejected candidate ({refused})"
    kwargs = call.model_kwargs
    return caches.refusal(caches.cache_in(kwargs) if kwargs.get("use_cache", True) else None)


class _Watched(StoppingCriteriaList):
    """The criteria of a call, with what they were shown last, what they said at each step, and when."""

    def __init__(self, criteria: Iterable[Any]) -> None:
        super().__init__(criteria)
        self.ids: torch.Tensor | None = None
        self.said: list[torch.Tensor] = []
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        done = super().__call__(input_ids, *args, **kwargs)
        self.ids = input_ids
        self.said.append(done)
        self.times.append(time.perf_counter())
        return done


def decode_plainly(call: Call, stats: Stats, is_synced: bool) -> Any:
    """Run one call in transformers' own loop; with `is_synced` a rank that is done goes on until all are."""
    began = time.perf_counter()
    watched = _Watched(call.stopping_criteria)
    try:
        with as_default(call.generator, call.input_ids.device), FastProducts(call.model).in_place():
            return passes.sample_plainly(
                call.model,
                call.input_ids,
                synced_gpus=is_synced,
                logits_processor=call.logits_processor,
                stopping_criteria=watched,
                generation_config=call.generation_config,
                streamer=call.streamer,
                **call.model_kwargs,
            )
    finally:
        stats.total_s = time.perf_counter() - began
        _count(call, stats, watched, began)


def _count(call: Call, stats: Stats, watched: _Watched, began: float) -> None:
    num_steps = len(watched.said)
    stats.start(call.input_ids.shape[0])
    stats.num_target_forwards = num_steps
    if watched.ids is None or watched.ids.dim() != 2:  # models of sound write several ids a step
        return
    stats.first_token_s = watched.times[0] - began
    written = watched.ids[:, call.input_ids.shape[1] :].tolist()
    for index, (ids, said) in enumerate(zip(written, torch.stack(watched.said).T.tolist(), strict=True)):
        end = said.index(True) + 1 if True in said else num_steps
        stats.count_row(index, ids[:end], [TARGET] * end, call.token_bytes, watched.times[end - 1] - began)
