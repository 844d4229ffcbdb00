"""Computes a model's linear layers in faster forms during uag's passes.

A `forward` attribute on a layer shadows the method of its class. It is removed when the last thread that uses it
leaves, even after an error. Other threads that run the model meanwhile use the layer's own product.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from uag.hf import foreign_code, inspection, models
from uag.products import kernel
from uag.products.forms import IS_USED, MAX_ROWS, pick_form

_MIN_ENTRIES = 1 << (16 if kernel.LEVEL else 19)
"""Smallest number of weights of a layer that uses another form; the kernel wins on smaller layers than the forms do.
Decrease to cover smaller layers; increase to skip layers whose weights stay in the CPU cache, where their own product
is as fast."""

_thread = threading.local()


class FastProducts:
    """The layers of one model whose products may use another form.

    These are the unchanged float32 `nn.Linear` layers on the CPU, unless the model is compiled or other code changes or
    observes it (`uag.hf.foreign_code`). In half precision, PyTorch uses oneDNN itself, which rounds differently.

    Args:
        model: any module; None for no layers. It is examined only once, so create a new object for each call, since
            hooks may change.
        has_half: whether the kernel also computes bfloat16 layers, with other rounding than plain decoding.
    """

    def __init__(self, model: nn.Module | None = None, *, has_half: bool = False) -> None:
        is_used = IS_USED and not foreign_code.is_product_replaced()
        is_excluded = model is None or not is_used or models.is_compiled(model) or bool(foreign_code.changes(model))
        modules = [] if is_excluded else inspection.modules(model)
        dtypes = (torch.float32, torch.bfloat16) if has_half and kernel.LEVEL else (torch.float32,)
        self._layers = [module for module in modules if _is_suitable(module, dtypes)]

    def __len__(self) -> int:
        """Return the number of layers that may use another form in this thread."""
        return len(self._layers) if _is_on() else 0

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Compute the products of this thread's passes in the forms that the rule picks."""
        thread_id = threading.get_ident()
        entered = []
        try:
            for layer in self._layers if _is_on() else ():
                forward = vars(layer).get("forward")
                if type(forward) is not _FastForward:
                    forward = vars(layer)["forward"] = _FastForward(layer)
                if thread_id not in forward.thread_ids:
                    forward.thread_ids.add(thread_id)
                    entered.append(forward)
            yield
        finally:
            for forward in entered:
                forward.leave(thread_id)


@contextmanager
def switched(is_on: bool) -> Iterator[None]:
    """Switch `FastProducts` on or off in this thread."""
    before = _is_on()
    _thread.is_on = is_on
    try:
        yield
    finally:
        _thread.is_on = before


def _is_on() -> bool:
    return getattr(_thread, "is_on", True)


class _FastForward:
    """The `forward` of a layer for the threads in `thread_ids`; all others use the layer's own.

    There is no lock, because a forked process could inherit it locked. Two threads that enter or leave at the same time
    may remove each other's `forward`; the layer then computes its own product, which differs only by rounding.
    """

    def __init__(self, layer: nn.Linear) -> None:
        self.layer, self.parameters = layer, inspection.parameters(layer)
        self.thread_ids: set[int] = set()

    def leave(self, thread_id: int) -> None:
        """Remove a thread; after the last one, remove this object from the layer."""
        self.thread_ids.discard(thread_id)
        if not self.thread_ids and vars(self.layer).get("forward") is self:
            vars(self.layer).pop("forward", None)

    def __reduce__(self) -> tuple[Any, ...]:
        """Become the layer's own `forward` in a copy, and in a pickle, which then needs no uag."""
        return getattr, (self.layer, "forward")

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Compute the layer's product."""
        layer = self.layer
        if not kwargs and len(args) == 1 and threading.get_ident() in self.thread_ids:
            x, weight, bias = args[0], self.parameters["weight"], self.parameters["bias"]
            if weight is not None and _is_usual(x, weight):
                form = pick_form(x.numel() // weight.shape[1])
                y = None if form is None else form(x.contiguous(), weight, bias)  # oneDNN is slow on rows with gaps
                if y is not None:
                    return y
        return nn.Linear.forward(layer, *args, **kwargs)


def _is_own(forward: Any) -> bool:
    """Return whether a layer has no other `forward` than its class's: none, this module's, or the one in a copy."""
    return forward is None or type(forward) is _FastForward or getattr(forward, "__func__", None) is nn.Linear.forward


def _is_suitable(layer: Any, dtypes: tuple[torch.dtype, ...]) -> bool:
    """Return whether a layer is an unchanged `nn.Linear` on the CPU that is large enough for another form.

    False for subclasses, and for layers with parametrizations, or with quantized, sharded or offloaded weights.
    """
    if type(layer) is not nn.Linear or layer.in_features * layer.out_features < _MIN_ENTRIES:  # cheap, for hundreds
        return False
    weight, bias = layer.weight, layer.bias
    return (
        type(weight) is nn.Parameter
        and (bias is None or type(bias) is nn.Parameter)
        and weight.device.type == "cpu"
        and weight.dtype in dtypes
        and (bias is None or bias.dtype == weight.dtype)
        and weight.is_contiguous()
        and weight.numel() >= _MIN_ENTRIES
        and not inspection.has_hooks(layer)
        and _is_own(vars(layer).get("forward"))
    )


def _is_usual(x: Any, weight: torch.Tensor) -> bool:
    """Return whether an input is a plain tensor with few rows of the weight's dtype, without gradients or tracing."""
    num_in = weight.shape[1]
    return (
        _is_on()
        and type(x) is torch.Tensor
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.dtype == weight.dtype
        and x.is_cpu
        and x.dim() > 0
        and x.shape[-1] == num_in
        and 0 < x.numel() <= MAX_ROWS * num_in
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    )
