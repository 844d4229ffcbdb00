"""Predictions: texts that the user expects the output to be, as a free source of candidates.

How likely a candidate is follows from what speaks for it: how long the text was followed, or which guess brought the
output back to it (`uag.drafting.texts.follower`). Each kind's share is learnt as the run goes, over all calls, so that
guesses that are wrong are soon not made; and a text whose guesses were wrong in this call is believed less.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from uag.adapters import TokenizerAdapter
from uag.drafting.drafter import Ask
from uag.drafting.ranked import FreeSource, choose
from uag.drafting.texts.follower import Follower, Guess
from uag.drafting.texts.grounds import END, FOLLOWS, RESUMES, Ground, Learnt
from uag.drafting.texts.target_ids import Joined, Spelling
from uag.proposal import Proposal

Expected = str | tuple[int, ...]
"""A prediction: text, or target ids."""

_MOST_PROPOSED = 64
"""Candidates at most: more save passes in long texts that are right, and widen a pass that is rejected early."""

_TRUST_WEIGHT = 2.0
"""Wrong guesses in a call that halve the belief in a text's further guesses: higher goes on guessing longer."""

_FORGIVEN = 8.0
"""Accepted candidates that make up for a wrong guess: higher believes a text less that is seldom right."""

_RECENT = 16
"""Last ids of a row that are kept, for joins."""


@dataclass
class _Path:
    """One text along one row.

    Attributes:
        follower: where the output stands in it.
        joined: its ids.
        spelling: how they and the output's ids become symbols.
        num_wrong: guesses behind differences that were not accepted in this call; what was accepted makes up for them.
    """

    follower: Follower
    joined: Joined
    spelling: Spelling
    num_wrong: float = 0.0


@dataclass
class _Offer:
    """What one row was offered in a round: from which path and guess, each candidate's ground, and what was renamed."""

    path: _Path
    guess: Guess
    grounds: list[Ground]
    has_renames: bool


class PredictionSource(FreeSource):
    """Candidates from texts that were predicted for each row of one call.

    Args:
        predictions: each row's, in the user's order; empty where it has none.
        adapter: the target's tokenizer; None where all predictions are ids.
        learnt: of earlier calls; learns from this one.
        vocab_size: entries of the target's head: no id at or above it is proposed.
    """

    strategy = "prediction"
    source = "prediction"

    def __init__(
        self,
        predictions: Sequence[Sequence[Expected]],
        adapter: TokenizerAdapter | None,
        learnt: Learnt,
        vocab_size: int,
    ) -> None:
        self._predictions = predictions
        self._adapter = adapter
        self._learnt = learnt
        self._vocab_size = vocab_size
        self._rows: list[list[_Path]] = []
        self._recent: list[list[int]] = []
        self._offers: list[_Offer | None] = []

    def start(
        self,
        prompts: Sequence[Sequence[int]],
        source_ids: Sequence[Sequence[int]] | None = None,  # noqa: ARG002 - an encoder's text is no prediction
    ) -> None:
        """Begin with new sequences."""
        self._rows = [
            [self._path(text, prompt) for text in texts]
            for prompt, texts in zip(prompts, self._predictions, strict=True)
        ]
        self._recent = [list(prompt[-_RECENT:]) for prompt in prompts]
        self._offers = [None] * len(prompts)

    def _path(self, text: Expected, prompt: Sequence[int]) -> _Path:
        spelling = Spelling(self._adapter if isinstance(text, str) else None)
        content = spelling.prepared(text, spelling.place(prompt)) if isinstance(text, str) else text
        known = self._learnt.known(content)
        follower = Follower(known)
        return _Path(follower, Joined(known, spelling, follower.renames), spelling)

    def look(self, row: int, room: int, ask: Ask) -> tuple[list[Proposal], float]:
        """Return candidates from a row's likeliest place in its texts, as many as pay, and what they promise."""
        self._offers[row] = None
        found = self._likeliest(row) if room else None
        if found is None:
            return [], 0.0
        path, guess, first_rate = found
        most = min(room, ask.limit) if ask.lookahead.fixed is not None else min(room, _MOST_PROPOSED)
        ids = path.joined.ids(guess.place, self._recent[row], most)
        ids = ids[: next((n for n, token_id in enumerate(ids) if token_id >= self._vocab_size), len(ids))]
        grounds = self._grounds(path, guess, ids)
        if len(ids) < most and path.joined.is_end(guess.place, ids) and (end_id := self._end_id(ask)) is not None:
            ids, grounds = [*ids, end_id], [*grounds, (END, 0)]
        rates = list(map(self._learnt.rate, grounds))
        if grounds and grounds[0] == guess.ground:
            rates[0] = first_rate
        self._offers[row] = _Offer(path, guess, grounds, bool(path.follower.renames.new))
        return choose(ids, rates, self.source, ask)

    def _likeliest(self, row: int) -> tuple[_Path, Guess, float] | None:
        """Return where the row goes on most likely, and how likely; of two the longer one followed, then the first."""
        best, best_key = None, (0.0, 0)
        for path in self._rows[row]:
            trust = _TRUST_WEIGHT / (_TRUST_WEIGHT + path.num_wrong) if path.follower.is_lost else 1.0
            for guess in path.follower.guesses():
                rate = self._learnt.rate(guess.ground) * (trust if path.follower.is_lost else 1.0)
                if (rate, guess.run) > best_key:
                    best, best_key = (path, guess, rate), (rate, guess.run)
        return best

    def _grounds(self, path: _Path, guess: Guess, ids: Sequence[int]) -> list[Ground]:
        """Return what speaks for each candidate, given that those before it are accepted."""
        run, grain = guess.run, path.follower.known.grain
        kind = RESUMES if path.follower.is_lost else FOLLOWS
        further = ((kind, path.follower.level(run + n * grain)) for n in range(1, len(ids)))
        return [guess.ground, *further] if ids else []

    def _end_id(self, ask: Ask) -> int | None:
        """Return the id that ends the output, where it can be told which of several."""
        eos_id = None if self._adapter is None else self._adapter.controls.eos_id
        if eos_id in ask.stop_ids:
            return eos_id
        return next(iter(ask.stop_ids)) if len(ask.stop_ids) == 1 else None

    def take(self, row: int, size: int) -> None:
        """Note how many candidates are offered."""
        offer = self._offers[row]
        if offer is not None:
            del offer.grounds[size:]

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Learn what the target wrote, and move every text of the row along it."""
        offer = self._offers[row]
        if offer is not None and offer.grounds:
            for place, ground in enumerate(offer.grounds[: num_accepted + 1]):
                self._learnt.learn(ground, place < num_accepted)
            path = offer.path
            if path.follower.is_lost:
                if num_accepted:
                    path.follower.go_on_at(offer.guess)
                else:
                    path.num_wrong += 1.0
            path.num_wrong = max(path.num_wrong - num_accepted / _FORGIVEN, 0.0)
        self._offers[row] = None
        for path in self._rows[row]:
            path.follower.write(path.spelling.symbols(output_ids))
        if offer is not None and offer.has_renames and num_accepted < len(offer.grounds):
            offer.path.follower.keep_word()
        self._recent[row] = [*self._recent[row], *output_ids][-_RECENT:]

    def release(self) -> None:
        """Forget every sequence."""
        self._rows, self._recent, self._offers = [], [], []
