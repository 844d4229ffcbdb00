"""Row-invariant kernels for passes over few rows on a CPU, and their place in a model; see docs/kernels.md."""

from uag.kernels.decoder import Cache, Decoder
from uag.kernels.placing import FEW_ROWS, OwnKernels, switched

__all__ = ["Cache", "Decoder", "FEW_ROWS", "OwnKernels", "switched"]
