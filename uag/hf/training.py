"""What of a model behaves differently in training mode: by its modules and their code, not by its flag.

Passes in training mode may draw random numbers (dropout, layer drop, noise of routers), update buffers or keep no
cache. A model in which nothing of that kind is switched on, such as one trained without dropout, runs there as in
evaluation. To know that for certain, every place in the code of a module that looks at `training` is read, and must be
one of few that the module's own numbers settle: a dropout of 0, or a condition that another part of it decides alone.
"""

import ast
import inspect
import operator
import textwrap
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import pairwise
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from uag.hf.layers import modules

_TELLING = ("drop", "jitter", "noise")
"""Parts of names of numbers that are random in training where they are not 0."""

_NO_PASSES = frozenset(("__init__", "train", "eval", "extra_repr"))
"""Methods that no pass runs."""

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}

_Path = tuple[ast.AST, ...]


def training_effect(model: Any) -> str:
    """Name something in a model that is, or may be, different in training mode now; empty where nothing is."""
    return next((found for module in modules(model) if module.training and (found := _effect(module))), "")


def _effect(module: Any) -> str:
    owner: Any = type(module)  # to mypy no type is hashable
    kind = owner.__name__
    for name, value in vars(module).items():
        if _is_number(value) and value != 0 and any(part in name for part in _TELLING):
            return f"{name}={value!r} of {kind}"
    config = getattr(module, "config", None)
    for name in _telling_names(owner):
        value = getattr(config, name, None)
        if _is_number(value) and value != 0:
            return f"{name}={value!r} of {kind}"
    own = vars(module).get("forward")
    hooks = [*vars(module).get("_forward_hooks", {}).values(), *vars(module).get("_forward_pre_hooks", {}).values()]
    functions = [*_functions(owner), *(code for given in (own, *hooks) if given for code in _codes(given))]
    for code in functions:
        paths = [()] if code is None else _uses(code)
        if not all(_is_settled(path, module) for path in paths):
            return kind if next(module.children(), None) is not None else repr(module)
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# ---------------------------------------------------------------------- the code that a module runs


def _codes(function: Any) -> Iterator[CodeType | None]:
    """Yield the code of a function and of all that it wraps; None for what has no code to read."""
    while function is not None:
        inner = function.func if isinstance(function, partial) else function
        inner = inner.__func__ if isinstance(inner, MethodType) else inner
        yield inner.__code__ if isinstance(inner, FunctionType) else None
        function = getattr(function, "__wrapped__", None) or getattr(inner, "__wrapped__", None)


@lru_cache(maxsize=1024)
def _functions(kind: type) -> tuple[CodeType | None, ...]:
    """Return the code that looks at `training` in the methods of a class and the functions that they name."""
    found: dict[CodeType | None, None] = {}
    seen: set[Any] = set()
    waiting = list(_methods(kind))
    while waiting:
        function = waiting.pop()
        for code in _codes(function):
            if code in seen:
                continue
            seen.add(code)
            names = _names(code) if code is not None else frozenset()
            if code is None or "training" in names:
                found[code] = None
            known = getattr(function, "__globals__", {})
            called = [known.get(name) for name in names]
            # Those of its own file, and what it imports; torch's functions see only what they are given.
            if known.get("__name__") == kind.__module__:
                waiting += [c for c in called if isinstance(c, FunctionType) and not c.__module__.startswith("torch.")]
    return tuple(found)


def _methods(kind: type) -> Iterator[FunctionType]:
    for owner in kind.__mro__:
        if owner is not torch.nn.Module:
            for name, function in vars(owner).items():
                if isinstance(function, FunctionType) and name not in _NO_PASSES:
                    yield function


def _names(code: CodeType) -> frozenset[str]:
    """Return the names that a function and those inside it look up; "training" also where it is spelt as text."""
    inner = [_names(const) for const in code.co_consts if isinstance(const, CodeType)]
    return frozenset(code.co_names).union({"training"} & set(filter(_is_text, code.co_consts)), *inner)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


@lru_cache(maxsize=1024)
def _telling_names(kind: type) -> tuple[str, ...]:
    names = {name for method in _methods(kind) for code in _codes(method) if code for name in _names(code)}
    return tuple(sorted(name for name in names if any(part in name for part in _TELLING)))


# ---------------------------------------------------------------------- places that look at `training`


@lru_cache(maxsize=1024)
def _uses(code: CodeType) -> tuple[_Path, ...]:
    """Return each place that looks at `training`, with all that stands around it, from the outside in."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, SyntaxError, TypeError):
        return ((),)
    return tuple(_paths(tree, ()))


def _paths(node: ast.AST, above: _Path) -> Iterator[_Path]:
    path = (*above, node)
    if getattr(node, "attr", None) == "training" or getattr(node, "value", None) == "training":
        yield path
    for child in ast.iter_child_nodes(node):
        yield from _paths(child, path)


def _is_settled(path: _Path, module: Any) -> bool:
    """Whether what stands around a place gives the same with `training` as without."""
    for node, inner in pairwise(path):
        if isinstance(node, ast.BoolOp):
            decided = isinstance(node.op, ast.Or)
            others = [_value(part, module) for part in node.values if part is not inner]
            if any(value is not None and bool(value) is decided for value in others):
                return True
        elif isinstance(node, ast.IfExp) and inner is node.test:
            values = _value(node.body, module), _value(node.orelse, module)
            if _is_number(values[0]) and values[0] == values[1]:
                return True
        elif isinstance(node, ast.Call) and "dropout" in ast.unparse(node.func):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            if any(_is_zero(part, module, path) for part in given):
                return True
    return False


def _is_zero(part: ast.expr, module: Any, path: _Path) -> bool:
    if isinstance(part, ast.Name):
        # The rate that a function is given: whoever passes it on looks at `training` too, or holds it under its name.
        function = next((node for node in reversed(path) if isinstance(node, ast.FunctionDef)), None)
        given = [*function.args.args, *function.args.kwonlyargs] if function else []
        return "drop" in part.id and any(argument.arg == part.id for argument in given)
    value = _value(part, module)
    return _is_number(value) and value == 0


def _value(node: ast.expr, module: Any) -> Any:
    """Return what an expression over the module's own attributes gives; None where it cannot be told."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id="self"):
            return module
        case ast.Attribute(value=owner, attr=name):
            return getattr(_value(owner, module), name, None) if name != "training" else None
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(name)), default]):
            return getattr(_value(owner, module), name, _value(default, module))
        case ast.Call(func=ast.Name(id="float"), args=[inner]):
            return _value(inner, module)
        case ast.Compare(left=left, ops=[sign], comparators=[right]):
            return _compare(_value(left, module), sign, _value(right, module))
    return None


def _compare(left: Any, sign: ast.cmpop, right: Any) -> bool | None:
    compare = _COMPARISONS.get(type(sign))
    return bool(compare(left, right)) if compare and _is_number(left) and _is_number(right) else None
