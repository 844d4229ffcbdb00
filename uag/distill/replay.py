"""Draft along a text that is known already: what a draft would have proposed, and how much of it the target wrote.

The target itself is not needed: a candidate is accepted where it is the token that the text goes on with. So a round
here is the round that the assistant would have run, with the same drafter, the same noise and the same acceptance.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from uag.distill.texts import Text
from uag.distill.writing import sampling_choice
from uag.drafting import Ask, Drafter
from uag.lookahead import Lookahead
from uag.products import clock
from uag.projection import Scoring
from uag.proposal import Proposal, Warpers
from uag.sampling import Choice


@dataclass
class Replayed:
    """What drafting along one text gave.

    Attributes:
        num_rounds: rounds with as many candidates as were asked for.
        num_candidates: of all these rounds.
        num_accepted: candidates that the target wrote.
        asked: candidates of a round by position: how often one was proposed there.
        accepted: how often it and all before it were what the target wrote.
        draft_s: seconds of drafting, reading the prompt left out; means something where rows are drafted for alone.
        forward_s: the part of it in draft passes.
        num_forwards: draft passes, the prompt's left out.
    """

    num_rounds: int = 0
    num_candidates: int = 0
    num_accepted: int = 0
    asked: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    draft_s: float = 0.0
    forward_s: float = 0.0
    num_forwards: int = 0

    def count(self, num_candidates: int, num_accepted: int) -> None:
        """Add a round."""
        self.num_rounds += 1
        self.num_candidates += num_candidates
        self.num_accepted += num_accepted
        for counts, size in ((self.asked, num_candidates), (self.accepted, num_accepted)):
            counts.extend([0] * (num_candidates - len(counts)))
            for position in range(size):
                counts[position] += 1


@dataclass
class Replay:
    """Drafts along texts with one drafter.

    Attributes:
        drafter: a draft model's.
        vocab_size: entries of the target's head.
        num_candidate_tokens: of every round.
        every_token: ask at every token of the text, one candidate each, whether the one before was accepted or not.
        repetition_penalty: the target's own, from its generation config.
        device: where the texts were written, whose noise it was.
        num_together: texts that are drafted for at once: more is faster, and 1 tells what a round costs.
    """

    drafter: Drafter
    vocab_size: int
    num_candidate_tokens: int = 4
    every_token: bool = False
    repetition_penalty: float = 1.0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    num_together: int = 16

    def run(self, texts: Sequence[Text]) -> Iterator[Replayed]:
        """Yield what each text gave; one that is too short for a round gave none."""
        for first in range(0, len(texts), self.num_together):
            yield from self._run(texts[first : first + self.num_together])

    def _run(self, texts: Sequence[Text]) -> list[Replayed]:
        found = [Replayed() for _ in texts]
        places = [0] * len(texts)
        choices = [self.choice(text) for text in texts]
        size = 1 if self.every_token else self.num_candidate_tokens
        needed = size if self.every_token else size + 1
        lookahead = Lookahead(fixed=size)
        lookahead.begin(len(texts), "replay")

        def scoring(row: int, num_before: int) -> Scoring:
            return self.scoring(texts[row], places[row], num_before, choices[row])

        self.drafter.start([text.prompt_ids for text in texts])
        try:
            while True:
                rooms = [size if len(t.output_ids) - p >= needed else 0 for t, p in zip(texts, places, strict=True)]
                if not any(rooms):
                    return found
                ask = Ask(rooms, size, lookahead, scoring, needs_normalizer=self.needs_normalizer)
                lookahead.plan(sum(map(bool, rooms)))
                lines = self._propose(ask, found)
                for row, room in enumerate(rooms):
                    if not room:
                        continue
                    text, place = texts[row], places[row]
                    ids = [proposal.target_id for proposal in lines[row]]
                    num_accepted = num_equal(ids, text.output_ids[place:])
                    found[row].count(len(ids), num_accepted)
                    written = 1 if self.every_token else num_accepted + 1
                    self.drafter.accept(row, num_accepted, text.output_ids[place : place + written])
                    choice = choices[row]
                    if choice is not None:
                        choice.release(place)  # a later step may not have been drawn yet
                    places[row] += written
        finally:
            self.drafter.release()

    @property
    def needs_normalizer(self) -> bool:
        """Whether scoring needs logits."""
        return self.repetition_penalty != 1.0

    def scoring(self, text: Text, place: int, num_before: int, choice: Choice | None) -> Scoring:
        """Return how candidates are scored at an output step: behind `place` tokens and `num_before` candidates."""
        warpers = Warpers(text.temperature or 1.0, repetition_penalty=self.repetition_penalty)
        noise = None if choice is None else choice.noise_at(place + num_before, 0)
        seen = frozenset(text.prompt_ids).union(text.output_ids[:place]) if self.needs_normalizer else ()
        return Scoring(self.vocab_size, warpers, noise, seen)

    def choice(self, text: Text) -> Choice | None:
        """Return what selected a sampled text; None for a greedy one, and where the noise is not known."""
        if not text.temperature or text.seed is None:
            return None
        return sampling_choice(text.seed, self.vocab_size, self.device)

    def _propose(self, ask: Ask, found: Sequence[Replayed]) -> list[list[Proposal]]:
        counts = self.drafter.counts
        before = counts.prefill_s, counts.compile_s, counts.forward_s, counts.num_forwards
        began = clock()
        lines = ask.put_to(self.drafter)
        seconds, counts = clock() - began, self.drafter.counts
        prefill_s = counts.prefill_s - before[0]
        if len(found) == 1:
            found[0].draft_s += seconds - prefill_s - (counts.compile_s - before[1])
            found[0].forward_s += counts.forward_s - before[2] - prefill_s
            found[0].num_forwards += counts.num_forwards - before[3] - (prefill_s > 0)
        return lines


def num_equal(ids: Sequence[int], written: Sequence[int]) -> int:
    """Count the ids that begin both."""
    pairs = zip(ids, written, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(written)))
