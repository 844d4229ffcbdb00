"""Measures the seconds of draft passes, run as in drafting."""

import statistics
from collections.abc import Sequence

from uag.drafting.models.passes import Passes
from uag.projection import DraftRow, Feed, Node, link


def time_feeds(passes: Passes, ids: Sequence[int], widths: Sequence[int], num_passes: int) -> dict[int, float]:
    """Return the median seconds of a pass after `ids`, by its number of tokens.

    Args:
        passes: the draft's passes; its sequences are dropped.
        ids: draft ids of a short context, also used as the tokens of the passes and as an encoder's source.
        widths: numbers of tokens; a width beyond the draft's positions is skipped.
        num_passes: number of timed passes per width, after one warm-up.
    """
    row, medians = DraftRow(), {}
    passes.start([row], [list(ids)] if passes.is_encoder_decoder else None)
    passes.feed([(0, Feed(0, link([Node(None, draft_id, b"", 0) for draft_id in ids])))])
    for width in widths:
        block = [ids[index % len(ids)] for index in range(width)]
        seconds = []
        for _ in range(num_passes + 1):
            chain = link([Node(None, draft_id, b"", 0) for draft_id in block], row.path[len(ids) - 1])
            feed = Feed(len(ids), chain)
            if not passes.fits(feed):
                break
            before = passes.counts.forward_s
            passes.feed([(0, feed)])
            seconds.append(passes.counts.forward_s - before)
        if len(seconds) > 1:
            medians[width] = statistics.median(seconds[1:])
    passes.release()
    return medians
