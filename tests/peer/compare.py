"""Run a checkout's assisted tests with and without uag, and print every test that fails only with uag."""

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MIXIN = "GenerationTesterMixin"
"""The class whose subclasses in tests/models test `generate`."""

Records = dict[str, dict[str, Any]]
"""The plugin's record of each test, by the test's id."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both and print the outcome; return 1 if a test fails only with uag, 2 if a run was aborted."""
    parser = argparse.ArgumentParser(
        prog="tests/peer/run", description=__doc__, epilog="Further arguments go to pytest."
    )
    parser.add_argument("folder", type=Path, help="a checkout of transformers, or at least its tests/")
    parser.add_argument(
        "--records", type=Path, help="folder for the records, plain.jsonl and uag.jsonl, with one line per test"
    )
    parser.add_argument(
        "--again", action="store_true", help="reuse the plain run in --records, which uag does not affect"
    )
    options, further = parser.parse_known_args(arguments)
    folder = options.folder.resolve()
    files = generation_tests(folder)
    if not files:
        print(f"{folder} has neither tests/generation nor subclasses of {MIXIN} in tests/models.", file=sys.stderr)
        return 2
    print(f"{len(files)} files and folders with tests of generate in {folder}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        records = options.records or Path(scratch)
        records.mkdir(parents=True, exist_ok=True)
        arms = ("plain", "uag")[options.again :]
        status = max(run(folder, files, records / f"{arm}.jsonl", arm == "uag", further) for arm in arms)
        plain, ours = (read_records(records / f"{arm}.jsonl") for arm in ("plain", "uag"))
    show(plain, ours)
    return 2 if status > 1 or not plain else int(bool(failing_only_with_uag(plain, ours)))


def generation_tests(folder: Path) -> list[str]:
    """Return tests/generation and the files of tests/models with a subclass of the mixin (compared by names)."""
    bases: dict[str, set[str]] = {}
    owners: dict[str, set[Path]] = {}
    models = sorted((folder / "tests").glob("models/*/test_modeling_*.py"))
    for path in [*sorted((folder / "tests").glob("*.py")), *models]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update(ast.unparse(base).split(".")[-1] for base in node.bases)
                owners.setdefault(node.name, set()).add(path)
    heirs, size = {MIXIN}, 0
    while len(heirs) > size:
        size = len(heirs)
        heirs |= {name for name, found in bases.items() if found & heirs}
    having = set().union(*(owners[name] for name in heirs - {MIXIN}))
    found = [folder / "tests" / "generation", *(path for path in models if path in having)]
    return [str(path.relative_to(folder)) for path in found if path.exists()]


def run(folder: Path, files: list[str], record: Path, with_uag: bool, further: Sequence[str]) -> int:
    """Run pytest in the checkout, passing its output through; return its status, 1 for failed tests."""
    record = record.resolve()
    record.write_text("")
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    # Without a hub, tests that need it fail at once; set HF_HUB_OFFLINE=0 to use it.
    settings = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | os.environ
    settings |= {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "peer_plugin", "-p", "no:cacheprovider", "-q", "--no-header"]
    command += ["--tb=no", "--disable-warnings", "-r", "N", "--continue-on-collection-errors", f"--rootdir={folder}"]
    command += ["-o", "addopts=", "-o", "log_cli=false"]  # the checkout's own settings print one line per test
    command += [f"--peer-record={record}", *["--peer-uag"] * with_uag, *further, *files]
    print(f"\n== {'under uag.install()' if with_uag else 'plainly'}", flush=True)
    return subprocess.run(command, cwd=folder, env=settings, check=False).returncode


def read_records(path: Path) -> Records:
    """Read the plugin's records."""
    return {record["test"]: record for record in map(json.loads, path.read_text().splitlines())}


def failing_only_with_uag(plain: Records, ours: Records) -> list[str]:
    """Return the tests that pass or are skipped without uag, and neither with it."""
    return [
        test
        for test, record in plain.items()
        if record["outcome"] in ("passed", "skipped") and outcome_of(ours, test) not in ("passed", record["outcome"])
    ]


def outcome_of(records: Records, test: str) -> str:
    """Return a test's outcome; an aborted run has none."""
    return str(records[test]["outcome"]) if test in records else "missing"


def drafted(record: dict[str, Any]) -> str:
    """Return whether uag drafted in a test, with its acceptance or the reason."""
    figures = record.get("figures") or {"calls": 0}
    if not figures["calls"]:
        return "uag was not called"
    summary = f"{figures['calls']} calls ({', '.join(figures['strategies'])}), "
    summary += f"{figures['candidates']} candidates, {figures['accepted']} accepted, {figures['output']} tokens"
    return "; ".join([summary, *figures["fallbacks"]])


def show(plain: Records, ours: Records) -> None:
    """Print counts, drafting figures, and every test that fails only with uag."""
    print("\n== outcome")
    for name, records in (("plainly", plain), ("under uag", ours)):
        counts = Counter(outcome_of(records, test) for test in plain)
        labels = {
            "passed": "passed",
            "failed": "failed",
            "hub": "need the hub",
            "skipped": "skipped",
            "missing": "did not run",
        }
        parts = [f"{counts[kind]} {words}" for kind, words in labels.items() if counts[kind] or kind != "missing"]
        print(f"{name}: {', '.join(parts)}, {counts['not collected']} files not imported")
    passed = [record for record in ours.values() if record["outcome"] == "passed"]
    kinds: Counter[str] = Counter()
    for record in passed:
        figures = record.get("figures") or {"calls": 0}
        reasons = figures.get("fallbacks") or ["nothing to draft"]
        kinds.update(
            ["drafted"] if figures.get("candidates") else reasons if figures["calls"] else ["uag was not called"]
        )
    print(f"the {len(passed)} tests that pass under uag:")
    for kind, count in kinds.most_common():
        print(f"  {count:5} {kind}")
    failing = failing_only_with_uag(plain, ours)
    for test in failing:
        record = ours.get(test, {})
        print(f"FAILS ONLY UNDER UAG: {test} ({outcome_of(ours, test)})")
        print(f"    {record.get('error', 'the run was aborted')[:600]}\n    {drafted(record)}")
    print(f"{len(failing)} tests fail only under uag")


if __name__ == "__main__":
    sys.exit(main())
