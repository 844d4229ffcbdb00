"""A simulated pair for the lookahead, with given times and acceptance, and without a clock."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from uag.lookahead import MAX_CANDIDATES, Lookahead, Round
from uag.proposal import Proposal

Cost = Callable[[int], float]
"""Maps the number of tokens of a target pass to seconds."""


def proposals(*confidences: float) -> list[Proposal]:
    return [Proposal(0, confidence) for confidence in confidences]


def flat(num_tokens: int) -> float:
    return 1.0 + 0.01 * (num_tokens - 1)


def steep(num_tokens: int) -> float:
    return 1.0 + 0.3 * (num_tokens - 1)


@dataclass
class World:
    """A simulated pair for the lookahead, with given times and acceptance.

    Args:
        acceptance: probability that each candidate is accepted if those before it are.
        draft_s, target_s: seconds of drafting one candidate, and of a target pass.
        confidence: the draft's, if it differs from the acceptance.
        empty: probability that a round's drafting takes the time of one candidate and proposes nothing.
    """

    acceptance: float
    draft_s: float
    target_s: Cost
    seed: int = 0
    confidence: float = -1.0
    empty: float = 0.0

    def __post_init__(self) -> None:
        self.confidence = self.acceptance if self.confidence < 0 else self.confidence
        self.random = random.Random(self.seed)
        self.num_empty = 0

    def run(self, lookahead: Lookahead, num_rounds: int, draft_prefill_s: float = 0.0) -> tuple[list[int], float]:
        """Decode some rounds, and return each one's candidates and the overall output tokens per second."""
        lengths: list[int] = []
        num_output, seconds = 0, 0.0
        for _ in range(num_rounds):
            limit = lookahead.plan()
            drafted: list[Proposal] = []
            is_last = False
            is_empty = limit > 0 and self.empty > 0.0 and self.random.random() < self.empty
            self.num_empty += is_empty
            while len(drafted) < limit and not is_empty:
                drafted.append(Proposal(0, self.confidence))
                if is_last:
                    break
                is_last = not lookahead.go_on(0, drafted)
            num_accepted = 0
            while num_accepted < len(drafted) and self.random.random() < self.acceptance:
                num_accepted += 1
            prefill_s = draft_prefill_s if drafted and not any(lengths) else 0.0
            draft_s, target_s = self.draft_s * (len(drafted) + is_empty), self.target_s(len(drafted) + 1)
            lookahead.learn_round(Round(len(drafted), draft_s, target_s, [(drafted, num_accepted)], prefill_s))
            lengths.append(len(drafted))
            num_output += 1 + num_accepted
            seconds += draft_s + target_s + prefill_s
        return lengths, num_output / seconds

    def rate(self, num_candidates: int) -> float:
        expected = sum(self.acceptance**size for size in range(num_candidates + 1))
        return expected / (num_candidates * self.draft_s + self.target_s(num_candidates + 1))

    def best_rate(self) -> float:
        return max(self.rate(size) for size in range(MAX_CANDIDATES + 1))
