"""TODO."""

from uag.decoding.loop import Request, decode, decode_plainly
from uag.decoding.ranks import Ranks, plain_reason
from uag.decoding.stopping import Stopping

__all__ = ["Ranks", "Request", "Stopping", "decode", "decode_plainly", "plain_reason"]
