"""Passes over a static cache that are recorded as graphs of their kernels: on CUDA and XPU.

A pass of a small model takes as long as launching its kernels one by one, several times as long as running them. A
graph launches all of them at once, with the same arguments and addresses as when it was recorded.
"""

import gc
import weakref
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from transformers.modeling_outputs import CausalLMOutputWithPast

from uag import forks
from uag.errors import UnsupportedError
from uag.hf import models
from uag.hf.cache import caches, static
from uag.hf.devices import graphs_of
from uag.hf.inspection import has_hooks, inspected_once, modules

_ONE_AT_A_TIME = forks.turn()

_Pass = tuple[dict[str, Any], Any, torch.Tensor] | None  # inputs on the device, graph, logits; None if seen once


class GraphedModel(ABC):
    """Runs passes over a static cache without windows: the first of each shape as usual, the others as graphs.

    The second pass of a shape is recorded. Its graph is used if it computes the same bits as the pass itself. If not,
    or if recording fails, all passes run as usual. Threads can share the model, but not this object.

    `kind` is what the cache and its graphs are for, first the device; empty if no pass runs here. `failure` is why
    passes are not recorded.
    """

    def __init__(self) -> None:
        self.kind: tuple[Any, ...] = ()
        self.failure = ""
        self.renew(())

    def renew(self, kind: tuple[Any, ...], cache: Any = None) -> None:
        """Replace the cache, and drop its graphs; with an empty kind, passes do not run here."""
        self.kind, self.cache, self.failure = kind, cache, ""
        self._constants: list[Any] = []

    @property
    def cache(self) -> Any:
        """The cache, if there is one; another cache drops the graphs, which refer to its tensors."""
        return self._cache

    @cache.setter
    def cache(self, cache: Any) -> None:
        self._cache, self._passes = cache, dict[Hashable, _Pass]()

    @property
    def is_new(self) -> bool:
        """Whether no shape is recorded yet for the current cache."""
        return not self.failure and not any(self._passes.values())

    @abstractmethod
    def forward(self, *args: Any, **inputs: Any) -> torch.Tensor:
        """Run the model over `cache` with these inputs, all by name, and return its logits."""

    def run(self, inputs: dict[str, Any], length: int) -> tuple[torch.Tensor, bool]:
        """Run a pass after the first `length` slots, which the cache is set to.

        Returns the logits, which the next pass may overwrite, and whether the pass's time predicts nothing.
        """
        leaves = tree_leaves(inputs)
        constants = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        if constants != self._constants:
            self._constants, self._passes = constants, {}
        shapes = tuple(leaf.shape for leaf in leaves if isinstance(leaf, torch.Tensor))
        if not self.failure and shapes in self._passes:
            known = self._passes[shapes]
            if known is not None:
                buffers, graph, logits = known
                _fill(buffers, inputs)
                graph.replay()
                return logits, False
            try:
                return self._record(shapes, inputs, length), True
            except Exception as error:  # noqa: BLE001 - of the model, of PyTorch or of the driver
                forks.let_pass(error)
                cause = error.__context__ or error  # a recording that fails raises once more at its end
                self.failure = " ".join(str(cause).split()[:24]) or type(cause).__name__
                self._passes = {}
                static.set_length(self.cache, length)  # a pass may have advanced it
        self._passes[shapes] = None
        return self.forward(**moved(inputs, self.kind[0]), cache=self.cache), not self.failure

    def _record(self, shapes: Hashable, inputs: dict[str, Any], length: int) -> torch.Tensor:
        device, cache = self.kind[0], self.cache
        module = graphs_of(device)
        if self.is_new:  # a pool ends with its last graph
            self._pool, self._stream = module.graph_pool_handle(), module.Stream(device)
        stream, current = self._stream, module.current_stream(device)
        graph = getattr(module, f"{device.type.upper()}Graph")()
        options = {} if device.type == "xpu" else {"capture_error_mode": "thread_local"}
        # The outer stream context restores the stream after a recording that fails.
        with _ONE_AT_A_TIME, _without_collection(), module.device(device), module.stream(current):
            stream.wait_stream(current)
            with module.stream(stream):
                buffers = moved(inputs, device, copy=True)
                with _WithoutWaits():  # type: ignore[no-untyped-call]
                    expected = self.forward(**buffers, cache=cache)
                # Nothing runs while it is recorded. With other values than in the first replay, a value that became a
                # constant of the graph is found.
                tree_map_only(torch.Tensor, torch.Tensor.zero_, buffers)
                static.set_length(cache, 0)
                with module.graph(graph, pool=self._pool, stream=stream, **options):
                    logits = self.forward(**buffers, cache=cache)
                _fill(buffers, inputs)
                static.set_length(cache, length)
                graph.replay()
                if not torch.equal(logits, expected):
                    raise UnsupportedError("the first replay computed other logits than the pass itself")
        self._passes[shapes] = buffers, graph, logits
        return logits


def moved(inputs: dict[str, Any], device: torch.device, *, copy: bool = False) -> dict[str, Any]:
    """Return inputs on a device, also the tensors of dictionaries (masks by layer)."""
    on_device: dict[str, Any] = tree_map_only(torch.Tensor, lambda tensor: tensor.to(device, copy=copy), inputs)
    return on_device


def _fill(buffers: dict[str, Any], inputs: dict[str, Any]) -> None:
    for buffer, leaf in zip(tree_leaves(buffers), tree_leaves(inputs), strict=False):
        if isinstance(leaf, torch.Tensor):
            buffer.copy_(leaf, non_blocking=True)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Keep the garbage collector from freeing memory of the device, which would end a recording."""
    was_enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if was_enabled:
            gc.enable()


class _WithoutWaits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises where this thread waits for the device or copies to the host; `set_sync_debug_mode` is for all threads."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        tensors = [leaf for leaf in tree_leaves((args, kwargs, output)) if isinstance(leaf, torch.Tensor)]
        is_made = name == "lift_fresh"  # the end of `torch.tensor(..., device=...)`, whose copy is hidden from modes
        # A number from the host becomes an argument of the kernel, except where it is copied.
        places = {tensor.device.type for tensor in tensors if tensor.dim() or is_made or "copy" in name}
        if len(places | ({"cpu"} if is_made else set())) > 1 or _reads_result(func, args):
            raise UnsupportedError(f"a pass waits for the device, in {func}")
        return output


def _reads_result(func: Any, args: Any) -> bool:
    """Whether the host reads an operation's result, or its size, according to PyTorch's tags."""
    if "index" in func.overloadpacket.__name__:  # only a mask is read
        return any(getattr(index, "dtype", None) in (torch.bool, torch.uint8) for index in tree_leaves(args[1]))
    return not {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}.isdisjoint(func.tags)


def refusal(model: Any, device: torch.device) -> str:
    """Return why a model's passes cannot be recorded on a device, or an empty string."""
    module = graphs_of(device)
    parts = modules(model)
    if module is None:
        return f"PyTorch records no graphs on {device.type!r}"
    if getattr(module, "get_allocator_backend", lambda: "native")() != "native":
        return "a recording that fails would end the process with this allocator"
    if torch.is_autocast_enabled(device.type):
        return "autocast keeps copies of its weights"
    if models.is_compiled(model):
        return "it is compiled"
    if models.tensor_parallel_group(model) is not None or models.is_pipelined(model):
        return "it is spread over several processes"
    if any(has_hooks(part) or "_hf_hook" in vars(part) for part in parts):
        return "it has hooks, which a graph would not call"
    if any(tensor.device != device for tensor in model.parameters()):
        return f"its weights are not all on {str(device)!r}"
    return ""


def kind_of(model: Any, device: torch.device, *others: Hashable) -> tuple[tuple[Any, ...], str]:
    """Return what graphs of a model's passes on a device depend on, and else why they cannot be recorded."""
    with inspected_once(model):
        reason = refusal(model, device)
        return (() if reason else (device, *others, *state_of(model))), reason


def state_of(model: Any) -> tuple[Any, ...]:
    """Return what a graph of a model's passes depends on: addresses, and settings of modules, such as adapters."""
    return models.attention_of(model), *(value for part in modules(model) for value in _constants(vars(part)))


_IN_ALL_MODULES = vars(torch.nn.Module()).keys() - {"_parameters", "_buffers", "training"}


def _constants(values: dict[Any, Any]) -> Iterator[Any]:
    """Return the plain values and the tensors' addresses in a module's attributes, also those in containers."""
    for name, value in list(values.items()):  # another thread may put a forward on a layer
        if name in _IN_ALL_MODULES:
            continue
        if isinstance(value, torch.Tensor):
            yield value.data_ptr(), value.shape, value.dtype
        elif value is None or isinstance(value, bool | int | float | str):
            yield value
        elif value and isinstance(value, dict | list | tuple | set):
            items: dict[Any, Any] = value if isinstance(value, dict) else dict(enumerate(value))
            yield tuple(items), tuple(_constants(items))


_kept: weakref.WeakKeyDictionary[Any, "RecordedTarget"] = weakref.WeakKeyDictionary()
"""The passes of each model's last call. One more would need memory for another cache."""

_lock = forks.lock()


class RecordedTarget(GraphedModel):
    """A target's passes at the fixed width, over one static cache, empty at the start of a call that uses it.

    All have one shape, so one graph serves every pass after the prompt. The cache is kept for the next call.
    """

    def __init__(self, model: Any, num_slots: int, kind: tuple[Any, ...]) -> None:
        super().__init__()
        self.renew(kind, static.static_cache(model, num_slots))
        self._model = weakref.ref(model)  # the dictionary of kept passes would keep it alive

    @classmethod
    def take(cls, model: Any, num_rows: int, num_slots: int) -> "RecordedTarget | None":
        """Return the passes for a call, those of an earlier call if they fit, or None if they cannot be recorded."""
        # Tensors of inference mode cannot be written outside it.
        kind, reason = kind_of(model, model.device, num_rows, num_slots, torch.is_inference_mode_enabled())
        if reason:
            return None
        with _lock:
            kept = _kept.pop(model, None)
        if kept is None or kept.kind != kind:
            return cls(model, num_slots, kind)
        static.wipe(kept.cache, 0)
        static.set_length(kept.cache, 0)
        return kept

    def keep(self) -> None:
        """Keep the passes for the model's next call."""
        model = self._model()
        if model is not None:
            with _lock:
                _kept[model] = self

    def run_prepared(self, inputs: dict[str, Any]) -> tuple[Any, bool]:
        """Run a pass with inputs that transformers prepared; see `run`, but return the model's outputs."""
        inputs = {name: value for name, value in inputs.items() if name not in caches.CACHE_NAMES}
        logits, is_special = self.run(inputs, caches.length(self.cache))
        return CausalLMOutputWithPast(logits=logits), is_special

    def forward(self, cache: Any, **inputs: Any) -> torch.Tensor:
        model = self._model()
        if model is None:
            raise UnsupportedError("the target was deleted during a call")
        logits: torch.Tensor = model(**inputs, **{caches.CACHE: cache}).logits
        return logits
