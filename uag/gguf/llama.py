"""llama-cpp-python's low-level functions, and what llama.cpp says while they run.

Whatever goes wrong in them becomes an error of ours with llama.cpp's own words; all else that it would write to the
terminal during our calls is dropped.
"""

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from uag.errors import UagError, UnsupportedError

_ERROR_LEVEL, _CONTINUED = 4, 5

_MOST_SHOWN = 300
"""Characters of what llama.cpp said that a message of ours repeats."""


class LlamaError(UagError, RuntimeError):
    """Something failed inside llama.cpp."""


@lru_cache(maxsize=1)
def library() -> Any:
    """Return llama-cpp-python's module of low-level functions.

    Raises:
        UnsupportedError: it is not installed, or cannot be loaded.
    """
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise UnsupportedError(
            f"A GGUF draft needs llama-cpp-python, which cannot be imported ({error}). Install it with "
            "pip install 'uag[gguf]' (it is built from source: see docs/gguf.md)."
        ) from error
    _listen(llama_cpp)
    llama_cpp.llama_backend_init()
    return llama_cpp


class _Heard(threading.local):
    """What llama.cpp says to a thread: None while the thread runs none of the calls below."""

    errors: list[str] | None = None
    is_error = False


_heard = _Heard()
_listeners: list[Any] = []
"""What llama.cpp was given to call, and what it called before; both must live on."""


def _listen(llama: Any) -> None:
    """Keep what llama.cpp writes during our calls, the errors of it; all else goes where it went before."""
    before, data = llama.llama_log_callback(), ctypes.c_void_p()
    llama.llama_log_get(ctypes.byref(before), ctypes.byref(data))

    @llama.llama_log_callback  # type: ignore[untyped-decorator]
    def hear(level: int, text: bytes, _: Any) -> None:
        if _heard.errors is None:
            if before:
                before(level, text, data)
            return
        _heard.is_error = level == _ERROR_LEVEL or (level == _CONTINUED and _heard.is_error)
        if _heard.is_error:
            _heard.errors.append(text.decode("utf-8", "replace").strip())

    _listeners.extend((before, hear))
    llama.llama_log_set(hear, ctypes.c_void_p(0))


@contextmanager
def hearing() -> Iterator[list[str]]:
    """Collect the errors that llama.cpp writes."""
    outer, _heard.errors = _heard.errors, []
    try:
        yield _heard.errors
    finally:
        _heard.errors = outer


def said(errors: Sequence[str]) -> str:
    """Return llama.cpp's words as a message of ours repeats them, in brackets; empty for none."""
    return f" ({'; '.join(errors)[:_MOST_SHOWN]})" if errors else ""


def free(function: Callable[[Any], None], pointer: Any) -> None:
    """Give something back to llama.cpp, which has something to say about it."""
    with hearing():
        function(pointer)


def has_gpu() -> bool:
    """Whether llama.cpp was built for a GPU, and finds one."""
    return bool(library().llama_supports_gpu_offload())
