"""Scores compared with transformers' processors on whole distributions, and the expected scores of open text."""

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tests.unit.adapters.strategies import SETTINGS
from uag.projection import Scoring
from uag.projection.scoring import penalized
from uag.projection.vocabulary import SortedBytes
from uag.proposal import Warpers

SIZE = 24


def logits_of(seed: int, scale: float) -> torch.Tensor:
    """Draw [1, SIZE] float32 logits."""
    return torch.randn(1, SIZE, generator=torch.Generator().manual_seed(seed)) * scale


def noise_of(seed: int) -> torch.Tensor:
    """Draw [1, SIZE] exponential noise, float32."""
    return torch.empty(1, SIZE).exponential_(generator=torch.Generator().manual_seed(seed + 1))


def scoring_of(warpers: Warpers, noise: torch.Tensor | None, **options: Any) -> Scoring:
    return Scoring(SIZE, warpers, None if noise is None else noise[0].numpy(), **options)


def chosen_by_transformers(
    warpers: Warpers, logits: torch.Tensor, noise: torch.Tensor | None, seen: frozenset[int] = frozenset()
) -> int:
    """Select as `generate` does, with its processors in its order."""
    processors = LogitsProcessorList()
    if warpers.repetition_penalty != 1.0 and seen:
        processors.append(RepetitionPenaltyLogitsProcessor(penalty=warpers.repetition_penalty))
    if warpers.banned:
        processors.append(SuppressTokensLogitsProcessor(sorted(warpers.banned), device="cpu"))
    if noise is not None:
        if warpers.temperature != 1.0:
            processors.append(TemperatureLogitsWarper(warpers.temperature))
        if warpers.top_k:
            processors.append(TopKLogitsWarper(warpers.top_k))
        if warpers.top_p < 1.0:
            processors.append(TopPLogitsWarper(warpers.top_p))
        if warpers.min_p > 0.0:
            processors.append(MinPLogitsWarper(warpers.min_p))
    scores = processors(torch.tensor([sorted(seen)], dtype=torch.long), logits.clone())
    probs = torch.softmax(scores, dim=-1)
    return int((probs if noise is None else probs / noise).argmax())


def chosen_here(scoring: Scoring, logits: torch.Tensor) -> int | None:
    probs = torch.softmax(logits[0], dim=-1).tolist()
    return scoring.choose(dict(enumerate(probs)), float(torch.logsumexp(logits[0], dim=-1)))


def test_scorings_choose_what_transformers_chooses() -> None:
    """With random truncations, penalties and bans, each alone and combined, greedy and sampled."""
    draw = random.Random(0)
    for seed in range(1500):
        warpers = Warpers(
            temperature=draw.choice([0.3, 0.7, 1.0, 1.0, 1.7]),
            top_k=draw.choice([0, 0, 3, 9, SIZE + 3]),
            top_p=draw.choice([1.0, 1.0, 0.05, 0.3, 0.6, 0.9]),
            min_p=draw.choice([0.0, 0.0, 0.05, 0.3, 0.9]),
            repetition_penalty=draw.choice([1.0, 1.0, 0.8, 1.1, 1.5, 3.0]),
            banned=frozenset(draw.sample(range(SIZE - 1), draw.choice([0, 0, 5]))),
        )
        seen = frozenset(draw.sample(range(SIZE), draw.randrange(SIZE)))
        logits, noise = logits_of(seed, draw.choice([0.5, 2.0, 6.0])), noise_of(seed) if seed % 4 else None
        if noise is None:
            warpers = replace(warpers, temperature=1.0)
        scoring = scoring_of(warpers, noise, seen=seen)
        assert chosen_here(scoring, logits) == chosen_by_transformers(warpers, logits, noise, seen), (warpers, seed)


@pytest.mark.parametrize("temperature", [1e-2, 1e-4, 1e-30])
@pytest.mark.parametrize("truncation", [Warpers(top_k=3), Warpers(top_p=0.6), Warpers(min_p=0.2)], ids=repr)
def test_truncations_at_a_temperature_near_zero_keep_the_best(truncation: Warpers, temperature: float) -> None:
    warpers, noise = replace(truncation, temperature=temperature), noise_of(0)
    for seed in range(20):
        logits = logits_of(seed, 2.0)
        assert chosen_here(scoring_of(warpers, noise), logits) == int(logits.argmax())


def test_extreme_temperatures_and_penalties_do_not_overflow() -> None:
    noise = noise_of(0)[0].numpy()
    for temperature in (1e-30, 2e3, 1e30):
        scoring = Scoring(SIZE, Warpers(temperature), noise)
        assert 0.0 < scoring.reach(b"", 0.5, SortedBytes([b"a"])) < math.inf
    for penalty in (1e-30, 1e30):
        scoring = Scoring(SIZE, Warpers(repetition_penalty=penalty, top_k=2), noise, seen={0})
        positive_logit, negative_logit = (scoring.choose({0: 0.5, 1: 0.5 * noise[1]}, n) for n in (9.0, -9.0))
        assert (positive_logit, negative_logit) == ((0, 0) if penalty < 1 else (1, 1))


def test_the_penalty_acts_on_the_logit_behind_a_mass() -> None:
    # logit = log(mass) + log_normalizer: 0.5 of a total of e^3 is a positive logit, divided; of e^-3 a negative one
    for log_normalizer in (3.0, -3.0):
        logit = math.log(0.5) + log_normalizer
        expected = logit / 2 if logit > 0 else logit * 2
        assert penalized(0.5, log_normalizer, 2.0) == pytest.approx(math.exp(expected - log_normalizer))
    assert penalized(0.0, 0.0, 2.0) < 1e-30
    scoring = scoring_of(Warpers(repetition_penalty=2.0), None, seen={1})
    assert scoring.score(1, 0.5, 3.0) < scoring.score(0, 0.5, 3.0) == 0.5


def test_impossible_ids_score_zero() -> None:
    scoring = Scoring(4, Warpers(banned=frozenset({0, 2})))
    assert [scoring.score(i, 0.5, 0.0) for i in range(6)] == [0.0, 0.5, 0.0, 0.5, 0.0, 0.0]
    assert scoring.choose({0: 0.9, 2: 0.9, 4: 0.9, 1: 0.1}, 0.0) == 1
    assert scoring.choose({0: 0.9, 2: 0.9, 4: 0.9}, 0.0) is None
    assert scoring.choose({}, 0.0) is None


# few texts: prefixes and two ids of equal bytes are common
short = st.sampled_from([b"a", b"aa", b"ab", b"aab", b"b"])


@SETTINGS
@example([None, b"a", b"a"], b"aa", 0, 0, True)  # two ids of equal bytes, the second with the smaller noise
@given(
    table=st.lists(st.one_of(st.none(), short), min_size=1, max_size=16),
    over=st.sampled_from([b"a", b"aa", b"aab", b"ab", b"abb", b"b"]),
    seed=st.integers(0, 10**6),
    missing=st.integers(0, 3),
    is_noisy=st.booleans(),
)
def test_no_token_of_an_open_continuation_outscores_its_reach(
    table: list[bytes | None], over: bytes, seed: int, missing: int, is_noisy: bool
) -> None:
    """With its share of the mass: all for a token that ends within the text, an equal share for each longer one."""
    vocab_size = max(1, len(table) - missing)  # the head may have fewer ids than the tokenizer
    noise = np.random.default_rng(seed).exponential(size=vocab_size).astype(np.float32) if is_noisy else None
    scoring, texts = Scoring(vocab_size, Warpers(), noise), SortedBytes(table)
    reach = scoring.reach(over, 0.25, texts)
    within = [i for i, text in enumerate(table) if text and over.startswith(text)]
    behind = [i for i, text in enumerate(table) if text and text != over and text.startswith(over)]
    if is_noisy:
        scores = [scoring.score(i, 0.25, 1.0) for i in within]
        scores += [scoring.score(i, 0.25 / len(behind), 1.0) for i in behind]
        assert all(score <= reach * (1 + 1e-6) for score in scores)
        if missing == 0:
            assert max(scores, default=0.0) == pytest.approx(reach)
    else:
        assert 0.0 < reach < 0.25
    assert scoring.reach(over, 0.5, texts) == pytest.approx(2 * reach)
    for least in (0.99 * reach, 1.01 * reach, 1e9):  # the reference does not affect the comparison
        assert (scoring.reach(over, 0.25, texts, least) > least) == (reach > least)


@pytest.mark.parametrize("temperature", [0.01, 0.7, 1.0, 1.9, 20.0])
def test_powers_of_one_token_and_of_many_agree(temperature: float) -> None:
    noise = np.array([0.0, 1e-30, 1e-6, 0.1, 1.0, 40.0], dtype=np.float32)
    scoring = Scoring(6, Warpers(temperature), noise)
    powers = scoring.powers(np.arange(7))
    assert np.isfinite(powers).all()
    assert powers[6] == powers[5]
    assert powers[:6].tolist() == pytest.approx([scoring.power(i) for i in range(6)], rel=1e-5)
    assert powers[3:6].tolist() == pytest.approx([value**-temperature for value in (0.1, 1.0, 40.0)], rel=1e-5)
    assert scoring.largest_power == pytest.approx(powers.max(), rel=1e-5)
    assert scoring.most([4, 3, 9]) == pytest.approx(powers[3], rel=1e-5)
    assert scoring.most([9]) == scoring.most([]) == 0
