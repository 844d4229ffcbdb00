"""How many tokens to draft."""

from uag.lookahead.calibration import Calibration
from uag.lookahead.costs import MAX_CANDIDATES, smooth
from uag.lookahead.lookahead import Lookahead

__all__ = ["MAX_CANDIDATES", "Calibration", "Lookahead", "smooth"]
