"""Rejection sampling: the output's distribution, summed over every outcome, equals the target's."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.calls import left_padded
from tests.support.models import bigram_model, tiny_model
from tests.support.tokenizers import small_tokenizer
from uag.assistant import Assistant
from uag.drafting.models import rows
from uag.errors import PairError
from uag.proposal import Proposal, Warpers
from uag.sampling import draw, proposal_probs, rejection
from uag.sampling.choice import Rejecting
from uag.sampling.rejection import is_accepted, residual, verify


def distributions(size: int, parts: int) -> Iterator[np.ndarray]:
    """All distributions over `size` tokens whose probabilities are multiples of 1 / parts."""
    for cuts in itertools.combinations(range(parts + size - 1), size - 1):
        edges = (-1, *cuts, parts + size - 1)
        yield np.array([right - left - 1 for left, right in itertools.pairwise(edges)]) / parts


def test_the_distribution_of_one_position_through_every_uniform_number() -> None:
    # With probabilities in quarters, decisions change only at multiples of 1/12, so the midpoints of 12 cells represent
    # all uniform numbers.
    cells = [(cell + 0.5) / 12 for cell in range(12)]
    pairs = list(itertools.product(distributions(3, 4), repeat=2))
    for target_probs, draft_probs in pairs[::4]:
        output = np.zeros(3)
        for first in cells:
            candidate = draw(draft_probs, first)
            assert draft_probs[candidate] > 0
            for second, third in itertools.product(cells, repeat=2):
                output[verify(target_probs, draft_probs, candidate, (second, third))] += 12.0**-3
        assert np.abs(output - target_probs).max() < 1e-12


def test_draw_never_returns_a_token_of_probability_zero() -> None:
    assert draw(np.array([0.0, 0.3, 0.0, 0.7, 0.0]), 0.0) == 1
    assert draw(np.array([0.0, 0.3, 0.0, 0.7, 0.0]), 1.0 - 2.0**-53) == 3
    probs = np.full(10, 0.1)
    probs[-1] = 0.0
    assert draw(probs, 1.0 - 2.0**-53) == 8
    assert not is_accepted(0.0, 0.5, 0.0)


def test_equal_distributions_reject_nothing() -> None:
    probs = np.array([0.2, 0.3, 0.5])
    assert all(verify(probs, probs, x, (1.0 - 2.0**-53, 0.5)) == x for x in range(3))
    assert residual(probs, probs).tolist() == probs.tolist()


def test_the_proposals_distribution_follows_the_options() -> None:
    probs = np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32)
    assert proposal_probs(probs, 4, Warpers()) == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=1e-7)
    assert proposal_probs(probs, 4, Warpers(top_k=2)) == pytest.approx([4 / 7, 3 / 7, 0, 0], abs=1e-6)
    assert proposal_probs(probs, 4, Warpers(top_p=0.75)) == pytest.approx([4 / 9, 3 / 9, 2 / 9, 0], abs=1e-6)
    assert proposal_probs(probs, 4, Warpers(top_p=0.05)) == pytest.approx([1, 0, 0, 0])
    assert proposal_probs(probs, 4, Warpers(min_p=0.6)) == pytest.approx([4 / 7, 3 / 7, 0, 0], abs=1e-6)
    squares = np.array([16, 9, 4, 1]) / 30
    assert proposal_probs(probs, 4, Warpers(temperature=0.5)) == pytest.approx(squares, abs=1e-6)
    banned = Warpers(banned=frozenset({0, 4, 9}))
    assert proposal_probs(probs, 4, banned) == pytest.approx([0, 3 / 6, 2 / 6, 1 / 6], abs=1e-6)
    assert proposal_probs(probs, 4, Warpers(banned=frozenset(range(4)))) is None


def test_the_proposals_distribution_of_padded_heads() -> None:
    probs = np.array([0.5, 0.25, 0.25], dtype=np.float32)
    longer, shorter = proposal_probs(probs, 5, Warpers()), proposal_probs(probs, 2, Warpers())
    assert longer is not None
    assert longer.tolist() == [0.5, 0.25, 0.25, 0.0, 0.0]
    assert shorter == pytest.approx([2 / 3, 1 / 3])


def test_the_penalty_acts_on_logits() -> None:
    logits = torch.tensor([2.0, 1.0, -1.0])
    probs, normalizer = torch.softmax(logits, -1).numpy(), float(torch.logsumexp(logits, -1))
    found = proposal_probs(probs, 3, Warpers(repetition_penalty=2.0), seen={0, 2, 3, 77}, log_normalizer=normalizer)
    assert found == pytest.approx(torch.softmax(torch.tensor([1.0, 1.0, -2.0]), -1).tolist(), abs=1e-6)


class Explorer:
    """Repeats a call so that its random decisions take every outcome once, and weights each run by its probability.

    A decision is a call of `draw` or `is_accepted`, which the tests above check for themselves.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plan: list[int] = []
        self.sizes: list[int] = []
        self.weight = 1.0
        monkeypatch.setattr(rejection, "draw", self.draw)
        monkeypatch.setattr(rows, "draw", self.draw)
        monkeypatch.setattr(rejection, "is_accepted", self.is_accepted)

    def draw(self, probs: np.ndarray, uniform: float) -> int:
        tokens = np.flatnonzero(probs)
        token = int(tokens[self._decide(len(tokens))])
        self.weight *= float(probs[token] / probs.sum())
        return token

    def is_accepted(self, target_prob: float, draft_prob: float, uniform: float) -> bool:
        chance = min(1.0, target_prob / draft_prob)
        if chance in (0.0, 1.0):
            return chance == 1.0
        accepts = self._decide(2) == 0
        self.weight *= chance if accepts else 1.0 - chance
        return accepts

    def _decide(self, size: int) -> int:
        place = len(self.sizes)
        self.sizes.append(size)
        if place == len(self.plan):
            self.plan.append(0)
        return self.plan[place]

    def probs(self, run: Callable[[], Any]) -> Counter[Any]:
        """Return the probability of each result of `run`."""
        found: Counter[Any] = Counter()
        while True:
            self.sizes, self.weight = [], 1.0
            found[run()] += self.weight  # type: ignore[assignment]
            while self.plan and self.plan[-1] == self.sizes[len(self.plan) - 1] - 1:
                self.plan.pop()
            if not self.plan:
                return found
            self.plan[-1] += 1


TARGET = torch.tensor([[0.3, -0.6, 0.9], [1.1, 0.2, -0.4], [-0.5, 0.8, 0.1]])
DRAFT = torch.tensor([[1.0, -0.2], [-0.3, 0.9], [0.2, 0.1]])  # the target's head is padded by one entry


def plain_probs(prompt: int, num_tokens: int, warp: Callable[[np.ndarray], np.ndarray]) -> dict[tuple[int, ...], float]:
    """The distribution of plain sampling, by multiplication."""
    expected = {}
    for ids in itertools.product(range(3), repeat=num_tokens):
        steps = itertools.pairwise((prompt, *ids))
        expected[ids] = math.prod(float(warp(TARGET[last].double().numpy())[token]) for last, token in steps)
    return expected


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits)
    return np.asarray(weights / weights.sum())


def top_two(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    return softmax(np.where(logits < np.sort(logits)[-2], -np.inf, logits / temperature))


@pytest.mark.parametrize(
    ("options", "warp", "num_new"),
    [
        ({}, softmax, 3),
        ({"top_k": 2, "temperature": 0.5}, partial(top_two, temperature=0.5), 4),
        ({"output_logits": True}, softmax, 3),
    ],
    ids=["plain", "top-k", "lockstep"],
)
def test_distribution_of_whole_texts(options: Any, warp: Any, num_new: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft, accepted = bigram_model(TARGET), bigram_model(DRAFT), []

    def run() -> tuple[int, ...]:
        assistant = Assistant(draft, num_candidate_tokens=2, sampling="rejection")
        output = assistant.generate(
            target, torch.tensor([[1]]), do_sample=True, max_new_tokens=num_new, pad_token_id=0,
            return_dict_in_generate=True, **({"top_k": 0} | options),
        )  # fmt: skip
        accepted.append(assistant.stats.num_accepted_tokens)
        return tuple(output.sequences[0, 1:].tolist())

    monkeypatch.setattr("uag.drafting.pairing.head_size", lambda _: 0)
    found = Explorer(monkeypatch).probs(run)
    assert abs(sum(found.values()) - 1.0) < 1e-12
    for ids, weight in plain_probs(1, num_new, warp).items():
        assert found[ids] == pytest.approx(weight, abs=1e-12 if not options.get("temperature") else 1e-7)
    assert set(range(num_new - 1)) <= set(accepted)


def test_the_distribution_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = bigram_model(TARGET), bigram_model(DRAFT)
    monkeypatch.setattr("uag.drafting.pairing.head_size", lambda _: 0)

    def run() -> tuple[int, ...]:
        assistant = Assistant(draft, num_candidate_tokens=1, sampling="rejection")
        inputs = left_padded([[1], [2]])
        output = assistant.generate(target, **inputs, do_sample=True, max_new_tokens=2, pad_token_id=0, top_k=2)
        return tuple(output[:, 1:].flatten().tolist())

    found = Explorer(monkeypatch).probs(run)
    first, second = plain_probs(1, 2, top_two), plain_probs(2, 2, top_two)
    for (left, one), (right, other) in itertools.product(first.items(), second.items()):
        assert found[(*left, *right)] == pytest.approx(one * other, abs=1e-12)


def test_the_wiring_by_draws() -> None:
    """Seeded chi-square of 200,000 draws: 7 degrees of freedom, 29.9 is exceeded once in 10,000."""
    random = np.random.default_rng(4)
    scores = torch.tensor(random.normal(size=8))
    target_probs = torch.softmax(scores, -1).numpy()
    draft_probs = random.dirichlet(np.full(8, 0.5))
    torch.manual_seed(11)
    rule = Rejecting(torch.device("cpu"))
    num = 200_000
    offers = [Proposal(token, 1.0, draft_probs=draft_probs) for token in range(8)]
    proposals = [offers[token] for token in random.choice(8, size=num, p=draft_probs)]
    chosen = rule.choose(scores.expand(num, -1), [(0, 0)] * num, proposals)
    counts = np.bincount(chosen.numpy(), minlength=8)
    assert ((counts - num * target_probs) ** 2 / (num * target_probs)).sum() < 29.9
    accepted = np.mean([p.target_id == t for p, t in zip(proposals, chosen.tolist(), strict=True)])
    assert accepted == pytest.approx(np.minimum(target_probs, draft_probs).sum(), abs=0.005)


def test_other_tokenizers_are_refused() -> None:
    first, second = small_tokenizer("byte_level"), small_tokenizer("llama")
    draft = tiny_model("llama", len(second))
    with pytest.raises(PairError, match="sampling='rejection' needs the draft's exact probability"):
        Assistant(draft, second, first, sampling="rejection")
    Assistant(draft, second, second, sampling="rejection")


def test_the_seed_decides() -> None:
    target, draft = bigram_model(TARGET), bigram_model(DRAFT @ torch.eye(2, 3))
    assistant = Assistant(draft, num_candidate_tokens=3, sampling="rejection")
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        ids = assistant.generate(target, torch.tensor([[1]]), do_sample=True, max_new_tokens=30, pad_token_id=0)
        outputs.append(ids.tolist())
    assert outputs[0] == outputs[1] != outputs[2]
