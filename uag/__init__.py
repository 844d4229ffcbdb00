"""Cross-tokenizer assisted generation for transformers: any draft for any target, and the output never changes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from uag._version import __version__

if TYPE_CHECKING:
    from uag.assistant import Assistant as Assistant
    from uag.candidates import CandidateGenerator as CandidateGenerator
    from uag.drafting import Memory as Memory
    from uag.gguf import GgufDraft as GgufDraft
    from uag.installing import attach as attach
    from uag.installing import detach as detach
    from uag.installing import install as install
    from uag.installing import uninstall as uninstall
    from uag.loading import load_pair as load_pair
    from uag.options import Options as Options
    from uag.stats import Stats as Stats
    from uag.stats import last_stats as last_stats

_MODULES = {
    "Assistant": "uag.assistant",
    "CandidateGenerator": "uag.candidates",
    "GgufDraft": "uag.gguf",
    "Memory": "uag.drafting",
    "Options": "uag.options",
    "Stats": "uag.stats",
    "attach": "uag.installing",
    "detach": "uag.installing",
    "install": "uag.installing",
    "last_stats": "uag.stats",
    "load_pair": "uag.loading",
    "uninstall": "uag.installing",
}

_WITHOUT_TRANSFORMERS = ("uag.options", "uag.stats")

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _MODULES[name] not in _WITHOUT_TRANSFORMERS:  # before anything imports a name that this release may lack
        import_module("uag.hf.required_names").check()
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
