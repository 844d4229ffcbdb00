"""Which operations of PyTorch may round a token by the number of tokens in its pass.

Products and convolutions choose their code by the shape. Functions of single values have one form for whole vectors and
one for what is left over. Whether these agree is measured, for each dtype and each number among the arguments.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from uag import forks
from uag.kernels import operations

_MOVES = {
    "aten::_local_scalar_dense", "aten::_to_copy", "aten::_unsafe_view", "aten::alias",
    "aten::argmax", "aten::argmin", "aten::argsort", "aten::cat", "aten::constant_pad_nd", "aten::copy_",
    "aten::diff", "aten::embedding", "aten::empty_like", "aten::fill", "aten::fill_", "aten::flip", "aten::full_like",
    "aten::gather", "aten::index", "aten::index_add", "aten::index_add_", "aten::index_copy", "aten::index_copy_",
    "aten::index_fill", "aten::index_fill_", "aten::index_select",
    "aten::item", "aten::lift_fresh", "aten::masked_fill_", "aten::masked_scatter", "aten::masked_scatter_",
    "aten::masked_select", "aten::new_empty", "aten::new_empty_strided", "aten::new_full",
    "aten::new_ones", "aten::new_zeros", "aten::nonzero", "aten::ones_like", "aten::pad", "aten::repeat",
    "aten::repeat_interleave", "aten::roll", "aten::scatter", "aten::scatter_", "aten::select_scatter",
    "aten::slice_copy", "aten::slice_scatter", "aten::sort", "aten::split_with_sizes_copy", "aten::stack",
    "aten::topk", "aten::tril", "aten::tril_", "aten::triu", "aten::triu_", "aten::zero_", "aten::zeros_like",
}  # fmt: skip
"""Operations besides views that only move and compare values, or add one to another in their order."""

_VALUES = {"aten::polar"}  # functions of single values that PyTorch does not mark as such

_SUMS = {
    "aten::_log_softmax", "aten::_softmax", "aten::linalg_vector_norm", "aten::logsumexp", "aten::mean",
    "aten::norm", "aten::std", "aten::std_mean", "aten::sum", "aten::var", "aten::var_mean",
}  # fmt: skip
"""Operations that compute every row in the same way, if the rows are of the same length, as many lie side by side, and
their values are all or none adjacent."""

_EXTREMES = {"aten::amax", "aten::amin", "aten::max", "aten::min"}  # moves, unless they compare all values

_PUTS = {"aten::index_put", "aten::index_put_", "aten::_unsafe_index_put"}  # moves, unless they add in any order

_LEAST_SPLIT = 1 << 15  # values of the shortest sum with a single result that PyTorch divides among its threads

_NORMS = {"aten::_fused_rms_norm", "aten::native_layer_norm"}  # the same for rows whose shape is the second argument


class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations in a thread that may round by the number of tokens.

    Attributes:
        sizes: the operations' names, each with the sizes by which it may round.
        counts: how often each was seen, and what the kernels left to PyTorch, whose sizes are None.
    """

    supports_higher_order_operators = True  # flex attention
    is_infra_mode = classmethod(lambda _: True)  # so that PyTorch compiles flex attention in this mode

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: set[tuple[str, Any]] = set()
        self.counts: Counter[tuple[str, Any]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note an operation and run it."""
        kwargs = kwargs or {}
        is_plain = all(kind in (torch.Tensor, torch.nn.Parameter) for kind in types)
        known = _kind(func) if is_plain else "unknown"  # a subclass of tensors computes anything
        if known != "move" and (sizes := _sizes(known, func, args, kwargs)) is not None:
            self.sizes.add((func.name(), sizes))
            self.counts[func.name(), sizes] += 1
        return func(*args, **kwargs)


@cache
def _kind(operation: Any) -> str:
    if not isinstance(operation, type(torch.ops.aten.add.Tensor)):
        return "unknown"  # a higher-order operator
    name = str(operation.name()).partition(".")[0]  # type: ignore[no-untyped-call]
    if operation.is_view or name.startswith("prim"):
        return "move"
    if torch.Tag.pointwise in operation.tags:
        return "values"
    kinds = {
        "move": _MOVES, "values": _VALUES, "sum": _SUMS, "norm": _NORMS, "bmm": {"aten::bmm"}, "put": _PUTS,
        "extreme": _EXTREMES,
    }  # fmt: skip
    return next((kind for kind, names in kinds.items() if name in names), "unknown")


def _sizes(kind: str, operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the sizes by which an operation may round, or None if it does not."""
    lists = [arg if isinstance(arg, list | tuple) else [arg] for arg in args]
    tensors = [each for of_arg in lists for each in of_arg if isinstance(each, torch.Tensor)]
    shapes = tuple((each.numel(),) if each.is_nested else tuple(each.shape) for each in tensors)
    if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors) or not any(shapes):
        return None
    if kind == "values" and _is_even(operation, _described(args), _described(kwargs.items())):
        return None
    if kind == "bmm" and shapes[0][-1] == 1:  # such as rotary positions: there is nothing to sum
        return None
    if kind == "put" and not (kwargs.get("accumulate") or args[3:4] == (True,)):
        return None
    if kind == "extreme" and args[1:2] not in ((), ([],), ((),)):  # not of all values
        return None
    if kind == "norm":
        return tuple(args[1])
    is_rough = tensors[0].dtype is torch.float64 and operation.name().startswith(("aten::std", "aten::var"))
    if kind == "sum" and not tensors[0].is_nested and not is_rough:  # their loop over several rows differs from one's
        names = (argument.name for argument in operation._schema.arguments)
        dims = (dict(zip(names, args, strict=False)) | kwargs).get("dim")
        dims = range(len(shapes[0])) if dims is None else dims
        dims = [dims] if isinstance(dims, int) else dims
        return _sizes_of_sum(tensors[0], dims, "softmax" in operation.name())
    return shapes


def _sizes_of_sum(x: torch.Tensor, dims: Sequence[int], is_softmax: bool) -> Any:
    """Return whether threads share the only sum, how many sums lie side by side, and the sizes of what is summed."""
    sizes, steps, dims = x.shape, x.stride(), [dim % x.dim() for dim in dims]
    if is_softmax:  # of a contiguous copy; its threads share out even what lies side by side
        return tuple(sizes) if math.prod(sizes[dims[0] + 1 :]) > 1 else sizes[dims[0]]
    summed = {dim for dim in dims if sizes[dim] > 1}
    kept = [dim for dim in range(x.dim()) if dim not in summed and sizes[dim] > 1]
    in_order = all(steps[one] > steps[other] > 0 for one, other in pairwise(kept))
    if 0 in {steps[dim] for dim in summed} or not (in_order or 1 in {steps[dim] for dim in summed}):
        return tuple(sizes)  # PyTorch's order of the loops depends on the sizes
    columns = math.prod(sizes[dim] for dim in kept if steps[dim] < max((steps[each] for each in summed), default=0))
    is_split = math.prod(sizes[dim] for dim in dims) == x.numel() >= _LEAST_SPLIT and torch.get_num_threads() > 1
    return is_split, columns, *((sizes[dim], sizes[dim] > 1 and steps[dim] == 1) for dim in dims)


def _described(arguments: Any) -> Any:
    """Return arguments as a key, in which tensors are their dtypes."""
    if isinstance(arguments, torch.Tensor):
        return arguments.dtype, arguments.dim() == 0
    if isinstance(arguments, list | tuple) or type(arguments).__name__ == "dict_items":
        return tuple(map(_described, arguments))
    return arguments


@lru_cache(maxsize=1 << 12)  # a number may differ in each pass
def _is_even(operation: Any, args: Any, kwargs: Any) -> bool:
    """Return whether a function of single values gives each the same result in a vector and alone."""
    given = [_values(*each, place) if _is_tensor(each) else each for place, each in enumerate(args)]

    def run(take: Any) -> Any:
        taken = [take(each) if isinstance(each, torch.Tensor) and each.dim() else each for each in given]
        return operation(*taken, **dict(kwargs))

    try:
        whole, single = run(torch.clone), run(lambda x: x.repeat_interleave(2)[::2])  # strided, so value by value
        parts = [run(lambda x, n=n: x[:n].clone()) for n in range(1, 20)]
        pairs = [(whole, single), *((whole[: len(part)], part) for part in parts)]
        return all(bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in pairs)
    except Exception as error:  # noqa: BLE001 - an argument or a result that was not foreseen
        forks.let_pass(error)
        return False


def _is_tensor(described: Any) -> bool:
    return isinstance(described, tuple) and len(described) == 2 and isinstance(described[0], torch.dtype)


@cache
def _values(dtype: torch.dtype, is_number: bool, place: int) -> torch.Tensor:
    """Return values for an argument: all that half precision has, or some thousands."""
    generator, size = np.random.default_rng(place), 1 << 16  # PyTorch's own would be noticed as a draw of the target
    if dtype.itemsize == 2 and dtype.is_floating_point:
        values = torch.from_numpy(generator.permutation(size).astype(np.uint16).view(np.int16)).view(dtype)
    elif dtype.is_floating_point or dtype.is_complex:
        values = torch.from_numpy(generator.normal(0, 3, (size, 2))).view(torch.complex128)[:, 0]
        values = values.to(dtype) if dtype.is_complex else values.real.to(dtype)
    else:
        values = torch.from_numpy(generator.integers(0, 2, size)).to(dtype)
    return values[0] if is_number else values


@contextmanager
def watching() -> Iterator[Seen]:
    """Note what this thread runs in PyTorch."""
    seen = Seen()
    with seen, _counting(seen.counts):
        yield seen


@contextmanager
def _counting(counts: Counter[tuple[str, Any]]) -> Iterator[None]:
    before = operations.state.passed_on
    try:  # an interrupt may come at any place
        operations.state.passed_on = counts
        yield
    finally:
        operations.state.passed_on = before


class Watch:
    """Notices what a call's passes run in PyTorch, but those of the target's trial did not.

    What the kernels leave to PyTorch is counted in each pass. All operations are noted only with `looks_closely`, in
    passes of more than one token per row, since that costs some microseconds for each.

    Attributes:
        found: what the last pass ran, phrased to follow "the target"; empty if there is nothing.
    """

    def __init__(self, known: Counter[tuple[str, Any]] | None = None, *, looks_closely: bool = False) -> None:
        self.found = ""
        self._known = known
        self._looks_closely, self._widest = looks_closely, 1

    @contextmanager
    def over(self, width: int) -> Iterator[bool]:
        """Watch a pass over some tokens of each row, and yield whether it takes longer than others of its width."""
        if self._known is None:
            self.found = ""
            yield False
            return
        is_close = self._looks_closely and width > 1  # a class may compute longer blocks and texts in another way
        is_first, self._widest = width > self._widest, max(width, self._widest)
        seen = Seen()
        with seen if is_close else nullcontext(), _counting(seen.counts):
            yield is_close and is_first
        names = sorted({name for name, _ in seen.counts - self._known})
        self.found = f"ran {', '.join(names)} in PyTorch, unlike in its trial" if names else ""
