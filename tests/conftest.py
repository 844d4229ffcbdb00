"""What all tests share: the folder of shared data, which may be absent."""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# The tests' models are tiny: threads that wait for each other cost more than they compute.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # plain `pytest` from a source tree: import mode importlib leaves sys.path alone
    sys.path.insert(0, str(ROOT))


def find_shared() -> Path | None:
    """Give the folder of shared data: UAG_SHARED, else ../shared next to the repository; None where absent."""
    folder = Path(os.environ.get("UAG_SHARED") or ROOT.parent / "shared")
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared data; skips where it is absent."""
    folder = find_shared()
    if folder is None:
        pytest.skip("no shared data: set UAG_SHARED to a folder with tokenizers/ and models/")
    return folder


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run each file in one process, so that its models, servers and caches are made once."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log)


def pytest_collection_finish() -> None:
    """Keep what was imported out of every later garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_cache_is_too_small() -> None:
    """The tests' models keep few keys: let their caches grow in place all the same, as large models' do."""
    from uag.hf.cache import growing

    growing._SMALL = 0


def detach_all() -> None:
    """Detach every model, so that `generate` is transformers' own again."""
    import uag
    from uag import generate_hook, installing

    for model in list(installing._attachments):
        uag.detach(model)
    generate_hook.remove_route(installing._route_attached)  # which stays if an attached model was deleted


@pytest.fixture(scope="module", autouse=True)
def _own_generate() -> Iterator[None]:
    """After each module of tests, `generate` is transformers' own, even if an example has installed uag."""
    yield
    import uag

    uag.uninstall()
    detach_all()


def _registered() -> dict[str, set[str]]:
    """Return what is registered in this process: followed generators, routes, states of this thread, open files."""
    from uag import generate_hook
    from uag.kernels import placing
    from uag.lookahead import clock
    from uag.sampling import noise

    files, folder = [], "/proc/self/fd"
    for number in os.listdir(folder) if os.path.isdir(folder) else ():
        with contextlib.suppress(OSError):  # the folder's own
            file = os.readlink(f"{folder}/{number}")
            if "/ray/session_" not in file:  # logs of a cluster, which outlives its tests
                files.append(f"{number} {file}")
    lasting = ("pipe:", "anon_inode:", "/dev/", "/proc/", "socket:")  # threads and event loops of other libraries
    return {
        "generators": {f"{generator}" for generator in noise._holders},
        "routes": {f"{route}" for route in generate_hook._routes},
        "thread": {f"{name}={value}" for name, value in vars(placing._thread).items() if not value},
        "counters": {f"{name}" for name in vars(clock._thread) if name != "counters"},
        "files": {name for name in files if not name.partition(" ")[2].startswith(lasting)},
    }


@pytest.fixture(autouse=True)
def _nothing_stays_registered() -> Iterator[None]:
    """What a test registers in the process is gone after it, but for what its module installs or loads on purpose."""
    before = _registered()
    yield
    if left := _left(before):
        gc.collect()  # what only cycles keep is not registered
        left = _left(before)
    assert not left, left


def _left(before: dict[str, set[str]]) -> dict[str, set[str]]:
    after = _registered()
    return {kind: more for kind, values in after.items() if (more := values - before[kind])}
