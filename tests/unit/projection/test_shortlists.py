"""Shortlists contain the draft tokens that noise favors, without encoding all of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.toys import ToyAdapter
from tests.unit.adapters.strategies import SETTINGS
from uag.projection import Scoring, TokenizerPair, shortlist
from uag.projection.pair import UNKNOWN
from uag.projection.shortlists import likeliest
from uag.proposal import Warpers

LETTERS = [bytes([byte]) for byte in range(97, 123)]
TARGET = ToyAdapter(LETTERS[::-1])
DRAFT = ToyAdapter([*LETTERS, *(one + two for one in LETTERS for two in LETTERS)])


@SETTINGS
@given(
    seed=st.integers(0, 10**6), spread=st.sampled_from([0.01, 0.1, 1.0]), temperature=st.sampled_from([0.3, 1.0, 2.0])
)
def test_the_draft_tokens_that_noise_favors_are_listed(seed: int, spread: float, temperature: float) -> None:
    rng = np.random.default_rng(seed)
    first_target = TokenizerPair.of(TARGET, DRAFT).first_target
    probs = rng.dirichlet(np.full(DRAFT.vocab_size, spread)).astype(np.float32)
    noise = rng.exponential(size=TARGET.vocab_size).astype(np.float32)
    scoring = Scoring(TARGET.vocab_size, Warpers(temperature), noise)
    weighed = probs * scoring.powers(first_target[np.arange(DRAFT.vocab_size)])
    weighed[probs < 1e-5 * probs.max()] = 0.0
    found = likeliest(scoring, probs, first_target, 4)
    assert len(found) == len(set(found.tolist())) <= 28
    assert weighed[found].max() == weighed.max()
    best = np.sort(weighed)[::-1][:24]
    assert np.isin(best[best > 1e-5 * best[0]], weighed[found]).all()


def test_without_noise_the_most_probable_are_best() -> None:
    probs = np.array([0.1, 0.5, 0.4], dtype=np.float32)
    first_target = TokenizerPair.of(TARGET, ToyAdapter([b"a", b"b"])).first_target
    assert sorted(likeliest(Scoring(27), probs, first_target, 2).tolist()) == [1, 2]


def test_few_draft_tokens_are_encoded() -> None:
    first_target = TokenizerPair.of(TARGET, DRAFT).first_target
    probs = np.full(DRAFT.vocab_size, 1e-9, dtype=np.float32)
    probs[:300] = 1 / 300  # the rest is negligible
    scoring = Scoring(TARGET.vocab_size, Warpers(), np.linspace(0.5, 1, TARGET.vocab_size, dtype=np.float32))
    found = likeliest(scoring, probs, first_target, 32)
    assert set(found.tolist()) <= set(range(300))
    assert 32 <= len(found) <= 56
    assert (first_target._firsts[300:-1] == UNKNOWN).all()


@pytest.mark.parametrize("is_noisy", [False, True])
@pytest.mark.parametrize("concentration", [0.001, 1.0])
def test_the_shortlist_holds_the_most_probable_and_the_best_weighed(is_noisy: bool, concentration: float) -> None:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(2000, concentration)).astype(np.float32)
    noise = rng.exponential(size=2000).astype(np.float32)
    scoring = Scoring(2000, Warpers(top_k=10), noise if is_noisy else None)
    listed = shortlist(scoring, probs).tolist()
    assert len(listed) == len(set(listed)) <= 162
    best = np.argsort(-probs)[:138]
    assert set(best[probs[best] >= 1e-9 * probs.max()].tolist()) <= set(listed)
    banned = Scoring(2000, Warpers(top_k=10, banned=frozenset(best[:5].tolist())), scoring.noise)
    assert set(best.tolist()) <= set(shortlist(banned, probs).tolist()), "however little the banned leave"
    if is_noisy:
        weighed = np.where(probs >= np.sort(probs)[-1024], probs / noise, 0.0)
        assert set(np.argsort(-weighed)[:10].tolist()) <= set(listed)
    assert shortlist(Scoring(8), probs[:8]).tolist() == list(range(8))


def test_a_distribution_of_nan_yields_nothing() -> None:
    probs = np.full(2000, np.nan, dtype=np.float32)
    noise = np.random.default_rng(0).exponential(size=2000).astype(np.float32)
    for scoring in (Scoring(2000), Scoring(2000, noise=noise), Scoring(2000, Warpers(top_k=50), noise)):
        assert likeliest(scoring, probs, TokenizerPair.of(TARGET, DRAFT).first_target, 32).size == 0
        assert scoring.choose(dict.fromkeys(shortlist(scoring, probs).tolist(), float("nan")), 0.0) is None
