"""Cross-tokenizer assisted generation for transformers: any draft for any target, and the output never changes."""

from uag._version import __version__
from uag.assistant import Assistant, last_stats
from uag.hook import install, uninstall
from uag.stats import Stats

__all__ = ["Assistant", "Stats", "__version__", "install", "last_stats", "uninstall"]
