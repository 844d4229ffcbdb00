"""Draft along known texts: what a draft would have proposed, and how much of it the target wrote.

The target is not run: a candidate is accepted if it is the next token of the text. So each round is the one that the
assistant would have run, with the same drafter, the same noise and the same acceptance.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from uag.drafting import Ask, Drafter
from uag.lookahead import Lookahead
from uag.measure.texts import Text
from uag.measure.writing import sampling_choice
from uag.projection import Scoring
from uag.proposal import Proposal, Warpers

_NUM_TOGETHER = 16
"""Texts drafted for in one batch: increase for speed, decrease to save memory."""


@dataclass(frozen=True)
class ReplayRound:
    """One round of a batch of texts.

    Attributes:
        lines: candidates of each text.
        num_accepted: accepted candidates of each text; None if the text has ended.
        draft_s: seconds of drafting; reading the prompt and compiling are left out.
        prefill_s: seconds of reading the prompt.
        forward_s: seconds in draft passes, of both.
        num_forwards: draft passes.
    """

    lines: list[list[Proposal]]
    num_accepted: list[int | None]
    draft_s: float
    prefill_s: float
    forward_s: float
    num_forwards: int


@dataclass(frozen=True)
class Replay:
    """Drafts along texts with one drafter.

    Attributes:
        drafter: of a draft model.
        vocab_size: entries of the target's head.
        repetition_penalty: the target's, from its generation config.
        device: where sampled texts were written: their noise depends on it.
    """

    drafter: Drafter
    vocab_size: int
    repetition_penalty: float = 1.0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def count(
        self, texts: Sequence[Text], num_candidates: int, *, every_token: bool = False
    ) -> Iterator[tuple[int, int]]:
        """Yield the number of rounds of each text, and of accepted candidates, in full rounds of `num_candidates`.

        With `every_token` each round advances by one token, whatever was accepted.
        """
        needed = num_candidates if every_token else num_candidates + 1
        for first in range(0, len(texts), _NUM_TOGETHER):
            part = texts[first : first + _NUM_TOGETHER]
            rounds = self.rounds(
                part,
                Lookahead(fixed=num_candidates),
                lambda num_left: num_candidates if num_left >= needed else None,
                every_token=every_token,
            )
            by_text = list(zip(*(done.num_accepted for done in rounds), strict=True)) or [()] * len(part)
            for counts in by_text:
                accepted = [count for count in counts if count is not None]
                yield len(accepted), sum(accepted)

    def rounds(
        self,
        texts: Sequence[Text],
        lookahead: Lookahead,
        budget: Callable[[int], int | None],
        *,
        start: int = 0,
        every_token: bool = False,
    ) -> Iterator[ReplayRound]:
        """Run rounds along a batch of texts until all have ended; the caller may teach the lookahead between rounds.

        Args:
            texts: with outputs.
            lookahead: how many candidates to draft; `begin` was called.
            budget: output tokens left of a text -> most candidates of its next round, None to end it.
            start: output tokens that the target has written before the first round.
            every_token: advance by one token per round, whatever was accepted.
        """
        places = [start] * len(texts)
        choices = [sampling_choice(text, self.vocab_size, self.device) for text in texts]
        penalizes = self.repetition_penalty != 1.0

        def scoring(row: int, num_before: int) -> Scoring:
            text, choice, place = texts[row], choices[row], places[row]
            warpers = Warpers(text.temperature or 1.0, repetition_penalty=self.repetition_penalty)
            noise = None if choice is None else choice.noise_at(place + num_before, 0)
            seen = frozenset(text.prompt_ids).union(text.output_ids[:place]) if penalizes else ()
            return Scoring(self.vocab_size, warpers, noise, seen)

        self.drafter.start([text.prompt_ids for text in texts])
        try:
            for row, text in enumerate(texts if start else ()):
                self.drafter.accept(row, 0, text.output_ids[:start])
            while True:
                budgets = [budget(len(t.output_ids) - place) for t, place in zip(texts, places, strict=True)]
                num_running = sum(size is not None for size in budgets)
                if not num_running:
                    return
                limit = lookahead.plan(num_running)
                ask = Ask([size or 0 for size in budgets], limit, lookahead, scoring, needs_normalizer=penalizes)
                done = self._propose(ask)
                for row, text in enumerate(texts):
                    if budgets[row] is None:
                        continue
                    place, ids = places[row], [proposal.target_id for proposal in done.lines[row]]
                    num_accepted = done.num_accepted[row] = num_equal(ids, text.output_ids[place:])
                    places[row] += 1 if every_token else num_accepted + 1
                    self.drafter.accept(row, num_accepted, text.output_ids[place : places[row]])
                    choice = choices[row]
                    if choice is not None:
                        choice.release(place)  # later steps may not have been drawn yet
                yield done
        finally:
            self.drafter.release()

    def _propose(self, ask: Ask) -> ReplayRound:
        counts = self.drafter.counts
        prefill_s, compile_s, forward_s, num_forwards = (
            counts.prefill_s, counts.compile_s, counts.forward_s, counts.num_forwards,
        )  # fmt: skip
        began = time.perf_counter()
        lines = ask.put_to(self.drafter)
        seconds, counts = time.perf_counter() - began, self.drafter.counts
        prefill_s = counts.prefill_s - prefill_s
        return ReplayRound(
            lines,
            [None] * len(lines),
            seconds - prefill_s - (counts.compile_s - compile_s),
            prefill_s,
            counts.forward_s - forward_s,
            counts.num_forwards - num_forwards,
        )


def num_equal(ids: Sequence[int], output_ids: Sequence[int]) -> int:
    """Return the length of the longest common prefix.

    >>> num_equal([1, 2, 3], [1, 2, 5, 6])
    2
    """
    pairs = zip(ids, output_ids, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(output_ids)))
