"""What a measurement depends on: whether another run's figures may stand for this one's."""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from uag.bench.environment import describe_environment
from uag.loading import Pair

if TYPE_CHECKING:
    from uag.bench.measuring import BenchOptions

_NUM_SAMPLED = 64
"""Values of each weight that its digest reads: all would take seconds, and training changes nearly every one."""


def settings_of(pair: Pair, options: "BenchOptions", **more: Any) -> dict[str, Any]:
    """Return all that figures depend on beyond the prompts: models, options, versions and hardware, ready for JSON."""
    described = {
        "target": pair.target_name,
        "target_weights": weights_digest(pair.target),
        "draft": pair.draft_name,
        "draft_weights": weights_digest(pair.draft),
        "dtype": str(pair.target.dtype).removeprefix("torch."),
        "device": str(pair.target.device),
    }
    chosen = {name: value for name, value in asdict(options).items() if name not in ("batch_sizes", "temperatures")}
    return {**described, **chosen, **describe_environment(), **more}


def weights_digest(model: Any) -> str:
    """Return a short digest of a model's weights, read at a few places; of a file, of its size and time."""
    digest = hashlib.sha256(type(model).__name__.encode())
    if isinstance(model, torch.nn.Module):
        for name, weight in model.named_parameters():
            digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
            digest.update(_sampled(weight))
    else:
        file = Path(str(getattr(model, "name", model)))
        digest.update(str(file).encode())
        if file.is_file():
            found = file.stat()
            digest.update(f"{found.st_size} {found.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def ids_digest(inputs: dict[str, torch.Tensor]) -> str:
    """Return a short digest of a batch of prompts as the target reads them."""
    digest = hashlib.sha256()
    for name in ("input_ids", "attention_mask"):
        digest.update(repr(inputs[name].tolist()).encode())
    return digest.hexdigest()[:16]


@torch.no_grad()
def _sampled(weight: torch.Tensor) -> bytes:
    if weight.device.type == "meta" or type(weight.data) is not torch.Tensor:
        return b""  # offloaded, or packed in a form of its own
    flat = weight.detach().reshape(-1)
    places = torch.linspace(0, max(0, flat.numel() - 1), min(_NUM_SAMPLED, flat.numel()), dtype=torch.float64)
    return bytes(flat[places.long().to(flat.device)].cpu().view(torch.uint8).tolist())
