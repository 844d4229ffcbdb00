"""Calls in which nothing can be drafted: transformers' own loop runs them."""

import time
from typing import Any

import torch

from uag.decoding.call import Call
from uag.decoding.stopping import Stopping
from uag.hf import models, passes
from uag.sampling import as_default, multinomial_is_argmax
from uag.stats import Stats


def plain_reason(call: Call, is_synced: bool) -> str:
    """Say why a call can only be decoded plainly; empty where it can be assisted."""
    model, device = call.model, call.input_ids.device
    if models.is_training(model):
        return "the target is in training mode, so this call was decoded plainly: call model.eval() before generate"
    if is_synced:
        return "synced_gpus: ranks must run the same passes, so this call was decoded plainly"
    if models.is_pipelined(model):
        return "pipeline parallel: ranks without the first layer check no candidates, so this call was decoded plainly"
    refused = models.candidates_refusal(model)
    if refused:
        return f"the target {refused}, so this call was decoded plainly"
    if call.generation_config.do_sample and call.sampling == "shared-noise" and not multinomial_is_argmax(device):
        return f"multinomial on {device} is not argmax(probs / noise), so this call was decoded plainly"
    return ""


def decode_plainly(call: Call, stats: Stats, is_synced: bool) -> Any:
    """Run one call in transformers' own loop; with `is_synced` a rank that is done goes on until all are."""
    began = time.perf_counter()
    with as_default(call.generator, call.input_ids.device):
        output = passes.sample_plainly(
            call.model,
            call.input_ids,
            synced_gpus=is_synced,
            logits_processor=call.logits_processor,
            stopping_criteria=call.stopping_criteria,
            generation_config=call.generation_config,
            streamer=call.streamer,
            **call.model_kwargs,
        )
    ids = output if isinstance(output, torch.Tensor) else output.sequences
    rows = ids[:, call.input_ids.shape[1] :].tolist()
    eos_ids = Stopping(call.stopping_criteria).eos_ids
    ends = [next((place + 1 for place, i in enumerate(row) if i in eos_ids), len(row)) for row in rows]
    stats.start(len(rows))
    stats.num_target_forwards = len(rows[0])
    stats.total_s = time.perf_counter() - began
    for index, (row, end) in enumerate(zip(rows, ends, strict=True)):
        stats.count_row(index, row[:end], [False] * end, call.token_bytes, stats.total_s)
    return output
