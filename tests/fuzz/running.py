"""Search for a case that differs, batch by batch; hypothesis shrinks it."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from unittest.mock import patch

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky
from hypothesis.internal.conjecture.engine import ConjectureRunner

from tests.fuzz.case import Case, DifferenceError, script
from tests.fuzz.comparing import Outcome, compare
from tests.fuzz.strategies import cases

BATCH = 200
"""Number of cases that hypothesis draws from one seed."""


@dataclass
class Tally:
    """Counts of all cases."""

    kinds: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    rounding: list[Case] = field(default_factory=list)
    finding: tuple[Case, DifferenceError] | None = None

    def count(self, case: Case, outcome: Outcome) -> None:
        self.kinds[outcome.kind] += 1
        if outcome.kind == "plain":
            self.reasons.update(outcome.reasons)
        if outcome.kind == "rounding":
            self.rounding.append(case)

    def report(self) -> str:
        lines = [f"{self.kinds.total()} cases: " + ", ".join(f"{n} {kind}" for kind, n in self.kinds.most_common())]
        lines += [f"  {number:6d} {reason[:150]}" for reason, number in self.reasons.most_common()]
        lines += [f"rounding: {case!r}" for case in self.rounding]
        lines += [f"FINDING:\n{script(*self.finding)}"] if self.finding else []
        return "\n".join(lines)


class _OverError(BaseException):
    """Ends a batch: hypothesis would draw all its other cases, which takes as long as running them."""


def fuzz(seed: int, num_cases: int | None = None, minutes: float | None = None) -> Tally:
    tally, start_s = Tally(), time.monotonic()

    def is_over() -> bool:
        return (num_cases is not None and tally.kinds.total() >= num_cases) or (
            minutes is not None and time.monotonic() - start_s > 60 * minutes
        )

    while not (is_over() or tally.finding):
        _search(tally, seed, is_over)
        seed += 1
    return tally


def _search(tally: Tally, seed: int, is_over: Callable[[], bool]) -> None:
    """Run one batch of cases; hypothesis shrinks the first one that differs."""

    @hypothesis.seed(seed)
    @settings(
        max_examples=BATCH, deadline=None, database=None, report_multiple_bugs=False, print_blob=False,
        suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink),
    )  # fmt: skip
    @hypothesis.given(cases())
    def run(case: Case) -> None:
        if tally.finding is None and is_over():
            raise _OverError
        try:
            outcome = compare(case)
        except DifferenceError as difference:
            if tally.finding is None or is_smaller(case, difference, *tally.finding):
                tally.finding = case, difference
                print(f"differs: {case!r}: {difference}", flush=True)  # shrinking takes minutes
                raise
        else:
            if tally.finding is None:
                tally.count(case, outcome)

    # Without hypothesis' mutations, which repeat most of the previous case.
    with (
        patch.object(ConjectureRunner, "generate_mutations_from", lambda *_: None),
        suppress(DifferenceError, Flaky, _OverError),  # flaky: it depends on previous calls
    ):
        run()


def is_smaller(case: Case, difference: DifferenceError, found: Case, found_difference: DifferenceError) -> bool:
    """Return whether a shrunk case shows the original difference."""
    return difference.aspect == found_difference.aspect and case.change in (found.change, "")
