"""Attributes and variables that other code's classes may read as switches: if one changes, trials run again."""

from collections.abc import Iterator
from dis import get_instructions
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

import torch

from uag import forks
from uag.hf import foreign_code
from uag.hf.inspection import attributes, is_training, modules

_Name = tuple[Any, ...]  # the place of an owner, the name of an attribute, and that of a part if it has parts
_MOST_COUNTED = 8  # larger integers, which may count calls or tokens, are the same; a trial runs for each smaller one
_MOST_PARTS = 1000  # of larger containers, such as vocabularies, only the presence is read, which takes less time
_NO_SWITCHES = {*vars(torch.nn.Module()), "forward"} - {"training"}  # attributes that every module has


class Switches:
    """What may be switches of a model: two are equal if they differ only in what its passes change themselves.

    Empty for a model in evaluation mode whose code is all from PyTorch and transformers.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, model: Any) -> None:
        self._values = _values(model)
        self._changing: dict[_Name, set[Any]] = {}  # what passes change, and of which kinds it was

    def ignore_changes(self, model: Any) -> None:
        """Ignore from now on what passes have changed since, such as counters, times and memos."""
        now = _values(model)
        for name in _differing(self._values, now):
            self._changing[name] = {_kind(self._values.get(name)), _kind(now.get(name))}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Switches):
            return NotImplemented
        differing = _differing(self._values, other._values)
        return all(self._may_become(name, other._values.get(name)) for name in differing)

    def _may_become(self, name: _Name, value: Any) -> bool:
        is_part = bool(name[2:]) and name[:2] in self._changing  # of what passes add parts to
        return is_part or _kind(value) in self._changing.get(name, ())


def _kind(described: Any) -> Any:
    return described if isinstance(described, type | bool) else type(described)


def _differing(some: dict[_Name, Any], others: dict[_Name, Any]) -> set[_Name]:
    names = some.keys() & others.keys()  # parts that one of them lacks are among the names of the whole
    missing = {name for name in some.keys() ^ others.keys() if not name[2:]}
    return missing | {name for name in names if [some[name]] != [others[name]]}  # inside lists, NaN equals itself


def _values(model: Any) -> dict[_Name, Any]:
    if not (is_training(model) or foreign_code.has_unknown_code(model)):
        return {}
    configs = vars(model.config), vars(model.config.get_text_config(decoder=True))
    of_modules = (owner for module in modules(model) for owner in attributes(module))
    values: dict[_Name, Any] = {}
    for place, owner in enumerate([*of_modules, *_of_classes(model), *configs]):
        for name, value in [*owner.items()]:
            # Another thread's call may put a forward on a layer; those of other code are in the trial's key otherwise.
            if name not in _NO_SWITCHES:
                values[place, name], parts = _described(value)
                values.update({(place, name, of_part): part for of_part, part in parts.items()})
    return values


def _of_classes(model: Any) -> Iterator[dict[str, Any]]:
    """Yield the attributes of other code's classes, and the global variables that their functions read."""
    for kind in foreign_code.classes_of_others(model):
        own = dict(vars(kind))
        yield own
        for value in own.values():
            function = getattr(value, "fget", None) or getattr(value, "__func__", value)  # of properties and methods
            if isinstance(function, FunctionType):
                known = function.__globals__
                yield {name: known[name] for name in _globals(function.__code__) if name in known}


@lru_cache(maxsize=1 << 12)
def _globals(code: CodeType) -> set[str]:
    return {each.argval for each in get_instructions(code) if each.opname == "LOAD_GLOBAL"}


def _described(value: Any) -> tuple[Any, dict[str, Any]]:
    """Return what may be a switch in a value, and in its parts by their names."""
    if value is None or type(value) in (bool, float, str):  # most
        return value, {}
    try:
        return _described_parts(value)
    except Exception as error:  # noqa: BLE001 - an object of other code may raise anything
        forks.let_pass(error)
        return type(value), {}


def _described_parts(value: Any) -> tuple[Any, dict[str, Any]]:
    if isinstance(value, int):
        return _limited(value), {}
    if isinstance(value, list | tuple | set | frozenset):
        names = [each for each in [*value] if isinstance(each, str | bool)] if len(value) <= _MOST_PARTS else []
        return (type(value), len(value) > 0, set(names) if isinstance(value, set | frozenset) else names), {}
    if isinstance(value, dict):
        parts = value
    elif foreign_code.is_plain_object(value):
        parts = vars(value)
    else:
        return type(value), {}
    known = [*parts.items()] if len(parts) <= _MOST_PARTS else []
    of_names = {name: _inner(each) for name, each in known if isinstance(name, str)}
    return (type(value), len(parts) > 0, set(of_names)), of_names


def _inner(value: Any) -> Any:
    """Describe a value inside another one: of a float, only whether it is 0, since it may be a time."""
    if isinstance(value, int):
        return _limited(value)
    return value if isinstance(value, str) else value != 0 if isinstance(value, float) else type(value)


def _limited(value: int) -> int:
    return max(-1, min(value, _MOST_COUNTED))
