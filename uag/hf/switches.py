"""Attributes and variables that other code's classes may read as switches: if one changes, trials run again."""

from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch

from uag import forks
from uag.hf import foreign_code
from uag.hf.inspection import attributes, is_training, modules

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
        self._changing = set[tuple[int, str]]()

    def ignore_changes(self, model: Any) -> None:
        """Ignore from now on what passes have changed since, such as counters, times and memos."""
        self._changing |= _differing(self._values, _values(model))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Switches):
            return NotImplemented
        return not _differing(self._values, other._values) - self._changing - other._changing


def _differing(some: dict[tuple[int, str], Any], others: dict[tuple[int, str], Any]) -> set[tuple[int, str]]:
    names = some.keys() | others.keys()
    # Inside lists, NaN equals itself.
    return {name for name in names if [some.get(name, _differing)] != [others.get(name, _differing)]}


def _values(model: Any) -> dict[tuple[int, str], Any]:
    if not (is_training(model) or foreign_code.has_unknown_code(model)):
        return {}
    configs = vars(model.config), vars(model.config.get_text_config(decoder=True))
    of_modules = (owner for module in modules(model) for owner in attributes(module))
    owners = enumerate([*of_modules, *_of_classes(model), *configs])
    # Another thread's call may put a forward on a layer; those of other code are in the trial's key otherwise.
    return {
        (place, name): _described(value)
        for place, owner in owners
        for name, value in [*owner.items()]
        if name not in _NO_SWITCHES
    }


def _of_classes(model: Any) -> Iterator[dict[str, Any]]:
    """Yield the attributes of other code's classes, and the global variables that their functions read."""
    for kind in foreign_code.classes_of_others(model):
        own = dict(vars(kind))
        yield own
        for value in own.values():
            function = getattr(value, "fget", None) or getattr(value, "__func__", value)  # of properties and methods
            if isinstance(function, FunctionType):
                known = function.__globals__
                yield {name: known[name] for name in function.__code__.co_names if name in known}


def _described(value: Any) -> Any:
    if value is None or type(value) in (bool, float, str):  # most
        return value
    try:
        return _described_parts(value)
    except Exception as error:  # noqa: BLE001 - an object of other code may raise anything
        forks.let_pass(error)
        return type(value)


def _described_parts(value: Any) -> Any:
    """Return an integer, or what a container or a plain object has: presence, names, flags and small integers."""
    if isinstance(value, int):
        return _limited(value)
    if isinstance(value, list | tuple | set | frozenset):
        names = [each for each in [*value] if isinstance(each, str | bool)] if len(value) <= _MOST_PARTS else []
        return type(value), len(value) > 0, set(names) if isinstance(value, set | frozenset) else names
    if isinstance(value, dict):
        parts = value
    elif foreign_code.is_plain_object(value):
        parts = vars(value)
    else:
        return type(value)
    known = [*parts.items()] if len(parts) <= _MOST_PARTS else []
    return type(value), len(parts) > 0, {name: _inner(each) for name, each in known if isinstance(name, str)}


def _inner(value: Any) -> Any:
    """Describe a value inside another one: of a float, only whether it is 0, since it may be a time."""
    if isinstance(value, int):
        return _limited(value)
    return value if isinstance(value, str) else value != 0 if isinstance(value, float) else type(value)


def _limited(value: int) -> int:
    return max(-1, min(value, _MOST_COUNTED))
