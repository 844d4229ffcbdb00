"""Run a trial of a model once, without side effects, and cache its result."""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from uag.hf.wrapped import device_of

T = TypeVar("T")

_MAX_COPIED = 1 << 20
"""Elements of the largest tensor that is restored. Increase to protect more lookup tables; decrease to copy less."""

_SIGNS_OF_NO_MEMORY = ("MemoryError", "out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")
"""Parts of errors that report that memory ran out; cuBLAS and the CPU's allocator raise plain runtime errors."""

_stance = getattr(torch.compiler, "set_stance", nullcontext)  # since PyTorch 2.6
_answers: weakref.WeakKeyDictionary[Any, dict[str, tuple[Any, Any]]] = weakref.WeakKeyDictionary()
_lock = threading.RLock()


def once(
    model: Any, name: str, run: Callable[[], T], failed: Callable[[str], T], key: Any = None, compiles: bool = False
) -> T:
    """Return the result of the trial `run` of a model, or what `failed` returns for an exception's description.

    It runs at the first call, and again if `key` changes. Compiled forwards run eagerly, unless `compiles` is set.
    """
    itself = next(iter(model.modules()))  # the model may be a weak proxy, which cannot be a key
    answers: dict[str, tuple[Any, T]] = _answers.setdefault(itself, {})
    if (entry := answers.get(name)) and entry[0] == key:  # without the lock: another model may be in a long trial
        return entry[1]
    with _lock, without_trace(model, compiles), torch.no_grad():
        if (entry := answers.get(name)) and entry[0] == key:
            return entry[1]
        try:
            answers[name] = key, run()
        except Exception as error:  # noqa: BLE001 - a foreign forward may raise anything
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            if any(sign in why for sign in _SIGNS_OF_NO_MEMORY):
                return failed(why[:140])  # more memory may be free later
            answers[name] = key, failed(why[:140])
        return answers[name][1]


class DrawsError(RuntimeError):
    """A pass was about to draw random numbers."""


class _NoDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises before this thread draws from any of PyTorch's generators, which other threads may share."""

    supports_higher_order_operators = True  # flex attention
    is_infra_mode = classmethod(lambda _: True)  # so that PyTorch compiles flex attention in this mode

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()):
            defaults = {argument.name: argument.default_value for argument in func._schema.arguments}
            values = defaults | dict(zip(defaults, args, strict=False)) | (kwargs or {})
            # Attention and dropout draw nothing outside training mode, or with a probability of 0.
            switches = [values.get(name) for name in ("dropout_p", "p", "dropout", "train", "training")]
            if not any(isinstance(value, bool | int | float) and not value for value in switches):
                raise DrawsError(f"{func} draws random numbers")
        return func(*args, **(kwargs or {}))


@contextmanager
def without_trace(model: Any, compiles: bool = False) -> Iterator[None]:
    """Restore a model's buffers and attributes at the end, and raise `DrawsError` before random numbers are drawn."""
    saved: list[tuple[dict[str, Any], str, Any, torch.Tensor | None]] = []
    for owner in [owner for module in model.modules() for owner in (vars(module), module._buffers)]:
        for name, value in owner.copy().items():
            is_copied = isinstance(value, torch.Tensor) and value.numel() <= _MAX_COPIED and not value.is_meta
            if not callable(value):  # another thread may place or remove functions meanwhile
                saved.append((owner, name, value, value.clone() if is_copied else None))
    in_full = torch.autocast(device_of(model).type, enabled=False)
    try:
        with _NoDraws(), in_full, nullcontext() if compiles else _stance("force_eager"):  # type: ignore[no-untyped-call]
            yield
    finally:
        with torch.inference_mode():  # some tensors may have been created in it
            for owner, name, value, copied in saved:
                owner[name] = value
                if copied is not None and not torch.equal(value, copied):
                    value.copy_(copied)
