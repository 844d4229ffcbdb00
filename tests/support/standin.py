"""Builds and registers the device "standin" (`standin.cpp`). The first time, compiling takes a minute."""

import types
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend
from torch.utils.cpp_extension import load

from tests.support import standin_graphs


def register() -> None:
    """Compile and register the device, once in a process: it becomes the machine's accelerator for everything there."""
    if hasattr(torch, "standin"):
        return
    extension = load("uag_standin", [str(Path(__file__).with_suffix(".cpp"))], extra_cflags=["-O1"])
    rename_privateuse1_backend("standin")
    torch._register_device_module("standin", _module(extension))  # type: ignore[no-untyped-call]
    generate_methods_for_privateuse1_backend()


def _module(extension: Any) -> types.ModuleType:
    module = types.ModuleType("torch.standin")
    generator = extension.default_generator()
    vars(module).update(
        is_available=lambda: True,
        is_initialized=lambda: True,
        _is_in_bad_fork=lambda: False,
        device_count=lambda: 1,
        current_device=lambda: 0,
        set_device=lambda _: None,
        synchronize=lambda device=None: extension.synchronize(),
        empty_cache=lambda: None,
        default_generators=(generator,),
        manual_seed=generator.manual_seed,
        manual_seed_all=generator.manual_seed,
        get_rng_state=lambda device=None: generator.get_state(),
        set_rng_state=lambda state, device=None: generator.set_state(state),
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        device=lambda _: nullcontext(),
        Stream=standin_graphs.Stream,
        stream=standin_graphs.stream,
        current_stream=standin_graphs.current_stream,
        graph=standin_graphs.graph,
        STANDINGraph=standin_graphs.STANDINGraph,
        graph_pool_handle=partial(next, standin_graphs.handles),
    )
    return module
