"""Predict the speed of uag with a draft, by replaying its rounds on known texts with measured target passes.

The drafter is the assistant's, including prompt lookup; the lookahead learns as it does in a call; the draft's passes
are run. Only the target's passes are not run: their tokens are known, and their times were measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from uag.lookahead import Lookahead, Round
from uag.measure.acceptance import Estimate, ratio
from uag.measure.replay import Replay, ReplayRound
from uag.measure.writing import Text
from uag.proposal import Proposal

_NUM_RUNS = 2
"""Runs per text, of which the fastest counts: increase on a busy machine, decrease to save time."""


@dataclass(frozen=True)
class TargetCosts:
    """Times of the target on this machine.

    Attributes:
        plain_s: by text id, seconds of plain decoding, including the prompt's pass.
        prefill_s: by text id, seconds of the prompt's pass.
        pass_s: seconds of a pass as uag runs it, by its number of positions, ascending.
        overhead_s: seconds of a round that are neither drafting nor the target's pass.
        num_bytes: size of the target's weights.
    """

    plain_s: Mapping[str, float]
    prefill_s: Mapping[str, float]
    pass_s: Mapping[int, float]
    overhead_s: float
    num_bytes: int

    def at(self, num_positions: int) -> float:
        """Return the seconds of a pass, interpolated linearly.

        A wider pass is never cheaper, so a slow measurement of a narrow pass is replaced by that of a wider one.
        """
        seconds = np.minimum.accumulate(list(self.pass_s.values())[::-1])[::-1]
        return float(np.interp(num_positions, list(self.pass_s), seconds))


@dataclass(frozen=True)
class Forecast:
    """The expected speed of greedy decoding with a draft.

    Attributes:
        speed_up: relative to plain decoding, with its interval over prompts.
        tokens_per_pass: output tokens per target pass.
        num_candidates: mean per round, including rounds without candidates.
        passes_per_candidate: draft passes per drafted candidate, including passes off the most probable path.
        draft_share: share of the time spent drafting.
        forward_share: share of drafting spent in draft passes; the rest is the projection.
    """

    speed_up: Estimate
    tokens_per_pass: float
    num_candidates: float
    passes_per_candidate: float
    draft_share: float
    forward_share: float


def forecast(replay: Replay, texts: Sequence[Text], costs: TargetCosts) -> Forecast:
    """Predict the speed of greedy decoding on texts like these.

    Args:
        replay: a replay with the assistant's drafter.
        texts: greedy outputs of the target; the first is run once more, as a warm-up.
        costs: costs of the target.
    """
    _call(replay, texts[0], costs, Lookahead())
    lookaheads = [Lookahead() for _ in range(_NUM_RUNS)]  # each keeps learning across texts, as an assistant's does
    # Other work on the machine can only make a run slower.
    calls = [min((_call(replay, text, costs, la) for la in lookaheads), key=lambda call: call[0]) for text in texts]
    seconds, rounds = [total_s for total_s, _ in calls], [drafted for _, run in calls for drafted in run]
    draft_s = sum(drafted.draft_s + drafted.prefill_s for drafted in rounds)
    num_drafted = sum(len(drafted.lines[0]) for drafted in rounds if not _is_free(drafted.lines[0]))
    return Forecast(
        speed_up=ratio([costs.plain_s[text.text_id] for text in texts], seconds),
        tokens_per_pass=sum(len(text.output_ids) for text in texts) / (len(rounds) + len(texts)),
        num_candidates=sum(len(drafted.lines[0]) for drafted in rounds) / max(len(rounds), 1),
        passes_per_candidate=sum(drafted.num_forwards for drafted in rounds) / max(num_drafted, 1),
        draft_share=draft_s / sum(seconds),
        forward_share=sum(drafted.forward_s for drafted in rounds) / max(draft_s, 1e-9),
    )


def _call(replay: Replay, text: Text, costs: TargetCosts, lookahead: Lookahead) -> tuple[float, list[ReplayRound]]:
    """Run the rounds of one text as a call does; return its seconds and rounds."""
    size_ratio = replay.drafter.counts.num_bytes / max(costs.num_bytes, 1)
    lookahead.begin(1, "greedy", len(text.prompt_ids), len(text.output_ids), size_ratio)
    total_s, rounds = costs.prefill_s[text.text_id], []
    lookahead.learn_prefill(total_s)
    # The prompt's own pass yields the first token, and each later pass one token in addition to accepted candidates.
    for drafted in replay.rounds([text], lookahead, lambda left: left - 1 if left else None, start=1):
        line, target_s = drafted.lines[0], costs.at(len(drafted.lines[0]) + 1)
        outcomes = [] if _is_free(line) else [(line, drafted.num_accepted[0])]
        lookahead.learn_round(Round(len(line), drafted.draft_s, target_s, outcomes, drafted.prefill_s))
        total_s += drafted.draft_s + drafted.prefill_s + target_s + costs.overhead_s
        rounds.append(drafted)
    return total_s, rounds


def _is_free(line: Sequence[Proposal]) -> bool:
    """Whether the candidates were copied from text, without a draft pass."""
    return bool(line) and line[0].is_free
