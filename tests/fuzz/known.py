"""Cases that differed once: each was found by the fuzzer, or is one of the kinds that it was made to find."""

from __future__ import annotations

from tests.fuzz.case import Case

KNOWN: dict[str, Case] = {}
