"""`python -m tests.fuzz`: search for calls that differ from plain decoding. The exit status is 1 if one is found."""

from __future__ import annotations

import argparse
import sys

import torch

from tests.fuzz.case import DifferenceError
from tests.fuzz.comparing import compare
from tests.fuzz.known import KNOWN
from tests.fuzz.running import fuzz


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, help="stop after this many minutes (default: 10 without --cases)")
    parser.add_argument("--cases", type=int, help="stop after this many cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--known", action="store_true", help="rerun the cases that once differed, and list them")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.known:
        return sum(map(_is_open, KNOWN)) and 1
    minutes = 10.0 if options.minutes is None and options.cases is None else options.minutes
    tally = fuzz(options.seed, options.cases, minutes)
    print(tally.report())
    return 1 if tally.finding else 0


def _is_open(name: str) -> bool:
    try:
        compare(KNOWN[name])
    except DifferenceError as difference:
        print(f"differs  {name}: {difference!s:.150}")
        return True
    print(f"equal    {name}")
    return False


if __name__ == "__main__":
    sys.exit(main())
