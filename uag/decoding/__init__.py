"""The loop: draft, verify, accept."""

from uag.decoding.call import Call
from uag.decoding.guard import guard
from uag.decoding.loop import decode
from uag.decoding.plain import decode_plainly, plain_reason
from uag.decoding.ranks import Ranks

__all__ = ["Call", "Ranks", "decode", "decode_plainly", "guard", "plain_reason"]
