"""Puts uag's kernels in place of a model's operations during passes on a CPU.

A `forward` attribute on a linear layer or an activation shadows the method of its class, and transformers' registries
of attention and experts return uag's functions (`uag.kernels.operations`). All of them do what they replace, unless
their thread is inside `running` or `reading`. So other threads that run the same model get transformers' own
operations.
"""

import copy
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from transformers import activations
from transformers.pytorch_utils import Conv1D

from uag import forks
from uag.hf import devices, foreign_code, inspection, models
from uag.kernels import functions, kernel, operations, recurrences, registries
from uag.kernels.decoder import Decoder

_thread = threading.local()

FEW_ROWS = 32
"""Most rows of a pass whose width does not matter to its caller, such as a draft's. With more rows, PyTorch's products
reach a higher peak."""

_lock = forks.lock()


class OwnKernels:
    """The operations of one model that uag's kernels may compute.

    These are the unchanged linear layers (`nn.Linear`, `Conv1D`) and activations on the CPU, and attention and experts
    that transformers' registries look up, unless the model is compiled or other code changes or observes it
    (`uag.hf.foreign_code`).

    Args:
        model: any module; None for no operations. It is examined only once, so create a new object for each call,
            since hooks may change.
        everywhere: also replace functions that a forward calls itself, such as a router's product, and run recurrences
            token by token. Every function that a pass calls then costs some microseconds more.

    Attributes:
        decoder: runs the model's passes in one call; None if layers run one by one.
    """

    def __init__(self, model: nn.Module | None = None, *, everywhere: bool = False) -> None:
        self.everywhere = everywhere
        self.decoder: Decoder | None = None
        self._why_none = next(filter(None, _exclusions(model)), "")
        placed = [] if self._why_none else [_Placed.on(module) for module in inspection.modules(model)]
        has_weights = any(each is not None and isinstance(each.layer, nn.Linear | Conv1D) for each in placed)
        self._placed = [each for each in placed if each is not None and has_weights]

    def __len__(self) -> int:
        """Return the number of layers among them."""
        return len(self._placed)

    @property
    def why_none(self) -> str:
        """Why there are none, phrased to follow "the target"; empty if there are some."""
        return "" if self._placed else self._why_none or "has no layers in full precision or half precision on the CPU"

    def step(self, layers: Collection[nn.Module]) -> bool:
        """Return whether they run the recurrences of all these layers token by token, if they are `everywhere`."""
        return {*layers} <= {each.layer for each in self._placed if each.is_stepped}

    def replacing_functions(self) -> "OwnKernels":
        """Return the same operations with `everywhere`."""
        other = copy.copy(self)
        other.everywhere = True
        return other

    def in_one_call(self, decoder: Decoder) -> "OwnKernels":
        """Return the same operations, for passes that `uag.kernels.one_call` does not run."""
        other = copy.copy(self)
        other.decoder = decoder
        return other

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the kernels in place, for `running`, until the last of nested and overlapping uses ends."""
        if not self._placed:
            yield
            return
        use = object()
        with forks.ending(lambda: self._leave(use)):
            with _lock:
                registries.enter(use, operations.attention, operations.experts)
                for placed in self._placed:
                    current = placed.attributes.get("forward")
                    if type(current) is not _Placed:
                        current = placed.attributes["forward"] = placed
                    current.uses.add(use)
            yield

    def _leave(self, use: object) -> None:
        with _lock:
            registries.leave(use)
            for placed in self._placed:
                current = placed.attributes.get("forward")
                if type(current) is _Placed:
                    current.uses.discard(use)
                    if not current.uses:
                        del placed.attributes["forward"]

    @contextmanager
    def running(self, most_rows: int | None = None) -> Iterator[None]:
        """Use the kernels in this thread's passes: for any number of rows, or for at most `most_rows`."""
        if not self._placed:
            yield
            return
        state = operations.state
        before = state.most_rows, state.replaces_functions
        is_new = self.everywhere and not before[1]  # a second one would only repeat the work of the first
        replaced: AbstractContextManager[Any] = functions.Functions() if is_new else nullcontext()
        try:
            state.most_rows = operations.ANY if most_rows is None else most_rows
            state.replaces_functions = self.everywhere
            with replaced:
                yield
        finally:
            state.most_rows, state.replaces_functions = before

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Use the kernels in this thread's passes for products of any number of rows where PyTorch's are slow.

        These are products in half precision, on processors without instructions for them.
        """
        state = operations.state
        before, state.reads_prompt = state.reads_prompt, bool(self._placed)
        try:
            yield
        finally:
            state.reads_prompt = before


@contextmanager
def switched(is_on: bool) -> Iterator[None]:
    """Let the `OwnKernels` that this thread creates have operations, or none."""
    before = getattr(_thread, "is_on", True)
    try:
        _thread.is_on = is_on
        yield
    finally:
        _thread.is_on = before


def _exclusions(model: nn.Module | None) -> Iterator[str]:
    """Yield why a model's operations are left to PyTorch, phrased to follow "the target"; some may be empty."""
    yield "does not use uag's kernels (own_kernels=False)" if not getattr(_thread, "is_on", True) else ""
    if model is None:
        yield "is compiled"
        return
    yield "" if kernel.LEVEL else f"runs without uag's kernels: {kernel.MISSING}"
    yield "is split over ranks, which must run the same operations" if models.tensor_parallel_group(model) else ""
    yield "is compiled" if models.is_compiled(model) else ""
    yield "runs under torch.autocast" if torch.is_autocast_enabled("cpu") else ""
    products = (part for part in inspection.modules(model) if type(part) in (nn.Linear, Conv1D))
    is_rounded = devices.float32_is_rounded() and any(part.weight.dtype is torch.float32 for part in products)
    yield "multiplies float32 in fewer bits (torch.set_float32_matmul_precision)" if is_rounded else ""
    yield "runs while other code replaces nn.Linear or its function" if foreign_code.is_product_replaced() else ""
    yield "may call functions that are compiled" if foreign_code.has_compiled_functions(model) else ""
    yield f"is changed by other code ({change})" if (change := foreign_code.changes(model)) else ""


class _Placed:
    """The `forward` of a layer while uag's kernels are in place: an attribute among the layer's `attributes`."""

    def __init__(
        self,
        layer: nn.Module,
        run: Callable[[nn.Module, torch.Tensor], torch.Tensor | None] | None,
        stepped: Callable[..., Any] | None = None,
    ) -> None:
        self.layer, self._run, self._stepped, self.attributes = layer, run, stepped, vars(layer)
        self.is_stepped = stepped is not None
        self.uses: set[object] = set()

    @classmethod
    def on(cls, layer: nn.Module) -> "_Placed | None":
        """Return the object for a layer, or None if no kernel suits it."""
        run = _RUN.get(type(layer))
        stepped = None if run else recurrences.stepped(type(layer))
        forward = vars(layer).get("forward")
        if not (run or stepped) or inspection.has_hooks(layer) or not _is_own(layer, forward):
            return None
        if isinstance(layer, nn.Linear | Conv1D) and not _has_plain_weights(layer):
            return None
        return cls(layer, run, stepped)

    def __reduce__(self) -> tuple[Any, ...]:
        """Become the layer's own `forward` in a copy, and in a pickle, which then needs no uag."""
        return getattr, (self.layer, "forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the layer's output."""
        state = operations.state
        if self._stepped and state.replaces_functions:
            return self._stepped(self.layer, *args, **kwargs)
        if self._run and (state.most_rows or state.reads_prompt):
            x: Any = args[0] if len(args) == 1 and not kwargs else None
            is_product = isinstance(self.layer, nn.Linear | Conv1D)
            is_known = operations.is_usual(x) or (is_product and operations.is_of_prompt(x))
            with operations.direct():
                output = self._run(self.layer, x) if is_known else None
            if output is not None:
                return output
            operations.pass_on(type(self.layer).__name__)
        return type(self.layer).forward(self.layer, *args, **kwargs)


def _linear(layer: nn.Module, x: torch.Tensor) -> torch.Tensor | None:
    parameters = inspection.parameters(layer)
    return kernel.linear(x, parameters["weight"], parameters["bias"])


def _conv1d(layer: nn.Module, x: torch.Tensor) -> torch.Tensor | None:
    parameters = inspection.parameters(layer)
    return kernel.conv1d(x, parameters["weight"], parameters["bias"])


def _gate(kind: str) -> Callable[[nn.Module, torch.Tensor], torch.Tensor | None]:
    def run(layer: nn.Module, x: torch.Tensor) -> torch.Tensor | None:  # noqa: ARG001 - it has no weights
        return kernel.gate(x, kind)

    return run


def _gelu(layer: nn.Module, x: torch.Tensor) -> torch.Tensor | None:
    return kernel.gate(x, "gelu" if layer.approximate == "none" else "gelu_tanh")


_RUN: dict[type, Callable[[Any, torch.Tensor], torch.Tensor | None]] = {
    nn.Linear: _linear,
    Conv1D: _conv1d,
    nn.SiLU: _gate("silu"),
    activations.SiLUActivation: _gate("silu"),
    nn.GELU: _gelu,
    activations.GELUActivation: _gate("gelu"),
    activations.GELUTanh: _gate("gelu_tanh"),
    activations.QuickGELUActivation: _gate("quick_gelu"),
}
"""The kernel of each class of layers. Subclasses compute something else."""


def _is_own(layer: nn.Module, forward: Any) -> bool:
    """Return whether a layer has no other `forward` than its class's: none, this module's, or the one in a copy."""
    return forward is None or type(forward) is _Placed or getattr(forward, "__func__", None) is type(layer).forward


def _has_plain_weights(layer: nn.Linear | Conv1D) -> bool:
    """Return whether a layer's weights are plain parameters that the kernels can read.

    False for parametrizations, and for quantized, sharded or offloaded weights.
    """
    parameters = inspection.parameters(layer)
    weight, bias = parameters.get("weight"), parameters.get("bias", ...)  # it may have become a plain attribute
    is_plain = type(weight) is nn.Parameter and (bias is None or type(bias) is nn.Parameter)
    return is_plain and kernel.can_read(weight, bias)
