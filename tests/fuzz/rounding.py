"""Whether a difference of two outputs is the target's own rounding, found by computing its position again.

The same position computed alone and inside a block can differ in the last bits, so that the target itself selects
a different token. A difference counts as rounding only if computing the position again alone selects plain's token, and
selects the arm's after a change of one of the two logits by at most `MARGIN`, and at most twice as much as computing
the position in blocks changes some logit. (uag's kernels add in another order than PyTorch's blocks, which need not
select the arm's token. Filters such as top-p see the change, too.)

In half precision, rounding also enters the cache and grows there, so a replay need not select the arm's token. There, a
difference counts as rounding if both tokens would be selected after a change of single logits as large as the largest
change between the position computed alone and in a block.
"""

import inspect
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch

from uag.bench.equality import Difference, is_half
from uag.hf import blocks
from uag.hf.cache.caches import CACHE, self_attention_layers

MARGIN = 1e-4
"""Largest difference of two logits (after adding the noise, when sampling) that counts as rounding."""

LONGEST_BLOCK = 24
"""Maximum width of a replayed block; transformers' own path verifies 21 positions."""


@torch.no_grad()
def is_rounding(
    model: Any,
    inputs: dict[str, torch.Tensor],
    plain_ids: torch.Tensor,
    difference: Difference,
    *,
    seed: int | None = None,
    process: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
) -> bool:
    """Whether a difference is a decoder-only target's own rounding, found by computing its position again."""
    plain_id, arm_id, device = difference.plain_id, difference.arm_id, inputs["input_ids"].device
    if plain_id is None or arm_id is None:
        return False
    alone, *forms = _forms(model, inputs, plain_ids.to(device), difference)
    text = torch.cat([inputs["input_ids"], plain_ids.to(device)[:, : difference.step]], dim=1)
    noise = torch.zeros_like(alone)
    if seed is not None:
        drawn = sampling_noise(seed, difference.step, len(plain_ids), difference.row, len(alone), device)
        noise = drawn.to(alone.device)

    def scores(logits: torch.Tensor, changed_id: int = 0, change: float = 0.0) -> torch.Tensor:
        logits = logits.clone()
        logits[changed_id] += change
        if process is not None:  # for all rows: some know their prompts
            logits = process(text, logits.repeat(len(text), 1))[difference.row]
        return logits + noise

    selected = scores(alone)
    if is_half(model) or torch.is_autocast_enabled("cpu"):
        if blocks.has_experts(model):
            return True  # rounding may send a token to other experts
        change = max(float((alone - block).abs().max()) for block in forms)
        least = min(float(scores(alone, each, change)[each]) for each in (plain_id, arm_id))
        rivals = (selected >= least).nonzero()[:, 0].tolist()
        return change > 0.0 and all(float(scores(alone, each, -change)[each]) < least for each in rivals)
    if selected[plain_id] < selected.max():
        return False  # several may be the largest
    change = min(MARGIN, 2 * max(float((alone - block).abs().max()) for block in forms))
    changed = (scores(alone, each, sign * change) for each in (plain_id, arm_id) for sign in (-1, 1))
    return any(int(each.argmax()) == arm_id for each in changed)


def sampling_noise(
    seed: int, step: int, num_rows: int, row: int, vocabulary_size: int, device: torch.device
) -> torch.Tensor:
    """Return the noise that `torch.multinomial` adds to row `row` in output step `step` after `manual_seed(seed)`.

    `multinomial(probs, 1)` is `argmax(probs / noise)` with exponential noise drawn in step order, so with logits it is
    the argmax of `logits - log(noise)`: [vocabulary_size], float32.
    """
    generator = torch.Generator(device).manual_seed(seed)
    draw = torch.empty(num_rows, vocabulary_size, device=device)
    for _ in range(step + 1):
        draw.exponential_(generator=generator)
    return -draw[row].log()


def _forms(
    model: Any, inputs: dict[str, torch.Tensor], plain_ids: torch.Tensor, difference: Difference
) -> Iterator[torch.Tensor]:
    """Yield the logits that select the differing token: computed alone first, then in blocks of many shapes."""
    ids = torch.cat([inputs["input_ids"], plain_ids], dim=1)
    mask = torch.cat([inputs["attention_mask"], torch.ones_like(plain_ids)], dim=1)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    prompt_width = inputs["input_ids"].shape[1]
    selecting = prompt_width + difference.step - 1  # the position whose logits select the token in question

    def logits(bounds: list[int]) -> torch.Tensor:
        """Compute the positions in one pass for each interval of `bounds`; the last one holds `selecting`."""
        cache = None
        for start, end in pairwise(bounds):
            position_ids = {"position_ids": positions[:, start:end]} if takes_positions else {}
            outputs = model(
                input_ids=ids[:, start:end],
                attention_mask=mask[:, 0 if has_keys else start : end],
                use_cache=True,
                **{CACHE: cache},
                **position_ids,
            )
            cache = getattr(outputs, CACHE)
        scores: torch.Tensor = outputs.logits[difference.row, selecting - bounds[-2]]
        return scores.float()

    prompt = {"input_ids": ids[:, :prompt_width], "attention_mask": mask[:, :prompt_width]}
    has_keys = bool(self_attention_layers(getattr(model(**prompt, use_cache=True), CACHE)))  # Mamba has states alone
    yield logits([0, *range(prompt_width, selecting + 2)])
    yield logits([0, selecting + 1])
    if not has_keys:
        return  # blocks discard their state
    for start in range(selecting, max(0, selecting - LONGEST_BLOCK), -1):
        for end in {selecting + 1, min(ids.shape[1], start + LONGEST_BLOCK)}:
            if end - start > 1:
                yield logits([0, start, end])
