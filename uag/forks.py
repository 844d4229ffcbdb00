"""Locks and other things that end, whatever interrupts; a forked child inherits only those of its own thread.

A fork copies one thread. What the other threads hold then, nobody would release in the child: a lock would never be
free, and a change that a call undoes at its end would last. So all locks of uag, and all changes to what threads share,
are made here. Systems without forks need none of it.
"""

import inspect
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, partial
from typing import Any

_locks: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_brief: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_endings: dict[object, tuple[int, Callable[[], None], set[Any]]] = {}
"""By use: its thread, what to do in a child that does not have this thread, and the code of the signals' handlers when
it began, since a handler may replace itself before it raises an error."""
_SIGNALS = tuple(signal.valid_signals())


def lock() -> Any:
    """Return a reentrant lock for a moment. A fork waits for it, so that what it protects is whole in the child.

    Nothing inside it may wait for a thread: not for another lock of this module, and not for a model.
    """
    new = turn()
    _brief[id(new)] = new
    return new


def turn() -> Any:
    """Return a reentrant lock for long work. In a forked child it is free, unless the forking thread holds it."""
    new = threading.RLock()
    _locks[id(new)] = new
    return new


@contextmanager
def ending(undo: Callable[[], None], in_child: Callable[[], None] | None = None) -> Iterator[None]:
    """Run `undo` at the end, completely even if a signal interrupts it.

    It also runs if what it undoes has not been done, or only in part, and may run twice. A child that another thread
    forks runs `in_child` instead.
    """
    use, codes = object(), _codes()
    try:
        _endings[use] = threading.get_ident(), in_child or undo, codes
        yield
    finally:
        interrupt: BaseException | None = None
        while use in _endings:
            try:
                undo()
                del _endings[use]
            except BaseException as error:
                if not _is_of_signal(error):
                    del _endings[use]
                    raise
                interrupt = error
        if interrupt is not None:
            raise interrupt


def noting() -> AbstractContextManager[None]:
    """Let `let_pass` know the signals' handlers as they are now: one may replace itself before it raises an error."""
    return ending(lambda: None)


def let_pass(error: BaseException) -> None:
    """Raise what a signal's handler raised, such as a caller's time limit, if this error is it, or came of it."""
    running = {frame for frame, _ in traceback.walk_stack(inspect.currentframe())}
    seen: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in seen:
        if _is_of_signal(each):
            raise each
        seen.append(each)
        each = each.__cause__ or each.__context__
        if each is not None and each.__traceback__ is not None and each.__traceback__.tb_frame in running:
            return  # a caller handles it meanwhile, so it came before


def _is_of_signal(error: BaseException) -> bool:
    """Whether an exception is Ctrl-C's or the end of the process, or was raised by a handler that Python runs."""
    codes = _codes().union(*(noted for *_, noted in [*_endings.values()]))
    is_own = any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))
    return is_own or isinstance(error, KeyboardInterrupt | SystemExit)


def _codes() -> set[Any]:
    """Return what the signals' handlers run first."""
    return {_code(signal.getsignal(number)) for number in _SIGNALS} - {None}


def _code(handler: Any) -> Any:
    """Return the code that a handler runs first; None for those of C, and for none."""
    while isinstance(handler, partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)  # of a bound method
    if callable(function) and not hasattr(function, "__code__"):
        function = type(function).__call__
    return getattr(function, "__code__", None)


def in_child(run: Callable[[], None]) -> None:
    """Let every forked child run a function first."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=run)


_one_fork = lock()
_held: list[Any] = []  # the locks that the forking thread has waited for: first the one that other forks wait for


def _wait() -> None:
    for held in [reference() for reference in _brief.valuerefs()]:
        if held is not None:
            held.acquire()
            _held.append(held)


def _release() -> None:
    held = _held.copy()
    _held.clear()  # before another fork may begin
    for each in reversed(held):
        each.release()


def _locks_of_properties() -> Iterator[Any]:
    """Yield the locks that cached properties have before Python 3.12 (python/cpython#87634)."""
    for name, module in list(sys.modules.items()):
        kinds = list(vars(module).values()) if name.partition(".")[0] == "uag" else []
        for kind in [kind for kind in kinds if isinstance(kind, type)]:
            yield from (
                each.lock  # type: ignore[attr-defined]
                for each in vars(kind).values()
                if isinstance(each, cached_property)
            )


def _end_other_threads() -> None:
    locks = [reference() for reference in _locks.valuerefs()]
    for each in [*locks, *(_locks_of_properties() if sys.version_info < (3, 12) else ())]:
        if each is not None and not each._is_owned():
            each._at_fork_reinit()
    for use, (thread, undo, _) in reversed(list(_endings.items())):
        if thread != threading.get_ident():
            del _endings[use]
            undo()


if hasattr(os, "register_at_fork"):
    # Children run these in the order in which they are registered, and the two before a fork in the reverse one.
    os.register_at_fork(before=_wait, after_in_parent=_release, after_in_child=_release)
    os.register_at_fork(after_in_child=_end_other_threads)
