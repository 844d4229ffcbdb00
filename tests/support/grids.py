"""Combinations of parameters: a covering set runs by default, the others with `-m grid`."""

from collections import Counter
from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

import pytest

from tests.support.calls import GREEDY, SAMPLED


def covering(names: str, *axes: Iterable[Any], strength: int = 2) -> pytest.MarkDecorator:
    """Parametrize a test with all combinations of some values; most of them have the mark grid.

    Args:
        names: names of the parameters, separated by commas.
        axes: the values of each parameter.
        strength: the default run contains every combination of the values of this many parameters.
    """
    values = [list(axis) for axis in axes]
    grid = list(product(*(range(len(axis)) for axis in values)))
    parts = {case: set(combinations(enumerate(case), strength)) for case in grid}
    chosen, uses = set(), Counter[Any]()
    missing = set().union(*parts.values())
    while missing:
        best = max(grid, key=lambda case: (len(parts[case] & missing), -sum(uses[each] for each in enumerate(case))))
        missing -= parts[best]
        chosen.add(best)
        uses.update(enumerate(best))
    cases = [
        pytest.param(
            *(axis[i] for axis, i in zip(values, case, strict=True)), marks=() if case in chosen else pytest.mark.grid
        )
        for case in grid
    ]
    return pytest.mark.parametrize([name.strip() for name in names.split(",")], cases, ids=_label)


def mostly_grid(values: Iterable[Any], by_default: Iterable[Any]) -> list[Any]:
    """Return parameters; those that do not run by default have the mark grid."""
    known = list(by_default)
    return [value if value in known else pytest.param(value, marks=pytest.mark.grid) for value in values]


def _label(value: Any) -> Any:
    if isinstance(value, dict) and "do_sample" in value:
        return "sampled" if value["do_sample"] else "greedy"
    return getattr(value, "__name__", None)


ROWS_AND_MODES = covering("num_rows, options", (1, 3), (GREEDY, SAMPLED), strength=1)
"""One row greedily and three rows sampled; the other two combinations have the mark grid."""
