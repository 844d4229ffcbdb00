"""A pytest plugin for another project's tests: it selects the assisted ones, runs them with uag, and records each.

It is loaded by name (`-p peer_plugin`) in a checkout of transformers, so it imports nothing from this folder.
"""

import json
import random
import sys
import zlib
from collections.abc import Generator
from pathlib import Path
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

OFFLINE = ("LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError", "ConnectionError", "MaxRetryError")
"""Classes of errors that a test raises when it needs a file from the hub."""

HUB = "huggingface.co"
"""Parts of the messages of all other such errors."""

_calls: list[uag.Stats] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that `compare.py` passes."""
    parser.addoption("--peer-record", help="file that gets one JSON line a test")
    parser.addoption("--peer-uag", action="store_true", help="run under uag.install()")


def pytest_configure(config: pytest.Config) -> None:
    """Install uag and observe the statistics of each call; record in the process that collects the reports."""
    if config.getoption("--peer-record") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(config.getoption("--peer-record"))))
    if config.getoption("--peer-uag"):
        uag.install()

        def listen(model: Any, stats: uag.Stats) -> None:
            _calls.append(stats)
            remember(model, stats)

        pytest.MonkeyPatch().setattr("uag.assistant.remember", listen)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep only the assisted tests, and all tests in `WHOLE`."""

    def is_chosen(item: pytest.Item) -> bool:
        folder = item.path.parent.relative_to(config.rootpath).parts
        return folder[:2] == WHOLE or any(word in item.name for word in WORDS)

    left = [item for item in items if not is_chosen(item)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if is_chosen(item)]


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, object, object]:
    """Attach the outcome's cause and uag's figures to the report, also across processes."""
    report: Any = yield
    error = call.excinfo.value if call.excinfo is not None and report.failed else None
    cause = "hub" if error is not None and needs_hub(error) else ""
    last = f"{type(error).__name__}: {error}".strip() if error is not None else ""
    report.peer = {"cause": cause, "error": last[:2000], "figures": figures(_calls) if call.when == "call" else None}
    return report


def needs_hub(error: BaseException | None) -> bool:
    """Whether an error, or its cause, is a hub file that is not available offline."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if HUB in str(error) or any(kind.__name__ in OFFLINE for kind in type(error).__mro__):
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return False


def figures(calls: list[uag.Stats]) -> dict[str, Any]:
    """Summarize uag's calls in a test; `calls` is 0 if there were none."""
    return {
        "calls": len(calls),
        "strategies": sorted({stats.strategy for stats in calls}),
        "candidates": sum(stats.num_candidate_tokens for stats in calls),
        "accepted": sum(stats.num_accepted_tokens for stats in calls),
        "output": sum(stats.num_output_tokens for stats in calls),
        "fallbacks": sorted({reason for stats in calls for reason in stats.fallbacks}),
    }


class Recorder:
    """Writes one line per test, in the process that collects the reports, and one per file that cannot be imported."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes: dict[str, dict[str, Any]] = {}

    def _write(self, record: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a file whose tests cannot be collected."""
        if report.failed:
            self._write({"test": report.nodeid, "outcome": "not collected", "error": report.longreprtext[-2000:]})

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Record one phase of a test; the first failure is its outcome, and the last phase writes the line."""
        record = self._outcomes.setdefault(report.nodeid, {"test": report.nodeid, "outcome": "passed", "error": ""})
        if report.failed and record["outcome"] != "failed":
            record |= {"outcome": report.peer["cause"] or "failed", "error": report.peer["error"]}
        elif report.skipped and record["outcome"] == "passed":
            record["outcome"] = "skipped"
        if report.peer["figures"] is not None:
            record["figures"] = report.peer["figures"]
        if report.when == "teardown":
            self._write(self._outcomes.pop(report.nodeid))
