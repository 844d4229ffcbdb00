"""Run a trial of a model once, without side effects, and cache its result."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch._dynamo import eval_frame
from torch.utils._python_dispatch import TorchDispatchMode

from uag import forks
from uag.hf.wrapped import device_of

T = TypeVar("T")

_MOST_ANSWERS = 8  # of a trial: a model may change between as many states, such as adapters, without new trials
_MAX_COPIED = 1 << 20  # elements of the largest tensor, list or dictionary that is restored
_OF_PYTORCH = frozenset(vars(torch.nn.Module()))  # attributes that every module has

_SIGNS_OF_NO_MEMORY = ("MemoryError", "out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")
"""Parts of errors that report that memory ran out; cuBLAS and the CPU's allocator raise plain runtime errors."""

_known: weakref.WeakKeyDictionary[Any, tuple[dict[str, list[Any]], dict[str, Any], Any]] = weakref.WeakKeyDictionary()
"""By model: the answers of its trials with their keys, the keys of those that have raised once, and the lock."""

_lock = forks.lock()
_eager_trials: set[object] = set()
_stances: list[Any] = []  # PyTorch's before the first of these trials


def once(model: Any, name: str, run: Callable[[], T], failed: Callable[[str], T], key: Any = None) -> T:
    """Return the result of the trial `run` of a model, or what `failed` returns for an exception's description.

    It runs at the first call, again for another `key`, and once more if it raised. Compiled forwards run eagerly.
    Only calls of the same model wait for it.
    """
    itself = next(iter(model.modules()))  # the model may be a weak proxy, which cannot be a key
    with _lock:
        of_model, failures, lock = _known.setdefault(itself, ({}, {}, forks.turn()))
        answers: list[tuple[Any, T]] = of_model.setdefault(name, [])
    if found := [answer for known, answer in [*answers] if known == key]:
        return found[0]
    with lock, without_trace(model), _eagerly(), torch.no_grad():
        if found := [answer for known, answer in [*answers] if known == key]:
            return found[0]
        try:
            answer = run()
        except Exception as error:  # noqa: BLE001 - a foreign forward may raise anything
            forks.let_pass(error)
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            is_first = failures.get(name, failures) != key
            if is_first or any(sign in why for sign in _SIGNS_OF_NO_MEMORY):
                failures[name] = key  # later, more memory may be free, or the device may work again
                return failed(why[:140])
            answer = failed(why[:140])
        answers.append((key, answer))
        del answers[:-_MOST_ANSWERS]
        return answer


@contextmanager
def _eagerly() -> Iterator[None]:
    """Run compiled forwards eagerly. PyTorch has one stance for all threads, so the last trial to end restores it."""
    trial = object()

    def leave() -> None:
        with _lock:
            _eager_trials.discard(trial)
            if _stances and not _eager_trials:
                eval_frame._set_stance(_stances[0])
                _stances.clear()

    with forks.ending(leave):
        with _lock:
            if not _stances:
                _stances.append(eval_frame._stance)
                torch.compiler.set_stance("force_eager")
            _eager_trials.add(trial)
        yield


class DrawsError(RuntimeError):
    """A pass was about to draw random numbers."""


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises before this thread draws from any of PyTorch's generators, which other threads may share.

    It also keeps copies of parameters that are about to change in place: RWKV rescales its weights in its first pass.

    Attributes:
        changed: these parameters, each with its copy.
    """

    supports_higher_order_operators = True  # flex attention
    is_infra_mode = classmethod(lambda _: True)  # so that PyTorch compiles flex attention in this mode

    def __init__(self, model: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.changed: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._unchanged: dict[int, list[torch.Tensor]] = {}  # parameters, by their storages
        for each in model.parameters():
            if each.layout is torch.strided:
                self._unchanged.setdefault(each.untyped_storage()._cdata, []).append(each.detach())

    def _keep(self, arguments: Any, values: dict[str, Any]) -> None:
        for argument in arguments:
            is_written, value = argument.alias_info and argument.alias_info.is_write, values.get(argument.name)
            for part in (value if isinstance(value, list | tuple) else [value]) if is_written else ():
                if isinstance(part, torch.Tensor) and part.layout is torch.strided:
                    storage = part.untyped_storage()._cdata  # of any kind of tensor, also without memory
                    self.changed.extend((each, each.clone()) for each in self._unchanged.pop(storage, ()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = getattr(getattr(func, "_schema", None), "arguments", ())
        values = {argument.name: argument.default_value for argument in arguments}
        values |= dict(zip(values, args, strict=False)) | (kwargs or {})
        self._keep(arguments, values)
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()):
            # Attention and dropout draw nothing outside training mode, or with a probability of 0.
            switches = [values.get(name) for name in ("dropout_p", "p", "dropout", "train", "training")]
            if not any(isinstance(value, bool | int | float) and not value for value in switches):
                raise DrawsError(f"{func} draws random numbers")
        return func(*args, **(kwargs or {}))


def _copied(name: str, value: Any) -> Any:
    """Return a copy of what a pass may change in an attribute; None for what is large, and for PyTorch's own."""
    if isinstance(value, torch.Tensor):
        return value.clone() if value.numel() <= _MAX_COPIED and not value.is_meta else None
    is_copied = type(value) in (list, dict) and len(value) <= _MAX_COPIED and name not in _OF_PYTORCH
    return value.copy() if is_copied else None


def _put_back(value: Any, copied: Any) -> None:
    """Give a tensor, a list or a dictionary what its copy holds."""
    if isinstance(copied, list):
        value[:] = copied
    elif isinstance(copied, dict):
        value.clear()
        value.update(copied)
    elif copied is not None and not torch.equal(value, copied):
        value.copy_(copied)


@contextmanager
def without_trace(model: Any) -> Iterator[None]:
    """Restore a model's weights, buffers and attributes at the end; raise `DrawsError` before random numbers are drawn.

    Attributes that are made meanwhile go, and lists and dictionaries get back what they held. Another thread may place
    or remove functions, or change the mode meanwhile: these stay. What else it stores in the model's attributes
    meanwhile is lost.
    """
    owners = {id(owner): owner for module in model.modules() for owner in (vars(module), module._buffers)}

    def attributes() -> dict[tuple[int, str], Any]:
        return {(key, name): value for key, owner in owners.items() for name, value in owner.copy().items()}

    before = attributes()
    saved = {
        (key, name): (value, _copied(name, value))
        for (key, name), value in before.items()
        if not callable(value) and name != "training"
    }

    def forget() -> None:
        for (key, name), value in attributes().items():
            if (key, name) not in before and not callable(value):
                owners[key].pop(name, None)

    watch = _Watch(model)

    def restore() -> None:
        forget()
        with torch.inference_mode():  # some tensors may have been created in it
            for parameter, copied in watch.changed:
                parameter.copy_(copied)
            for (key, name), (value, copied) in list(saved.items()):
                owners[key][name] = value
                _put_back(value, copied)

    def restore_in_child() -> None:
        forget()
        for (key, name), (value, copied) in saved.items():
            owners[key][name] = value if copied is None else copied  # PyTorch's threads may not run in a child

    in_full = torch.autocast(device_of(model).type, enabled=False)
    with forks.ending(restore, restore_in_child), watch, in_full:
        yield
