"""The library of compiled kernels, or why it cannot be used here.

It uses PyTorch's instruction set, which `ATEN_CPU_CAPABILITY=avx2` lowers, and its threads. `UAG_KERNELS=off` switches
it off.
"""

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from importlib import machinery
from pathlib import Path
from typing import Any

import torch

from uag.kernels.steps import CPass, CStep


def load(folder: Path) -> tuple[Any, int, str, str]:
    """Return the library in a folder, and the number and name of its instruction set; or None, 0, "" and why not."""
    is_arm = platform.machine().lower() in ("arm64", "aarch64")
    capability = torch.backends.cpu.get_cpu_capability()
    if is_arm:
        most = 0 if os.environ.get("ATEN_CPU_CAPABILITY") == "default" else 1
    else:
        most = {"AVX2": 1, "AVX512": 3}.get(capability, 0)
    if os.environ.get("UAG_KERNELS") == "off":
        return None, 0, "", "UAG_KERNELS is off"
    if not most:
        return None, 0, "", f"PyTorch's instruction set is {capability}"
    try:
        library = _open(folder)
    except OSError as error:
        return None, 0, "", str(error)
    level = min(library.rows_level(), most)  # PyTorch has asked whether the system saves the registers, too
    name = ("", "NEON" if is_arm else "AVX2", "AVX512", "AVX512")[level]
    return library, level, name, "" if name else "this processor has no AVX2"


def _open(folder: Path) -> Any:
    """Return the library, whose loops run in PyTorch's threads.

    Raises:
        OSError: there is none, or it does not fit this system or this version of uag; it says which.
    """
    paths = (folder / f"_rows{suffix}" for suffix in machinery.EXTENSION_SUFFIXES)
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        compiler = "ziglang" if sys.platform == "win32" else "GCC or Clang"
        raise OSError(f"they were not compiled at installation, which needs {compiler}")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise OSError(f"they cannot be loaded ({error})") from error
    try:
        library.rows_layout.restype = library.rows_coded_size.restype = ctypes.c_int64
        is_current = library.rows_layout() == ctypes.sizeof(CPass) << 20 | ctypes.sizeof(CStep)
        for function in ("linear", "conv1d", "attention", "experts", "gate"):
            getattr(library, f"rows_{function}").argtypes = [ctypes.c_char_p]
    except AttributeError:
        is_current = False
    if not is_current:
        raise OSError("they were compiled from another version of uag; install it again")
    try:
        _use_threads(library)
    except (OSError, AttributeError) as error:
        raise OSError("PyTorch was built without OpenMP") from error
    return library


def _use_threads(library: Any) -> None:
    """Hand the library the functions of PyTorch's own OpenMP, whichever it is; raise if there is none."""
    names = {"win32": "libiomp5md.dll", "darwin": "libtorch_cpu.dylib"}  # a search includes what that depends on
    path = Path(torch.__file__).with_name("lib") / names.get(sys.platform, "libtorch_cpu.so")
    openmp = ctypes.CDLL(str(path))

    def pointers(*functions: str) -> Iterator[ctypes.c_void_p]:
        return (ctypes.cast(getattr(openmp, function), ctypes.c_void_p) for function in functions)

    counts = "omp_get_thread_num", "omp_get_num_threads"
    if sys.platform == "win32":
        library.rows_use(None, *pointers(*counts, "_vcomp_barrier"))
        library.rows_use_vcomp(*pointers("_vcomp_fork", "_vcomp_set_num_threads"))
    else:
        library.rows_use(*pointers("GOMP_parallel", *counts, "GOMP_barrier"))
