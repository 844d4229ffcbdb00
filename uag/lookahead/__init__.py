"""How many tokens to draft."""

from uag.lookahead.costs import MAX_CANDIDATES, Sums, smooth, with_point
from uag.lookahead.lookahead import Lookahead
from uag.lookahead.rounds import Round, RowOutcome

__all__ = ["MAX_CANDIDATES", "Lookahead", "Round", "RowOutcome", "Sums", "smooth", "with_point"]
