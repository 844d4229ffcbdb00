"""How many tokens to draft, and the clock that the decision relies on."""

from uag.lookahead import clock
from uag.lookahead.acceptance import Round, RowOutcome
from uag.lookahead.lookahead import MAX_CANDIDATES, Lookahead

__all__ = ["MAX_CANDIDATES", "Lookahead", "Round", "RowOutcome", "clock"]
