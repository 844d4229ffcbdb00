"""`python -m tests.fuzz`: search for calls that differ from plain decoding. The exit status is 1 if one is found."""

import argparse
import sys

import torch

from tests.fuzz.running import fuzz


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, help="stop after this many minutes (default: 10 without --cases)")
    parser.add_argument("--cases", type=int, help="stop after this many cases")
    parser.add_argument("--seed", type=int, default=0, help="of the first 200 cases; the next have the next one")
    options = parser.parse_args()
    torch.set_num_threads(1)
    minutes = 10.0 if options.minutes is None and options.cases is None else options.minutes
    tally = fuzz(options.seed, options.cases, minutes)
    print(tally.report())
    return 1 if tally.finding else 0


if __name__ == "__main__":
    sys.exit(main())
