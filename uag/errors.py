"""The exceptions of uag.

Each message states the problem, the expected value and how to fix it. The second base is the builtin exception that a
caller of transformers would expect, so existing `except ValueError` clauses keep working.
"""


class UagError(Exception):
    """Base class of uag's exceptions."""


class TokenizerError(UagError, ValueError):
    """A tokenizer that no adapter supports."""


class PairError(UagError, ValueError):
    """A target and a draft that cannot work together."""


class UnsupportedError(UagError, ValueError):
    """A model, a cache or a generation mode that cannot be assisted."""


class LoadingError(UagError, OSError):
    """A model, a draft or a tokenizer that cannot be loaded."""


class OptionError(UagError, TypeError):
    """An unknown option, or a value of the wrong kind."""


class CompatibilityError(UagError, RuntimeError):
    """A transformers release whose internals uag does not know."""


class DrafterError(UagError, AssertionError):
    """A drafter that breaks the contract of `uag.drafting.Drafter`; raised by `uag.testing.check_drafter`."""
