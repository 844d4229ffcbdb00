"""The draft tokens that noise favours, found without asking for the first target token of all."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.toys import ToyAdapter
from tests.unit.adapters.strategies import SETTINGS
from uag.projection import Scoring
from uag.projection.vocabulary import build_vocabulary_map
from uag.projection.weighing import best_weighed, largest
from uag.proposal import Warpers

LETTERS = [bytes([byte]) for byte in range(97, 123)]
TARGET = ToyAdapter(LETTERS[::-1])
DRAFT = ToyAdapter([*LETTERS, *(one + two for one in LETTERS for two in LETTERS)])


@SETTINGS
@given(
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.01, 0.1, 1.0]),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    num=st.sampled_from([1, 24, 300]),
)
def test_the_best_weighed_are_those_of_all(seed: int, spread: float, temperature: float, num: int) -> None:
    rng = np.random.default_rng(seed)
    maps = build_vocabulary_map(TARGET, DRAFT)
    probs = rng.dirichlet(np.full(DRAFT.vocab_size, spread)).astype(np.float32)
    inverse = (rng.exponential(size=TARGET.vocab_size) ** -temperature).astype(np.float32)
    scoring = Scoring(TARGET.vocab_size, Warpers(), inverse)
    found = best_weighed(scoring, probs, maps.first_target, num)
    weighed = scoring.weigh(probs, np.asarray(maps.first_target))
    expected = largest(weighed, num)
    assert len(found) == len(expected) == len(set(found.tolist()))
    assert np.array_equal(np.sort(weighed[found]), np.sort(weighed[expected]))  # which of equals is left to chance


def test_without_noise_the_most_probable_are_best() -> None:
    probs = np.array([0.1, 0.5, 0.4], dtype=np.float32)
    maps = build_vocabulary_map(TARGET, ToyAdapter([b"a", b"b"]))
    assert sorted(best_weighed(Scoring(27), probs, maps.first_target, 2).tolist()) == [1, 2]


def test_few_are_asked_about() -> None:
    maps = build_vocabulary_map(TARGET, DRAFT)
    probs = np.full(DRAFT.vocab_size, 1e-9, dtype=np.float32)
    probs[:300] = 1 / 300
    scoring = Scoring(TARGET.vocab_size, Warpers(), np.linspace(1, 2, TARGET.vocab_size, dtype=np.float32))
    assert set(best_weighed(scoring, probs, maps.first_target, 24).tolist()) <= set(range(300))
    assert (maps.first_target._known[300:-1] < -1).all()
