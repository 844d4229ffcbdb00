"""Putting the fastest products in place for a while.

A layer's `forward` is shadowed by an attribute of the layer itself, which is taken away again at the end, also after an
error. Several threads may run one model: the attribute stays until the last of them is done, and only threads that
asked for fast products get them.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from uag.hf import layers, models, own
from uag.hf.locks import ProcessLock
from uag.products.choosing import MAX_ROWS, choose

_MIN_ENTRIES = 1 << 18
"""Entries of the smallest weight matrix that is looked at. Smaller ones lie in the cache; there is nothing to gain."""

_lock = ProcessLock()
_here = threading.local()


class FastProducts:
    """The layers of one model whose products may take another form.

    Only plain layers (see `uag.hf.layers`) in float32, and none of a model that is compiled or that someone changed or
    watches (`uag.hf.own`). In half precision PyTorch takes oneDNN by itself, and the order of a sum shows.

    Args:
        model: any module; None for no layers. It is looked through once, so make a new one for each call: hooks come
            and go.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        is_own = model is not None and not models.is_compiled(model) and not own.changes(model)
        found = layers.modules(model) if is_own else []
        self._layers = [module for module in found if type(module) in layers.PRODUCTS and _may_change(module)]
        self._pages: dict[tuple[Any, ...], list[torch.Tensor]] = {}
        for layer in self._layers:
            pages, weight = self._pages.setdefault(_kind(layer), []), layers.as_matrix(layer)
            if all(page.data_ptr() != weight.data_ptr() for page in pages):
                pages.append(weight)

    def __len__(self) -> int:
        """Return how many layers may take another form."""
        return len(self._layers)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Compute the products of this thread's passes in the fastest form."""
        placed = [] if getattr(_here, "is_off", False) else self._place()
        _here.depth = getattr(_here, "depth", 0) + 1
        try:
            yield
        finally:
            _here.depth -= 1
            _take_away(placed)

    def _place(self) -> list["_Fast"]:
        placed = []
        with _lock:
            for layer in self._layers:
                found = vars(layer).get("forward")
                if found is None:
                    found = layer.forward = _Fast(layer, self._pages[_kind(layer)])
                    layer.__getstate__ = found.state  # copy and pickle look it up on the instance
                if type(found) is _Fast:
                    found.num_users += 1
                    placed.append(found)
        return placed


@contextmanager
def switched(is_on: bool) -> Iterator[None]:
    """Let `FastProducts` of this thread do their work, or nothing."""
    before = getattr(_here, "is_off", False)
    _here.is_off = not is_on
    try:
        yield
    finally:
        _here.is_off = before


def is_on() -> bool:
    """Whether this thread wants passes in their fastest form."""
    return not getattr(_here, "is_off", False)


class _Fast:
    """Stands before a layer's own `forward`."""

    def __init__(self, layer: Any, pages: list[torch.Tensor]) -> None:
        self.num_users = 0
        self.layer = layer
        self._pages = pages

    def state(self) -> dict[str, Any]:
        """Return the layer's state for a copy that is made meanwhile, without what stands in its way here."""
        kind: Any = type(self.layer)
        state = kind.__getstate__(self.layer)
        return {name: value for name, value in state.items() if value is not self and name != "__getstate__"}

    def __call__(self, *given: Any, **named: Any) -> torch.Tensor:
        """Compute what the layer computes."""
        if named or len(given) != 1 or not _is_usual(given[0], self.layer):
            own: torch.Tensor = type(self.layer).forward(self.layer, *given, **named)
            return own
        x, weight = given[0], layers.as_matrix(self.layer)
        num_rows = x.numel() // x.shape[-1]
        # Rows with gaps between them take oneDNN hundreds of times as long.
        rows = x.reshape(num_rows, x.shape[-1]).contiguous()
        form = choose(rows, weight, self._pages)
        return form(rows, weight, self.layer.bias).view(*x.shape[:-1], weight.shape[0])


def _take_away(placed: list[_Fast]) -> None:
    with _lock:
        for fast in placed:
            fast.num_users -= 1
            if not fast.num_users:
                vars(fast.layer).pop("__getstate__", None)
            if not fast.num_users and vars(fast.layer).get("forward") is fast:
                del fast.layer.forward


def _kind(layer: Any) -> tuple[Any, ...]:
    return type(layer), layer.weight.shape, layer.weight.dtype


def _may_change(module: Any) -> bool:
    weight = module._parameters.get("weight")
    return (
        weight is not None
        and weight.numel() >= _MIN_ENTRIES
        and weight.dtype == torch.float32
        and layers.is_plain_product(module)
        and type(vars(module).get("forward")) in (type(None), _Fast)
    )


def _is_usual(x: Any, layer: Any) -> bool:
    """Whether this thread asked for fast products, and nobody watches this one.

    That is: few rows, no gradients, casts or tracing, no tensors with ways of their own.
    """
    return (
        getattr(_here, "depth", 0) > 0
        and not getattr(_here, "is_off", False)
        and type(x) is torch.Tensor
        and x.dtype == layer.weight.dtype == torch.float32
        and x.device.type == "cpu"
        and x.dim() > 0
        and x.shape[-1] == layers.as_matrix(layer).shape[1]
        and 0 < x.numel() <= MAX_ROWS * x.shape[-1]
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    )
