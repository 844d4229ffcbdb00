"""Run a trial of a model once, without side effects, and cache its result.

The trials are: whether a block of tokens has the logits of single tokens (`uag.decoding.block_trial`), whether a draft
can draft and how it treats states (`uag.hf.trials.drafts`), and which layers quantize their input (`uag.hf.weights`).
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from uag.hf.inspection import in_evaluation
from uag.hf.wrapped import device_of

T = TypeVar("T")

_MAX_COPIED = 1 << 20
"""Largest number of elements of a tensor that is restored after a trial; larger ones are usually lookup tables, which
no pass writes to. Increase to protect larger tensors; decrease to copy less."""

_SIGNS_OF_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")
"""Parts of the plain runtime errors with which cuBLAS and the CPU's allocator report that memory ran out."""

_answers: weakref.WeakKeyDictionary[Any, dict[str, tuple[Any, Any]]] = weakref.WeakKeyDictionary()
_lock = threading.RLock()


def once(
    model: Any,
    name: str,
    run: Callable[[], T],
    failed: Callable[[str], T],
    key: Any = None,
    as_it_is: bool = False,
    compiles: bool = False,
) -> T:
    """Return the result of a trial, which runs at the first call.

    Args:
        model: the result is kept as long as the model lives.
        name: name of the trial.
        run: the trial. Gradients and autocast are off.
        failed: maps the description of an exception from `run` to a result.
        key: what the result depends on; with another key the trial runs again.
        as_it_is: do not switch the model to evaluation mode.
        compiles: run compiled forwards, and compile them if needed; by default they run eagerly.
    """
    itself = next(iter(model.modules()))  # a draft may be a weak proxy, which cannot be a key

    def known() -> tuple[Any, T] | None:
        entry: tuple[Any, T] | None = _answers.get(itself, {}).get(name)
        return entry if entry is not None and entry[0] == key else None

    if (entry := known()) is not None:  # without the lock: another model may be in a long trial
        return entry[1]
    with _lock, nullcontext() if as_it_is else in_evaluation(model), without_trace(model, compiles), torch.no_grad():
        if (entry := known()) is not None:
            return entry[1]
        try:
            result = run()
        except Exception as error:  # noqa: BLE001 - a foreign forward may raise anything
            result = failed(f"{type(error).__name__}: {' '.join(str(error).split())[:120]}")
            is_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
            if is_memory or any(sign in str(error) for sign in _SIGNS_OF_NO_MEMORY):
                return result  # more memory may be free later
        _answers.setdefault(itself, {})[name] = key, result
        return result


class DrawsError(RuntimeError):
    """A pass was about to draw random numbers."""


class _NoDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises before this thread draws from any of PyTorch's generators, which other threads may share.

    So nothing has to be restored, and a model is known to draw before it does.
    """

    supports_higher_order_operators = True  # flex attention

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Return True, so that PyTorch compiles flex attention in this mode."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()):
            known = func._schema.arguments
            values = {argument.name: argument.default_value for argument in known} | kwargs
            values |= {argument.name: value for argument, value in zip(known, args, strict=False)}
            # Attention and dropout draw nothing outside training mode, or with a probability of 0.
            switches = [values.get(name) for name in ("dropout_p", "p", "dropout", "train", "training")]
            if not any(isinstance(value, bool | int | float) and not value for value in switches):
                raise DrawsError(f"{func} draws random numbers")
        return func(*args, **kwargs)


@contextmanager
def without_trace(model: Any, compiles: bool = False) -> Iterator[None]:
    """Restore a model's buffers and attributes when the context ends, and raise `DrawsError` before random numbers.

    New attributes stay, as after any pass. So do functions, which another thread may place or remove meanwhile.
    """
    with ExitStack() as stack:
        stack.enter_context(_NoDraws())  # type: ignore[no-untyped-call]
        stack.enter_context(torch.autocast(device_of(model).type, enabled=False))
        if hasattr(torch.compiler, "set_stance") and not compiles:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        saved = list(_attributes(model))
        try:
            yield
        finally:
            for owner, name, value, copy in saved:
                if owner.get(name) is not value:
                    owner[name] = value
                if copy is not None and not torch.equal(value, copy):
                    with torch.inference_mode(value.is_inference()):
                        value.copy_(copy)


def _attributes(model: Any) -> Iterator[tuple[dict[str, Any], str, Any, torch.Tensor | None]]:
    """Yield the dictionary, name and value of each attribute and buffer but functions, with copies of small tensors."""
    for owner in (owner for module in model.modules() for owner in (vars(module), module._buffers)):
        for name, value in list(owner.items()):
            is_copied = isinstance(value, torch.Tensor) and value.numel() <= _MAX_COPIED and value.device.type != "meta"
            if not callable(value):
                yield owner, name, value, value.clone() if is_copied else None
