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

from uag.hf.trials.evaluation import in_evaluation
from uag.hf.wrapped import device_of

T = TypeVar("T")

_MAX_COPIED = 1 << 20
"""Largest number of elements of a buffer that is restored after a trial; larger ones are usually lookup tables, which
no pass writes to. Increase to protect larger buffers; decrease to copy less."""

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

    def cached() -> tuple[Any, T] | None:
        of_model: dict[str, tuple[Any, T]] = _answers.get(_itself(model), {})
        return of_model[name] if name in of_model and of_model[name][0] == key else None

    entry = cached()  # without the lock: another model may be in a long trial
    if entry is not None:
        return entry[1]
    with _lock, nullcontext() if as_it_is else in_evaluation(model), without_trace(model, compiles), torch.no_grad():
        entry = cached()
        if entry is None:
            try:
                entry = key, run()
            except Exception as error:  # noqa: BLE001 - a foreign forward may raise anything
                if _is_out_of_memory(error):  # not cached: more memory may be free later
                    return failed(_described(error))
                entry = key, failed(_described(error))
            _answers.setdefault(_itself(model), {})[name] = entry
        return entry[1]


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out, which cuBLAS and the CPU's allocator report as plain runtime errors."""
    signs = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(sign in str(error) for sign in signs)


def _itself(model: Any) -> Any:
    return next(iter(model.modules()))  # a draft may be a weak proxy, which cannot be a key


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


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
        saved = [(module, *_copied(module)) for module in model.modules()]
        try:
            yield
        finally:
            for module, attributes, tensors in saved:
                _restore(module, attributes, tensors)


def _copied(module: Any) -> tuple[dict[str, Any], list[tuple[Any, Any]]]:
    """Return a module's attributes and buffers that are no functions, and copies of its small tensors."""
    values = {name: value for name, value in vars(module).items() if not callable(value)} | module._buffers
    tensors = [value for value in values.values() if isinstance(value, torch.Tensor) and value.numel() <= _MAX_COPIED]
    return values, [(tensor, tensor.clone()) for tensor in tensors if tensor.device.type != "meta"]


def _restore(module: Any, values: dict[str, Any], tensors: list[tuple[Any, Any]]) -> None:
    for name, value in values.items():
        known = module._buffers if name in module._buffers else vars(module)
        if known.get(name) is not value:
            known[name] = value
    for tensor, copy in tensors:
        if not torch.equal(tensor, copy):
            with torch.inference_mode(tensor.is_inference()):
                tensor.copy_(copy)
