"""Seconds of draft passes, measured as drafting runs them."""

import statistics
from collections.abc import Sequence

from uag.drafting.models.passes import Passes
from uag.projection import DraftRow, Feed, Node, link


def time_feeds(passes: Passes, ids: Sequence[int], widths: Sequence[int], num_passes: int) -> dict[int, float]:
    """Return the median seconds of a pass behind `ids`, by its number of tokens.

    Args:
        passes: of the draft; its sequences are forgotten.
        ids: draft ids of a short context, used as the tokens of the passes and as an encoder's source, too.
        widths: numbers of tokens; a width beyond the draft's positions is left out.
        num_passes: timed passes of each width, after one that warms up.
    """
    row, medians = DraftRow(), {}
    passes.start([row], [list(ids)] if passes.is_encoder_decoder else None)
    passes.feed([(0, Feed(0, link([Node(None, draft_id, b"", 0) for draft_id in ids])))])
    for width in widths:
        block = [ids[place % len(ids)] for place in range(width)]
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
