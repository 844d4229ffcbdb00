"""One wrapper around `GenerationMixin.generate`, shared by `uag.install()` and `uag.attach()`."""

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

from transformers import GenerationMixin

Route = Callable[..., Any]
"""Handles a call or passes it on. Its arguments are the next `generate`, the model, and those of the call."""

_SIGNATURE = inspect.signature(GenerationMixin.generate)  # other libraries' wrappers may hide it later

_routes: list[Route] = []
_lock = threading.Lock()


def add(route: Route, *, is_first: bool = False) -> None:
    """Send every call of `GenerationMixin.generate` in this process through `route`, on request before the others.

    A route that is added already stays where it is.
    """
    with _lock:
        if route not in _routes:
            _routes.insert(0 if is_first else len(_routes), route)
        if not hasattr(GenerationMixin.generate, "__uag_original__"):
            GenerationMixin.generate = _routed(GenerationMixin.generate)


def remove(route: Route) -> None:
    """Remove a route, and restore the previous `generate` if it was the last route."""
    with _lock:
        if route in _routes:
            _routes.remove(route)
        generate: Any = GenerationMixin.generate
        original = getattr(generate, "__uag_original__", None)
        # A wrapper that another library placed around this one may have copied the attribute. It must stay.
        if not _routes and original is not None and generate.__wrapped__ is original:
            GenerationMixin.generate = original


def options_of(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of `generate` by name."""
    bound = _SIGNATURE.bind(model, *args, **kwargs).arguments
    options: dict[str, Any] = bound.pop("kwargs", {}) | bound
    del options["self"]
    return options


def _routed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = original
        for route in reversed(_routes):
            run = functools.partial(route, run)
        return run(self, *args, **kwargs)

    generate.__uag_original__ = original  # type: ignore[attr-defined]
    return generate
