"""A differential fuzzer: random calls of `generate`, plain and with uag, must be equal in everything a caller sees.

    python -m tests.fuzz --minutes 60 [--seed N] [--cases K]

`case` is one call as plain data, `strategies` draws it, `targets`, `sources` and `options` build its parts, `comparing`
runs it both ways, `running` searches, shrinks and counts, `known` lists what was found once.
"""
