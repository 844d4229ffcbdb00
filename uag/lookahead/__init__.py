"""How many tokens to draft."""

from uag.lookahead.acceptance import RowOutcome
from uag.lookahead.lookahead import MAX_CANDIDATES, Lookahead, Round

__all__ = ["MAX_CANDIDATES", "Lookahead", "Round", "RowOutcome"]
