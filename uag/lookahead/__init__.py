"""How many tokens to draft."""

from uag.lookahead.costs import MAX_CANDIDATES, smooth
from uag.lookahead.lookahead import Lookahead
from uag.lookahead.rounds import Round, RowOutcome

__all__ = ["MAX_CANDIDATES", "Lookahead", "Round", "RowOutcome", "smooth"]
