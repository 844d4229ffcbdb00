"""What surrounds a call: autocast, gradient and inference modes, harmless modes, and a fork while a thread is in it."""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import uag
from tests.fuzz.case import Case
from tests.support.forked import elsewhere
from uag import forks
from uag.errors import UagError


class PassiveFunctionMode(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class PassiveDispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


CASTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast bfloat16": partial(torch.autocast, "cpu", torch.bfloat16),
    "autocast float16": partial(torch.autocast, "cpu", torch.float16),
}
MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "passive function mode": PassiveFunctionMode,
    "passive dispatch mode": PassiveDispatchMode,
}
AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    **CASTS,
    **MODES,
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
}
"""Maps a name to a context that a caller may be in."""


_FOLDER = str(Path(uag.__file__).parent)


@contextmanager
def around(case: Case) -> Iterator[None]:
    with ExitStack() as stack:
        for name in case.around:
            stack.enter_context(AROUND[name]())
        yield


def is_cast(case: Case) -> bool:
    """Return whether a call computes in half precision, where blocks round otherwise than single tokens."""
    return any(name in CASTS for name in case.around)


def held(case: Case, call: Callable[[], Any]) -> AbstractContextManager[None]:
    """Hold another thread at some function of uag inside a call, where it has no lock that a fork waits for."""
    place = int(10 ** random.Random(case.seed).uniform(0, 3.5))

    def run(wait: Callable[[], None]) -> None:
        count = 0

        def profile(frame: Any, event: str, _: Any) -> None:
            nonlocal count
            is_own = frame.f_code.co_filename.startswith(_FOLDER)  # others may have locks that PyTorch never frees
            count += is_own and event == "call"
            if is_own and count >= place and not any(lock._is_owned() for lock in list(forks._brief.values())):
                sys.setprofile(None)
                wait()

        sys.setprofile(profile)
        try:
            call()
        except (UagError, ValueError, RuntimeError):
            pass  # what the case's own calls raise
        finally:
            sys.setprofile(None)

    return elsewhere(run)
