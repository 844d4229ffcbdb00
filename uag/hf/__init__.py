"""All code that depends on transformers internals: private names, caches and the path through `generate`."""

from uag.hf import door, layers, models, passes, processors
from uag.hf.cache import caches
from uag.hf.names import check

__all__ = ["caches", "check", "door", "layers", "models", "passes", "processors"]
