"""Run a checkout's assisted tests with and without uag, and print every test that fails only with uag."""

import argparse
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent

Outcomes = dict[str, tuple[str, str]]
"""By test: "passed", "skipped" or "failed", and the error, or for a test that passes what uag did in it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both and print the outcome; return 1 if a test fails only with uag, 2 if a run was aborted."""
    parser = argparse.ArgumentParser(
        prog="tests/peer/run", description=__doc__, epilog="Further arguments go to pytest."
    )
    parser.add_argument("folder", type=Path, help="a checkout of transformers, or at least its tests/")
    parser.add_argument("records", type=Path, help="folder for the records, plain.xml and uag.xml")
    parser.add_argument("--again", action="store_true", help="reuse the plain run, which uag does not affect")
    options, further = parser.parse_known_args(arguments)
    folder, records = options.folder.resolve(), options.records.resolve()
    records.mkdir(parents=True, exist_ok=True)
    arms: dict[str, list[str]] = {"plain": [], "uag": ["--peer-uag"]}
    statuses = [
        run(folder, [f"--junit-xml={records / name}.xml", *own, *further])
        for name, own in arms.items()
        if name == "uag" or not options.again
    ]
    plain, ours = (outcomes(records / f"{name}.xml") for name in arms)
    for name, found in (("plainly", plain), ("under uag", ours)):
        print(f"{name}: {dict(Counter(outcome for outcome, _ in found.values()))}")
    print(
        f"uag in the tests that pass: {dict(Counter(what for outcome, what in ours.values() if outcome == 'passed'))}"
    )
    failing = failing_only_with_uag(plain, ours)
    for test in failing:
        print(f"FAILS ONLY UNDER UAG: {test}\n    {ours.get(test, ('', 'the run was aborted'))[1][:600]}")
    print(f"{len(failing)} tests fail only under uag")
    return 2 if max(statuses) > 1 or not plain else int(bool(failing))


def run(folder: Path, arguments: Sequence[str]) -> int:
    """Run pytest in the checkout, passing its output through; return its status, 1 for failed tests."""
    models = sorted(str(path.relative_to(folder)) for path in folder.glob("tests/models/*/test_modeling_*.py"))
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    # Without a hub, tests that need it fail at once; set HF_HUB_OFFLINE=0 to use it.
    settings = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | os.environ
    settings |= {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "peer_plugin", "-p", "no:cacheprovider", "-q", "--no-header"]
    command += ["--tb=line", "--disable-warnings", "-r", "N", "--continue-on-collection-errors", f"--rootdir={folder}"]
    command += ["-o", "addopts=", "-o", "log_cli=false"]  # the checkout's own settings print one line per test
    return subprocess.run(
        [*command, *arguments, "tests/generation", *models], cwd=folder, env=settings, check=False
    ).returncode


def outcomes(record: Path) -> Outcomes:
    """Read what pytest recorded; errors of files that cannot be imported stand at the files."""
    found: Outcomes = {}
    for case in ElementTree.parse(record).iter("testcase"):
        kinds = {"failure": "failed", "error": "failed", "skipped": "skipped"}
        problem = next((part for part in case if part.tag in kinds), None)
        name = f"{case.get('classname')}::{case.get('name')}"
        if problem is not None:
            found[name] = kinds[problem.tag], problem.get("message", "")
        else:
            found.setdefault(name, ("passed", next((p.get("value", "") for p in case.iter("property")), "")))
    return found


def failing_only_with_uag(plain: Outcomes, ours: Outcomes) -> list[str]:
    """Return the tests that pass or are skipped without uag, and neither with it."""
    missing = "missing", ""
    return [
        test
        for test, (outcome, _) in plain.items()
        if outcome != "failed" and ours.get(test, missing)[0] not in ("passed", outcome)
    ]


if __name__ == "__main__":
    sys.exit(main())
