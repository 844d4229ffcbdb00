"""Row-invariant kernels for passes over few rows on a CPU, and their place in a model; see docs/kernels.md."""

from uag.kernels.decoder import Decoder
from uag.kernels.decoder_cache import Cache
from uag.kernels.decoders import decoder_of
from uag.kernels.placing import FEW_ROWS, OwnKernels, switched
from uag.kernels.rounding import Seen, Watch, watching

__all__ = ["FEW_ROWS", "Cache", "Decoder", "OwnKernels", "Seen", "Watch", "decoder_of", "switched", "watching"]
