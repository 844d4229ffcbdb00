"""The benchmark's formula for what shared noise can reach."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.sampling_acceptance import coupling_value


def direct(target_law: np.ndarray, draft_law: np.ndarray) -> float:
    """The formula as docs/sampling.md has it."""
    total = 0.0
    for p, q in zip(target_law, draft_law, strict=True):
        if p > 0 and q > 0:
            total += 1.0 / np.maximum(target_law / p, draft_law / q).sum()
    return float(total)


def test_the_fast_sum_is_the_formula() -> None:
    random = np.random.default_rng(0)
    for size in (2, 5, 40):
        for _ in range(20):
            target_law, draft_law = random.dirichlet(np.full(size, 0.4)), random.dirichlet(np.full(size, 0.4))
            target_law[random.integers(size)] = 0.0
            draft_law[random.integers(size)] = 0.0
            target_law, draft_law = target_law / target_law.sum(), draft_law / draft_law.sum()
            assert coupling_value(target_law, draft_law) == pytest.approx(direct(target_law, draft_law), abs=1e-9)
    law = random.dirichlet(np.ones(7))
    assert coupling_value(law, law) == pytest.approx(1.0)


def test_the_formula_is_what_shared_noise_gives() -> None:
    random = np.random.default_rng(1)
    target_law, draft_law = random.dirichlet(np.ones(6)), random.dirichlet(np.ones(6))
    noise = random.exponential(size=(200_000, 6))
    agreed = (target_law / noise).argmax(-1) == (draft_law / noise).argmax(-1)
    assert agreed.mean() == pytest.approx(coupling_value(target_law, draft_law), abs=0.005)
    distance = np.abs(target_law - draft_law).sum() / 2
    assert (1 - distance) / (1 + distance) <= coupling_value(target_law, draft_law) <= 1 - distance
