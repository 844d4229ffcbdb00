"""Device helpers: default generator, synchronization, choice of accelerator."""

from functools import cache
from typing import Any

import torch


def default_generator(device: torch.device) -> torch.Generator | None:
    """Return the generator that torch's sampling functions use on a device; None if PyTorch does not expose it."""
    if device.type == "cpu":
        return torch.default_generator
    module = _module(device)
    if device.type == "mps":
        generator: torch.Generator = module._get_default_mps_generator()
        return generator
    if hasattr(module, "init"):
        module.init()  # the generators exist once the device has been started
    generators = getattr(module, "default_generators", ())
    if not generators:
        return None
    found: torch.Generator = generators[device.index if device.index is not None else module.current_device()]
    return found


def synchronize(device: torch.device) -> None:
    """Wait until a device is idle; a CPU always is."""
    if device.type == "mps":
        torch.mps.synchronize()
    elif device.type not in ("cpu", "meta"):
        _module(device).synchronize(device)


def graphs_of(device: torch.device) -> Any:
    """Return PyTorch's module for a device if it records graphs of kernels there, else None."""
    module = _module(device)
    return module if hasattr(module, "graph_pool_handle") else None


def empty_cache() -> None:
    """Return memory that PyTorch keeps on the accelerator, if there is one."""
    kind = accelerator()
    if kind is not None:
        _module(kind).empty_cache()


def accelerator() -> torch.device | None:
    """Return the kind of accelerator that this machine has, or None."""
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def float32_is_rounded() -> bool:
    """Whether PyTorch may round float32 to bfloat16 or TF32 before it multiplies, as uag's kernels do not."""
    settings = getattr(torch.backends.mkldnn, "matmul", None)  # since PyTorch 2.9, which raises if both were set
    if settings is None:
        return torch.get_float32_matmul_precision() != "highest"
    return getattr(settings, "fp32_precision", "none") in ("bf16", "tf32")


@cache
def multiplies(dtype: torch.dtype) -> bool:
    """Whether PyTorch has products of bfloat16 or float16 for this processor's instructions; True if unknown."""
    name = "_is_mkldnn_bf16_supported" if dtype is torch.bfloat16 else "_is_mkldnn_fp16_supported"
    is_supported = getattr(torch.ops.mkldnn, name, None)
    return is_supported is None or bool(is_supported())


def _module(device: torch.device) -> Any:
    return getattr(torch, device.type, None)
