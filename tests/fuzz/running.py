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
from hypothesis.internal.conjecture.engine import ConjectureRunner

from tests.fuzz.case import Case, DifferenceError, script
from tests.fuzz.comparing import compare
from tests.fuzz.known import KNOWN
from tests.fuzz.strategies import cases

BATCH = 200
"""Cases that hypothesis draws from one seed."""

MOST_SHRINKS = 150
"""Cases that are tried to make a failing one smaller."""


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

    def report(self) -> str:
        """Say it in a few lines."""
        lines = [f"{self.kinds.total()} cases: " + ", ".join(f"{n} {kind}" for kind, n in self.kinds.most_common())]
        lines += [f"  {number:6d} {reason[:150]}" for reason, number in self.reasons.most_common()]
        lines += [f"rounding: {case!r}" for case in self.rounding]
        lines += [f"{len(self.known)} known cases differ still: --known lists them"] if self.known else []
        lines += [f"FINDING: {found.difference!s:.200}\n  {found.case!r}" for found in self.findings]
        return "\n".join(lines)


class Search:
    """One batch: the first difference is chased, others wait for their own batch.

    Args:
        tally: of the whole run.
        is_over: says when no further case is to be begun.
    """

    def __init__(self, tally: Tally, is_over: Callable[[], bool]) -> None:
        self.tally = tally
        self.is_over = is_over
        self.failed: dict[str, Finding] = {}
        self.last: Finding | None = None
        self.num_tried = 0

    def run(self, seed: int, num_cases: int) -> Finding | None:
        """Draw cases from a seed; returns the smallest that differs."""

        @hypothesis.seed(seed)
        @settings(
            max_examples=num_cases, deadline=None, database=None, report_multiple_bugs=False, print_blob=False,
            suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink),
        )  # fmt: skip
        @hypothesis.given(cases())
        def search(case: Case) -> None:
            self._try(case)

        # Without its mutations: they repeat most of the case before.
        with patch.object(ConjectureRunner, "generate_mutations_from", lambda *_: None):
            try:
                search()
            except DifferenceError:
                return self.last
        return None

    def _try(self, case: Case) -> None:
        if self.last is None:
            if not self.is_over():
                self._first(case)
        elif repr(case) in self.failed:
            self._fail(self.failed[repr(case)])
        elif self.num_tried < MOST_SHRINKS:
            self.num_tried += 1
            try:
                compare(case)
            except DifferenceError as difference:
                known = self.last
                if difference.aspect == known.difference.aspect and case.change in (known.case.change, ""):
                    self._fail(Finding(case, difference))

    def _first(self, case: Case) -> None:
        try:
            outcome = compare(case)
        except DifferenceError as difference:
            if any(found.explains(case, difference) for found in self.tally.known + self.tally.findings):
                self.tally.kinds["known to differ"] += 1
                return
            self._fail(Finding(case, difference))
        self.tally.kinds[outcome.kind] += 1
        if outcome.kind == "plain":
            self.tally.reasons.update(outcome.reasons)
        if outcome.kind == "rounding":
            self.tally.rounding.append(case)

    def _fail(self, finding: Finding) -> None:
        self.last = self.failed[repr(finding.case)] = finding
        raise finding.difference


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
        finding = Search(tally, is_over).run(seed, BATCH)
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
