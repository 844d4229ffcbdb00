"""Random faults of the clock in real calls of the demo pair: is the draft in use again after they end?

    python benchmarks/faults.py [--minutes 15] [--tokens 64] [--seed 0] [--output FILE]

The faults are in the clock that uag measures passes with, so they take no time themselves: stalls of 0.05 to 5 seconds,
and stretches in which up to 200 readings of it seem 3 to 30 times as far apart. They start at random readings of one to
three calls, the first ones of a new assistant or later ones. The next call has none: it must draft. All outputs are
compared with plain decoding's.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from unittest import mock

import common
import torch

import uag
from uag.loading import Pair, load_pair
from uag.lookahead import clock

COLUMNS = {
    "faults in": "{calls}",
    "faults": "{num_faults}",
    "calls after them": "{num_calls}",
    "without candidates": "{num_idle}",
    "tokens per round": "{tokens_per_round:.2f} (worst {worst_tokens_per_round:.2f})",
}


@dataclass
class FaultyClock:
    """A clock that sometimes jumps, or runs too fast for a while.

    Attributes:
        faults: (first reading, number of readings, how many times as fast it runs, seconds of a jump at the first one).
    """

    read: Callable[[], float] = clock.now
    faults: list[tuple[int, int, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._last, self._seconds, self._num_read = self.read(), 0.0, 0

    def plan(self, draw: random.Random) -> None:
        """Plan one to three faults of the next call."""
        self._num_read = 0
        self.faults = []
        for _ in range(draw.randint(1, 3)):
            first, is_stall = draw.randrange(draw.choice((10, 200))), draw.random() < 0.5
            stretch = draw.choice((2, 10, 50, 200)), draw.uniform(3.0, 30.0), 0.0
            self.faults.append((first, *((1, 1.0, draw.uniform(0.05, 5.0)) if is_stall else stretch)))

    def __call__(self) -> float:
        """Return the time in seconds."""
        now, number = self.read(), self._num_read
        active = [fault for fault in self.faults if fault[0] <= number < fault[0] + fault[1]]
        speed = max((fault[2] for fault in active), default=1.0)
        self._seconds += speed * (now - self._last) + sum(fault[3] for fault in active if fault[0] == number)
        self._last, self._num_read = now, number + 1
        return self._seconds


def recoveries(pair: Pair, draw: random.Random, num_tokens: int) -> Iterator[common.Row]:
    """Yield, without end, the counts of calls that follow faults."""
    encoded = [pair.target_tokenizer(text, return_tensors="pt") for text in common.python_texts(12)]
    plain = [pair.target.generate(**inputs, do_sample=False, max_new_tokens=num_tokens) for inputs in encoded]

    def call(assistant: uag.Assistant) -> uag.Stats:
        place = draw.randrange(len(encoded))
        ids = assistant.generate(pair.target, **encoded[place], do_sample=False, max_new_tokens=num_tokens)
        if not torch.equal(ids, plain[place]):
            raise SystemExit(f"the output of prompt {place} differs from plain decoding's")
        return assistant.stats

    faulty = FaultyClock()
    with mock.patch.object(clock, "now", faulty):
        while True:
            assistant = uag.Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer, prompt_lookup=False)
            for calls in ("an assistant's first calls", *["later calls"] * 2):
                num_faults = 0
                for _ in range(draw.randint(1, 3)):
                    faulty.plan(draw)
                    num_faults += len(faulty.faults)
                    call(assistant)
                faulty.faults = []
                stats = call(assistant)
                yield {
                    "calls": calls,
                    "num_faults": num_faults,
                    "is_idle": not stats.num_candidate_tokens,
                    "tokens_per_round": stats.mean_acceptance_length,
                    "why": stats.not_drafting,
                }


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    pair, end = load_pair(), time.monotonic() + 60.0 * arguments.minutes
    found: list[common.Row] = []
    for row in recoveries(pair, random.Random(arguments.seed), arguments.tokens):
        found.append(row)
        if row["is_idle"]:
            print(f"without candidates: {row['why']}", flush=True)
        if time.monotonic() > end:
            break
    for calls in dict.fromkeys(row["calls"] for row in found):
        rows = [row for row in found if row["calls"] == calls]
        tokens = [row["tokens_per_round"] for row in rows]
        yield {
            "calls": calls,
            "dtype": str(pair.target.dtype),
            "num_faults": sum(row["num_faults"] for row in rows),
            "num_calls": len(rows),
            "num_idle": sum(row["is_idle"] for row in rows),
            "tokens_per_round": statistics.median(tokens),
            "worst_tokens_per_round": min(tokens),
        }


def main() -> None:
    """Inject faults for some minutes, and count the calls after them that did not draft."""
    arguments = common.parse(common.make_parser(__doc__, minutes=15, tokens=64, seed=0))
    common.show(arguments, "calls after faults of the clock", COLUMNS, _measure(arguments))


if __name__ == "__main__":
    main()
