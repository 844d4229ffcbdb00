"""Batches the draft passes of several rows.

A row's drafting is a generator that yields the passes it needs; the passes of waiting rows run together.
"""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence

from uag.drafting.models.passes import Passes
from uag.drafting.models.rows import Row
from uag.projection import Feed, Scoring
from uag.proposal import Proposal

Steps = Generator[Feed, None, None]
"""A row's drafting in one round: yields the draft passes that it needs."""


def draft_steps(
    row: Row,
    limit: int,
    proposals: list[Proposal],
    scoring: Callable[[int], Scoring],
    go_on: Callable[[Sequence[Proposal]], bool],
    stop_ids: Collection[int],
) -> Steps:
    """Draft up to `limit` candidates of one row.

    Args:
        row: the sequence; each proposal is committed to it.
        limit: maximum number of candidates.
        proposals: list to append to.
        scoring: returns how to score the candidate at a position.
        go_on: returns whether another candidate is worth its cost.
        stop_ids: target ids after which nothing is drafted.
    """
    is_last = False
    while len(proposals) < limit:
        step = scoring(len(proposals))
        # If possible, the last candidate comes from the available distributions, since no pass follows it.
        step.may_feed = not is_last and len(proposals) + 1 < limit
        proposal = yield from row.next_target(step)
        if proposal is None and not is_last and not step.may_feed:
            step.may_feed = True
            proposal = yield from row.next_target(step)
        if proposal is None:
            return
        proposals.append(proposal)
        can_follow = row.commit(proposal.target_id)
        if is_last or not can_follow or proposal.target_id in stop_ids:
            return
        is_last = not go_on(proposals)


def run_waves(model: Passes, steps: Mapping[int, Steps]) -> None:
    """Run the drafting of several rows to completion, in batched passes.

    Raises:
        PassError: the draft failed within a pass.
    """
    waiting = dict(steps)
    while waiting:
        wave = []
        for index, row_steps in list(waiting.items()):
            feed = next(row_steps, None)
            if feed is None or not model.fits(feed):
                del waiting[index]
            else:
                wave.append((index, feed))
        if wave:
            model.feed(wave)
