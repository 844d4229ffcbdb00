"""Searches for cases that differ, batch after batch, shrinks each and counts what became of all."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from unittest.mock import patch

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky
from hypothesis.internal.conjecture.engine import ConjectureRunner

from tests.fuzz.case import Case, DifferenceError, script
from tests.fuzz.comparing import Outcome, compare
from tests.fuzz.known import KNOWN
from tests.fuzz.strategies import cases

BATCH = 200
"""Cases that hypothesis draws from one seed."""


@dataclass
class Finding:
    """A difference, and the smallest case that shows it."""

    case: Case
    difference: DifferenceError

    def explains(self, case: Case, difference: DifferenceError) -> bool:
        """Whether a case has all that it takes: then it is the same finding, for a changed target in any aspect."""
        is_changed = self.case.change or "cache" in str(self.case.extras)
        is_alike = is_changed or difference.aspect == self.difference.aspect
        return bool(is_alike) and self.case.features() <= case.features()

    def is_alike(self, case: Case, difference: DifferenceError) -> bool:
        """Whether a smaller case shows the same difference."""
        return difference.aspect == self.difference.aspect and case.change in (self.case.change, "")


@dataclass
class Tally:
    """What became of all cases.

    Attributes:
        kinds: how many cases, by `Outcome.kind`.
        reasons: why calls were decoded plainly.
        rounding: cases in which the target's own rounding chose another id.
        known: cases of `known` that differ still; drawn cases that these explain are counted only.
        findings: what else differs.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    rounding: list[Case] = field(default_factory=list)
    known: list[Finding] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def count(self, case: Case, outcome: Outcome) -> None:
        """Count a case without a difference."""
        self.kinds[outcome.kind] += 1
        if outcome.kind == "plain":
            self.reasons.update(outcome.reasons)
        if outcome.kind == "rounding":
            self.rounding.append(case)

    def explains(self, case: Case, difference: DifferenceError) -> bool:
        """Whether a difference was found before."""
        return any(finding.explains(case, difference) for finding in self.known + self.findings)

    def report(self) -> str:
        """Return a few lines for a reader."""
        lines = [f"{self.kinds.total()} cases: " + ", ".join(f"{n} {kind}" for kind, n in self.kinds.most_common())]
        lines += [f"  {number:6d} {reason[:150]}" for reason, number in self.reasons.most_common()]
        lines += [f"rounding: {case!r}" for case in self.rounding]
        lines += [f"{len(self.known)} known cases differ still: --known lists them"] if self.known else []
        lines += [f"FINDING: {found.difference!s:.200}\n  {found.case!r}" for found in self.findings]
        return "\n".join(lines)


def search(tally: Tally, seed: int, num_cases: int, is_over: Callable[[], bool]) -> Finding | None:
    """Run one batch of cases; returns the first difference that no known one explains, shrunk by hypothesis.

    Args:
        tally: counts the cases.
        seed: of the batch.
        num_cases: in the batch.
        is_over: whether no further case is to be run.
    """
    finding: Finding | None = None

    @hypothesis.seed(seed)
    @settings(
        max_examples=num_cases, deadline=None, database=None, report_multiple_bugs=False, print_blob=False,
        suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink),
    )  # fmt: skip
    @hypothesis.given(cases())
    def run(case: Case) -> None:
        nonlocal finding
        if finding is None and is_over():
            return
        try:
            outcome = compare(case)
        except DifferenceError as difference:
            if finding is None and tally.explains(case, difference):
                tally.kinds["known to differ"] += 1
            elif finding is None or finding.is_alike(case, difference):
                finding = Finding(case, difference)
                raise
        else:
            if finding is None:
                tally.count(case, outcome)

    # Without hypothesis' mutations, which repeat most of the case before.
    with patch.object(ConjectureRunner, "generate_mutations_from", lambda *_: None):
        try:
            run()
        except (DifferenceError, Flaky):  # flaky: it depends on the calls before it
            return finding
    return None


def finding_of(case: Case) -> Finding | None:
    """Run a case; returns what differs."""
    try:
        compare(case)
    except DifferenceError as difference:
        return Finding(case, difference)
    return None


def fuzz(seed: int, num_cases: int | None = None, minutes: float | None = None) -> Tally:
    """Search until so many cases have run, or so much time has passed; prints each new finding as a script."""
    tally, began = Tally(), time.monotonic()
    tally.known += [found for case in KNOWN.values() if (found := finding_of(case))]

    def is_over() -> bool:
        return (num_cases is not None and tally.kinds.total() >= num_cases) or (
            minutes is not None and time.monotonic() - began > 60 * minutes
        )

    while not is_over():
        finding = search(tally, seed, BATCH, is_over)
        seed += 1
        if finding is not None:
            tally.findings.append(finding)
            tally.kinds["different"] += 1
            print(f"\n{script(finding.case, finding.difference)}# {_alone(finding)}\n", flush=True)
    return tally


def _alone(finding: Finding) -> str:
    """Say whether a finding's script fails by itself, too."""
    code = script(finding.case, finding.difference)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    return (
        "fails in a process of its own, too" if done.returncode else "depends on the calls before it: alone it passes"
    )
