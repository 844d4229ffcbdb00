"""The compiled product for few rows (`_rows.c`): reads the weights once, and no row's result depends on the others.

It is compiled when uag is installed, if there is a C compiler for x86-64. It uses PyTorch's instruction set, which
`ATEN_CPU_CAPABILITY=avx2` lowers. `UAG_PRODUCTS=off` switches it off.
"""

import ctypes
import os
from importlib import machinery
from pathlib import Path

import torch

_BITS = {"AVX512": 512, "AVX2": 256}

_FEWEST_FOR_THREADS = 1 << 16
"""Smallest number of weights that threads share. Increase to wake threads less often; decrease to share less work."""


def _load() -> tuple[ctypes.CDLL | None, int]:
    """Return the library and the bits of its vectors, or None and 0 if it cannot be used."""
    paths = (Path(__file__).with_name(f"_rows{suffix}") for suffix in machinery.EXTENSION_SUFFIXES)
    path = next((path for path in paths if path.is_file()), None)
    most = _BITS.get(torch.backends.cpu.get_cpu_capability(), 0)
    if path is None or not most or os.environ.get("UAG_PRODUCTS") == "off":
        return None, 0
    try:
        library = ctypes.CDLL(str(path))
    except OSError:  # PyTorch was built without OpenMP, whose functions the library takes from it
        return None, 0
    pointer, integer, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    library.uag_rows.argtypes = [pointer] * 4 + [integer] * 3 + [number] * 3
    library.uag_rows.restype = None
    bits = min(library.uag_instruction_set(), most)
    return (library, bits) if bits else (None, 0)


_library, BITS = _load()
"""`BITS` is the width of the vectors: 512 with AVX-512, 256 with AVX2, 0 if the kernel is not used."""


def describe() -> str:
    """Return what computes the products of few rows, for people."""
    names = {bits: name for name, bits in _BITS.items()}
    return f"uag's kernel ({names[BITS]})" if BITS else "PyTorch's products (uag's kernel is not in use)"


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return `x @ weight.T + bias`, summed in float32.

    Args:
        x: [..., num_in], contiguous, of the weight's dtype.
        weight: [num_out, num_in] float32 or bfloat16, contiguous.
        bias: [num_out] of the weight's dtype, or None.

    Returns:
        [..., num_out] of the weight's dtype. With bfloat16, each result is rounded once, at the end.
    """
    num_rows, (num_out, num_in) = x.numel() // weight.shape[1], weight.shape
    is_half = weight.dtype is torch.bfloat16
    if is_half:
        x, bias = x.float(), None if bias is None else bias.float()
    y = x.new_empty((*x.shape[:-1], num_out))
    num_threads = torch.get_num_threads() if weight.numel() >= _FEWEST_FOR_THREADS else 1
    bias_data = None if bias is None else bias.data_ptr()
    _library.uag_rows(  # type: ignore[union-attr]
        x.data_ptr(), weight.data_ptr(), bias_data, y.data_ptr(), num_rows, num_out, num_in, is_half, BITS, num_threads
    )
    return y.to(torch.bfloat16) if is_half else y
