"""A pytest plugin for another project's tests: it selects the assisted ones, runs them with uag, and counts its calls.

It is loaded by name (`-p peer_plugin`) in a checkout of transformers, so it imports nothing from this folder.
"""

import random
import sys
import zlib
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import torch
import transformers  # noqa: F401  imported here, so that a checkout's src/ does not shadow the installed release

import uag
from uag.stats import remember

WORDS = ("assist", "candidate", "prompt_lookup", "speculat")
"""Parts of the names of tests about assisted generation; other tests generate plainly, which uag passes through."""

WHOLE = ("tests", "generation")
"""The folder whose tests all run, because they cover `generate` broadly."""

MIXIN = "GenerationTesterMixin"
"""The class whose subclasses in tests/models test `generate`."""

_calls: list[uag.Stats] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that `compare.py` passes."""
    parser.addoption("--peer-uag", action="store_true", help="run under uag.install()")


def pytest_configure(config: pytest.Config) -> None:
    """Install uag and observe the statistics of each call."""
    if config.getoption("--peer-uag"):
        uag.install()

        def listen(model: Any, stats: uag.Stats) -> None:
            _calls.append(stats)
            remember(model, stats)

        pytest.MonkeyPatch().setattr("uag.assistant.remember", listen)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep only the assisted tests of the mixin's subclasses, and all tests in `WHOLE`."""

    def is_chosen(item: pytest.Item) -> bool:
        bases = {kind.__name__ for kind in getattr(getattr(item, "cls", None), "__mro__", ())}
        is_assisted = MIXIN in bases and any(word in item.name for word in WORDS)
        return is_assisted or item.path.parent.relative_to(config.rootpath).parts[:2] == WHOLE

    left = [item for item in items if not is_chosen(item)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if is_chosen(item)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Record the candidates of uag's calls in a test, or why there were none."""
    try:
        return (yield)
    finally:
        reasons = sorted({reason for stats in _calls for reason in stats.fallbacks})
        num_candidates = sum(stats.num_candidate_tokens for stats in _calls)
        drafted = "drafted" if num_candidates else "; ".join(reasons) or "nothing to draft"
        item.user_properties.append(("uag", drafted if _calls else "not called"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Seed every random generator from the test's name, so that both runs have the same weights and prompts."""
    seed = zlib.crc32(item.nodeid.encode())
    for module in [module for name, module in sys.modules.items() if name.endswith("_common")]:
        if isinstance(generator := getattr(module, "global_rng", None), random.Random):
            generator.seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  the tests use the legacy global generator
    torch.manual_seed(seed)
    _calls.clear()
    return (yield)
