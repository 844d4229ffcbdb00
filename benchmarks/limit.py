"""The share of a call that is bare passes (column `speed`): `overhead.py` at 5 candidates, greedy and sampled.

python benchmarks/limit.py [options of overhead.py]
"""

from overhead import main

if __name__ == "__main__":
    main(tokens=96, candidates=5, temperatures=(0.0, 1.0))
