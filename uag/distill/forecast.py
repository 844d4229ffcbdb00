"""How fast uag will be with a draft: its own rounds along a known text, with what a target pass was measured to cost.

Nothing is a formula here but the sum of the seconds. The drafter is the one that the assistant uses, prompt lookup
included; the lookahead is the assistant's and learns as it would; the draft's passes really run. Only the target's
passes are not run: what they would select is known, and what they take was measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from uag.distill.acceptance import Estimate, ratio
from uag.distill.replay import Replay, num_equal
from uag.distill.texts import Text
from uag.drafting import Ask
from uag.lookahead import Lookahead, Round
from uag.products import clock

_NUM_RUNS = 2
"""Runs along each text, of which the faster counts: more are steadier on a busy machine, and take longer."""


@dataclass(frozen=True)
class TargetCosts:
    """What the target takes on this machine.

    Attributes:
        plain_s: seconds of plain decoding of each text, by its id, the prompt's pass included.
        prefill_s: seconds of the prompt's pass of each text.
        pass_s: seconds of a pass as uag runs it, by its number of positions, ascending.
        overhead_s: seconds of a round outside of drafting and the target's pass.
        num_bytes: of the target's weights.
    """

    plain_s: Mapping[str, float]
    prefill_s: Mapping[str, float]
    pass_s: Mapping[int, float]
    overhead_s: float
    num_bytes: int

    def at(self, num_positions: int) -> float:
        """Return the seconds of a pass: on straight lines between the measured ones.

        A pass over more positions is never cheaper: a slow measurement of a narrow one is held down by the others.
        """
        seconds = np.minimum.accumulate(list(self.pass_s.values())[::-1])[::-1]
        return float(np.interp(num_positions, list(self.pass_s), seconds))


@dataclass(frozen=True)
class Forecast:
    """What to expect of uag with a draft.

    Attributes:
        speed_up: against plain decoding, with its interval over prompts.
        tokens_per_pass: output tokens of a target pass.
        num_candidates: of a round, on average; rounds without any count too.
        passes_per_candidate: draft passes of each candidate that cost any, those that left the most probable path
            included.
        draft_share: drafting's share of the time.
        forward_share: the share of drafting in draft passes; the rest is the projection's.
    """

    speed_up: Estimate
    tokens_per_pass: float
    num_candidates: float
    passes_per_candidate: float
    draft_share: float
    forward_share: float


@dataclass
class _Tally:
    total_s: float = 0.0
    draft_s: float = 0.0
    forward_s: float = 0.0
    num_rounds: int = 0
    num_candidates: int = 0
    num_drafted: int = 0
    num_forwards: int = 0
    num_tokens: int = 0


@dataclass
class _Run:
    """Rounds along texts, one text at a time, as one assistant would run them."""

    replay: Replay
    costs: TargetCosts
    lookahead: Lookahead = field(default_factory=Lookahead)

    def along(self, text: Text) -> _Tally:
        """Run the rounds of one text."""
        drafter, lookahead, output = self.replay.drafter, self.lookahead, text.output_ids
        size_ratio = drafter.counts.num_bytes / max(self.costs.num_bytes, 1)
        mode = f"sample@{text.temperature:.1f}" if text.temperature else "greedy"
        lookahead.begin(1, mode, len(text.prompt_ids), len(output), size_ratio)
        drafter.start([text.prompt_ids])
        choice = self.replay.choice(text)
        tally = _Tally(total_s=self.costs.prefill_s[text.text_id], num_tokens=len(output))
        lookahead.learn_prefill(tally.total_s)
        drafter.accept(0, 0, output[:1])  # the prompt's own pass gives the first token
        place = 1
        try:
            while place < len(output):
                ask = Ask(
                    [len(output) - place - 1],
                    lookahead.plan(1),
                    lookahead,
                    lambda _, num_before: self.replay.scoring(text, place, num_before, choice),  # noqa: B023
                    needs_normalizer=self.replay.needs_normalizer,
                )
                place += self._round(ask, tally, output[place:])
        finally:
            drafter.release()
        return tally

    def _round(self, ask: Ask, tally: _Tally, coming: Sequence[int]) -> int:
        """Run one round, count it, and return the output tokens that it gives."""
        drafter, counts = self.replay.drafter, self.replay.drafter.counts
        prefill_s, compile_s, forward_s, num_forwards = (
            counts.prefill_s, counts.compile_s, counts.forward_s, counts.num_forwards,
        )  # fmt: skip
        began = clock()
        (line,) = ask.put_to(drafter)
        seconds, counts = clock() - began, drafter.counts
        prefill_s = counts.prefill_s - prefill_s
        seconds -= counts.compile_s - compile_s
        num_accepted = num_equal([proposal.target_id for proposal in line], coming)
        drafter.accept(0, num_accepted, coming[: num_accepted + 1])
        is_free = bool(line) and line[0].is_free
        target_s = self.costs.at(len(line) + 1)
        outcomes = [] if is_free else [(line, num_accepted)]
        self.lookahead.learn_round(Round(len(line), seconds - prefill_s, target_s, outcomes, prefill_s))
        tally.total_s += seconds + target_s + self.costs.overhead_s
        tally.draft_s += seconds
        tally.forward_s += counts.forward_s - forward_s
        tally.num_rounds += 1
        tally.num_candidates += len(line)
        tally.num_drafted += 0 if is_free else len(line)
        tally.num_forwards += counts.num_forwards - num_forwards
        return num_accepted + 1


def forecast(replay: Replay, texts: Sequence[Text], costs: TargetCosts) -> Forecast:
    """Say how fast uag will be on such texts.

    Args:
        replay: with the drafter that the assistant would have.
        texts: what the target writes; a first run over the first of them warms up, and measures forms of products.
        costs: of the target.
    """
    _Run(replay, costs).along(texts[0])
    runs = [_Run(replay, costs) for _ in range(_NUM_RUNS)]
    # Other work of the machine only ever makes a run slower.
    tallies = [min((run.along(text) for run in runs), key=lambda tally: tally.total_s) for text in texts]
    sums = {name: sum(getattr(tally, name) for tally in tallies) for name in vars(_Tally())}
    return Forecast(
        speed_up=ratio([costs.plain_s[text.text_id] for text in texts], [tally.total_s for tally in tallies]),
        tokens_per_pass=sums["num_tokens"] / max(sums["num_rounds"] + len(texts), 1),
        num_candidates=sums["num_candidates"] / max(sums["num_rounds"], 1),
        passes_per_candidate=sums["num_forwards"] / max(sums["num_drafted"], 1),
        draft_share=sums["draft_s"] / sums["total_s"],
        forward_share=sums["forward_s"] / max(sums["draft_s"], 1e-9),
    )
