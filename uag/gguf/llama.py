"""llama-cpp-python's low-level functions, and the log messages of llama.cpp.

During calls of uag, llama.cpp's error messages are collected for exceptions, and its other messages are dropped.
"""

import ctypes
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from uag.errors import UagError, UnsupportedError

_ERROR_LEVEL, _CONTINUED = 4, 5

_MAX_SHOWN = 300
"""Maximum number of characters of llama.cpp's messages in an exception."""


class LlamaError(UagError, RuntimeError):
    """A call of llama.cpp failed."""


def is_installed() -> bool:
    """Whether llama-cpp-python can be imported."""
    try:
        library()
    except UnsupportedError:
        return False
    return True


@lru_cache(maxsize=1)
def library() -> Any:
    """Return llama-cpp-python's module of low-level functions.

    Raises:
        UnsupportedError: llama-cpp-python is not installed, or cannot be loaded.
    """
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise UnsupportedError(
            f"This GGUF draft needs llama-cpp-python, which cannot be imported ({error}). Install it with "
            "pip install llama-cpp-python (it is built from source: see docs/integrations.md)."
        ) from error
    _install_callback(llama_cpp)
    llama_cpp.llama_backend_init()
    return llama_cpp


class _Messages(threading.local):
    """Error messages of the current thread; None outside of `call`."""

    errors: list[str] | None = None
    is_error = False


_thread = _Messages()
_callbacks: list[Any] = []
"""Our log callback and the previous one; both must stay alive."""


def _install_callback(llama: Any) -> None:
    """Install a log callback that collects errors during calls of uag and forwards all other messages."""
    previous, data = llama.llama_log_callback(), ctypes.c_void_p()
    llama.llama_log_get(ctypes.byref(previous), ctypes.byref(data))

    @llama.llama_log_callback  # type: ignore[untyped-decorator]
    def receive(level: int, text: bytes, _: Any) -> None:
        if _thread.errors is None:
            if previous:
                previous(level, text, data)
            return
        _thread.is_error = level == _ERROR_LEVEL or (level == _CONTINUED and _thread.is_error)
        if _thread.is_error:
            _thread.errors.append(text.decode("utf-8", "replace").strip())

    _callbacks.extend((previous, receive))
    llama.llama_log_set(receive, ctypes.c_void_p(0))


def call(function: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """Call a function of llama.cpp.

    Returns:
        Its result, and its error messages in parentheses, to be added to an exception; empty for none.
    """
    errors: list[str] = []
    outer, _thread.errors = _thread.errors, errors
    try:
        result = function(*arguments)
    finally:
        _thread.errors = outer
    return result, f" ({'; '.join(errors)[:_MAX_SHOWN]})" if errors else ""
