"""Training: an optimizer, a loop that can be stopped and continued, and what it is judged by."""

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import LlamaForCausalLM

logger = logging.getLogger(__name__)

SEED = 20
WEIGHT = 4.0
"""Of a token that is made unlikely, which is one of twenty: higher repeats less, and forgets more of the library."""

Batch = tuple[Tensor, Tensor]
"""Ids and signs, both [rows, length + 1]: a token with sign 1 is learned, with 0 only read, with -1 made unlikely."""


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal (Jordan 2024), batched over weights of one shape, in float32."""

    def __init__(self, params: list[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.05) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update all weights once."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for weight in group["params"]:
                by_shape.setdefault(weight.shape, []).append(weight)
            for shape, weights in by_shape.items():
                grads = torch.stack([weight.grad for weight in weights if weight.grad is not None])
                state = self.state[weights[0]]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(grads)
                state["momentum"].lerp_(grads, 1 - group["momentum"])
                update = orthogonal(grads.lerp(state["momentum"], group["momentum"]))
                scale = -group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for weight, change in zip(weights, update, strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(change, alpha=scale)


def orthogonal(matrices: Tensor) -> Tensor:
    """Push all singular values of each matrix towards 1 by five Newton-Schulz steps: [num, rows, columns]."""
    tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


def fit(
    model: LlamaForCausalLM,
    batch_at: Callable[[int], Batch],
    rate_at: Callable[[int], float],
    steps: range,
    checkpoint: Path,
) -> None:
    """Train for the given steps, in place; go on from `checkpoint` if it is there.

    `batch_at(step)` depends on the step alone, so that a run that was stopped and continued sees the same batches.
    """
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers = [Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.004, betas=(0.9, 0.98), weight_decay=0.0)]
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    start = steps.start
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        start = saved["step"]
    for layer in model.model.layers:
        layer.compile()
    model.train()
    began, seen, losses = time.perf_counter(), 0, []
    for step in range(start, steps.stop):
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * rate_at(step)
        ids, signs = batch_at(step)
        logits = model(ids[:, :-1], use_cache=False).logits
        loss = signed_loss(logits, ids[:, 1:], signs[:, 1:])
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seen += ids.numel()
        if (step + 1) % 25 == 0 or step + 1 == steps.stop:
            speed = seen / (time.perf_counter() - began)
            logger.info(f"step {step + 1} loss {sum(losses) / len(losses):.3f} {speed:.0f} tokens/s")
            losses.clear()
            state = {"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "step": step + 1}
            torch.save(state, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)
    model.eval()


def signed_loss(logits: Tensor, ids: Tensor, signs: Tensor) -> Tensor:
    """Return the mean of -log p(token) where it is learned and of -log(1 - p(token)), weighted, where it is unlikely.

    The second is token-level unlikelihood (Welleck et al., arXiv:1908.04319, equation 4). Logits are
    [rows, length, vocab_size], ids and signs [rows, length].
    """
    log_probs = -F.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none")
    signs = signs.flatten()
    unlikely = -torch.log1p(-log_probs[signs < 0].exp().clamp_max(1 - 1e-4))
    return (WEIGHT * unlikely.sum() - log_probs[signs > 0].sum()) / (signs != 0).sum().clamp_min(1)


def trapezoid(num_steps: int, decay_share: float) -> Callable[[int], float]:
    """Warm up over 40 steps, stay, then fall to 2 % over the last `decay_share` of the steps."""
    return lambda step: min((step + 1) / 40, 1.0, max(0.02, (num_steps - step) / (decay_share * num_steps)))


def learned(ids: Tensor) -> Batch:
    """Return a batch of which every token is learned."""
    return ids, torch.ones_like(ids)


def windows(ids: Tensor, step: int, rows: int, length: int) -> Tensor:
    """Cut `rows` random windows: [rows, length + 1], int64."""
    generator = torch.Generator().manual_seed(SEED * 1_000_003 + step)
    starts = torch.randint(len(ids) - length - 1, (rows, 1), generator=generator)
    return ids[starts + torch.arange(length + 1)]


@torch.inference_mode()
def bits_per_byte(model: LlamaForCausalLM, ids: Tensor, num_bytes: int) -> float:
    """Return the model's loss on a long row of ids, in windows of 512, in bits per byte of its text."""
    total = 0.0
    for start in range(0, len(ids) - 1, 512):
        row = ids[start : start + 513]
        logits = model(row[None, :-1], use_cache=False).logits[0]
        total += F.cross_entropy(logits, row[1:], reduction="sum").item()
    return total / math.log(2) / num_bytes
