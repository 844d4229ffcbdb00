"""Graphs of the stand-in device, with the interface of `torch.cuda.CUDAGraph` and `torch.cuda.graph`.

A replay runs exactly the recorded operations on exactly the recorded memory. So a number that was read from the host,
an input that is not copied into its buffer, or a tensor that was replaced gives a wrong output, as on a GPU. As there,
nothing runs while it is recorded, and copies between the host and the device are refused.
"""

import gc
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

recording = threading.Lock()
_streams = threading.local()
_WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class Stream:
    """The place where a thread's operations run; only its identity counts here."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device

    def wait_stream(self, other: "Stream") -> None:
        assert isinstance(other, Stream)


_default = Stream()


def current_stream(device: torch.device | None = None) -> Stream:
    return getattr(_streams, "current", _default)


@contextmanager
def stream(wanted: Stream) -> Iterator[None]:
    before = current_stream()
    _streams.current = wanted
    try:
        yield
    finally:
        _streams.current = before


class STANDINGraph:
    """A recorded sequence of operations; `num_recorded` and `num_replayed` count those of all graphs."""

    num_recorded = num_replayed = 0

    def __init__(self) -> None:
        self.steps: list[tuple[Any, Any, Any, Any]] = []

    def replay(self) -> None:
        STANDINGraph.num_replayed += 1
        for function, arguments, options, output in self.steps:
            results = zip(_on_device(output), _on_device(function(*arguments, **options)), strict=True)
            for recorded, computed in results:
                if _address(recorded) != _address(computed):
                    recorded.copy_(computed)


class graph:  # noqa: N801 - named as in torch.cuda
    def __init__(self, recorded: STANDINGraph, pool: int, stream: Stream, capture_error_mode: str = "global") -> None:
        assert isinstance(pool, int)
        if capture_error_mode != "thread_local":
            raise RuntimeError("other threads would end the recording")
        self._mode, self._stream = _Recording(recorded), stream

    def __enter__(self) -> None:
        if not recording.acquire(blocking=False):
            raise RuntimeError("there is another recording in the process")
        if gc.isenabled():
            recording.release()
            raise RuntimeError("memory of the device may be collected")
        self._before = current_stream()
        _streams.current = self._stream
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)  # type: ignore[no-untyped-call]
        recording.release()
        if self._mode.has_failed:  # as in PyTorch, the stream remains the one of the recording
            raise RuntimeError("operation failed due to a previous error during capture")
        _streams.current = self._before
        self._mode.undo()
        STANDINGraph.num_recorded += 1


class _Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, recorded: STANDINGraph) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.has_failed = False
        self._steps = recorded.steps
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # memory that existed before, and its content
        self._created: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            self._keep(func, args, kwargs)
            output = func(*args, **kwargs)
            self._check(func, (args, kwargs, output))
        except Exception:
            self.has_failed = True
            raise
        known = {_address(tensor) for tensor in _on_device((args, kwargs))}
        self._created |= {_address(made): _bytes(made) for made in _on_device(output) if _address(made) not in known}
        self._steps.append((func, *(tree_map(_pinned, part) for part in (args, kwargs, output))))
        return output

    def _keep(self, func: Any, args: Any, kwargs: Any) -> None:
        """Keep the content of memory that an operation will write to."""
        written = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        for tensor in _on_device([given.get(name) for name in written]):
            if _address(tensor) not in self._created and _address(tensor) not in self._before:
                memory = _bytes(tensor)
                self._before[_address(tensor)] = memory, memory.clone()

    def _check(self, func: Any, values: Any) -> None:
        tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        is_copy = "copy" in func.overloadpacket.__name__
        is_from_host = func is torch.ops.aten.lift_fresh.default and bool(
            _on_device(values)
        )  # torch.tensor(device=...)
        is_index = func is torch.ops.aten.index.Tensor
        waits = any(t.dtype is torch.bool for t in tree_leaves(values[0][1])) if is_index else _WAITING & {*func.tags}
        if waits or is_from_host or any(t.is_cpu and (t.dim() or is_copy) for t in tensors):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")

    def undo(self) -> None:
        """Nothing has run: restore what was written, and leave no result."""
        for memory, content in self._before.values():
            memory.copy_(content)
        for memory in self._created.values():
            memory.fill_(0x7F)


def _on_device(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and not leaf.is_cpu]


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _pinned(value: Any) -> Any:
    """Return a tensor of its own over the same memory, which stays the same if the tensor gets another one."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.clone() if value.is_cpu else value.detach()


handles = itertools.count()
