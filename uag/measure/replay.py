"""Replay drafting on known texts: the candidates that a draft would have proposed, and how many would be accepted.

The target is not run: a candidate is accepted if it is the next token of the text. Otherwise rounds are the
assistant's, with the same drafter, noise and acceptance. Sampled texts must have been generated on a CPU.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass

import torch

from uag.drafting import Ask, Drafter
from uag.lookahead import Lookahead
from uag.measure.writing import Text, sampling_choice
from uag.projection import Scoring
from uag.proposal import Proposal, Warpers

_NUM_TOGETHER = 16
"""Texts drafted for in one batch: increase for speed, decrease to save memory."""


@dataclass(frozen=True)
class ReplayRound:
    """One round of a batch of texts.

    Attributes:
        lines: candidates of each text.
        num_accepted: accepted candidates of each text; 0 if the text has ended.
        draft_s: seconds of drafting, without reading the prompt and compiling.
        num_forwards: draft passes.
    """

    lines: list[list[Proposal]]
    num_accepted: list[int]
    draft_s: float
    num_forwards: int


@dataclass(frozen=True)
class Replay:
    """Replays drafting on texts with one drafter.

    Attributes:
        drafter: the drafter.
        vocab_size: entries of the target's head.
    """

    drafter: Drafter
    vocab_size: int

    def count(self, texts: Sequence[Text]) -> Iterator[tuple[int, int]]:
        """Yield the number of output tokens of each text, and how many of them the draft would have proposed."""
        for first in range(0, len(texts), _NUM_TOGETHER):
            part = texts[first : first + _NUM_TOGETHER]
            num_accepted = [0] * len(part)
            for drafted in self.rounds(part, Lookahead(fixed=1), lambda left: 1 if left else None, every_token=True):
                num_accepted = [sum(pair) for pair in zip(num_accepted, drafted.num_accepted, strict=True)]
            yield from zip((len(text.output_ids) for text in part), num_accepted, strict=True)

    def rounds(
        self,
        texts: Sequence[Text],
        lookahead: Lookahead,
        budget: Callable[[int], int | None],
        *,
        start: int = 0,
        every_token: bool = False,
    ) -> Iterator[ReplayRound]:
        """Replay a batch of texts until all have ended; the caller may update the lookahead between rounds.

        Args:
            texts: with outputs.
            lookahead: decides how many candidates to draft; its `begin` must have been called.
            budget: maps a text's remaining output tokens to the maximum number of candidates of its next round, or None
                to end it.
            start: number of output tokens before the first round.
            every_token: advance by one token per round, however many candidates were accepted.
        """
        positions = [start] * len(texts)
        choices = [sampling_choice(text, self.vocab_size, torch.device("cpu")) for text in texts]

        def scoring(row: int, num_before: int) -> Scoring:
            text, choice, position = texts[row], choices[row], positions[row]
            noise = None if choice is None else choice.noise_at(position + num_before, 0)
            return Scoring(self.vocab_size, Warpers(text.temperature or 1.0), noise)

        self.drafter.start([text.prompt_ids for text in texts])
        try:
            for row, text in enumerate(texts if start else ()):
                self.drafter.accept(row, 0, text.output_ids[:start])
            while True:
                budgets = [budget(len(t.output_ids) - done) for t, done in zip(texts, positions, strict=True)]
                num_running = sum(size is not None for size in budgets)
                if not num_running:
                    return
                limit = lookahead.plan(num_running)
                drafted = self._draft(Ask([size or 0 for size in budgets], limit, lookahead, scoring))
                for row, text in enumerate(texts):
                    if budgets[row] is None:
                        continue
                    position, candidate_ids = positions[row], [proposal.target_id for proposal in drafted.lines[row]]
                    num_accepted = drafted.num_accepted[row] = num_equal(candidate_ids, text.output_ids[position:])
                    positions[row] += 1 if every_token else num_accepted + 1
                    output_ids = text.output_ids[position : positions[row]]
                    self.drafter.accept(row, min(num_accepted, len(output_ids)), output_ids)
                    choice = choices[row]
                    if choice is not None:
                        choice.release(position)  # later steps may not have been drawn yet
                yield drafted
        finally:
            self.drafter.release()

    def _draft(self, ask: Ask) -> ReplayRound:
        before, start_s = copy(self.drafter.counts), time.perf_counter()
        lines = ask.put_to(self.drafter)
        seconds, counts = time.perf_counter() - start_s, self.drafter.counts
        other_s = counts.prefill_s - before.prefill_s + counts.compile_s - before.compile_s
        return ReplayRound(
            lines=lines,
            num_accepted=[0] * len(lines),
            draft_s=seconds - other_s,
            num_forwards=counts.num_forwards - before.num_forwards,
        )


def num_equal(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the longest common prefix.

    >>> num_equal([1, 2, 3], [1, 2, 5, 6])
    2
    """
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(first), len(second)))
