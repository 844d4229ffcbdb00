"""The one place that knows transformers from inside: its private names, its caches, the way through `generate`."""

from uag.hf import door, layers, models, passes, processors
from uag.hf.cache import caches
from uag.hf.names import check

__all__ = ["caches", "check", "door", "layers", "models", "passes", "processors"]
