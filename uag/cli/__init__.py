"""The command line: `uag demo`, `uag generate`, `uag doctor`, `uag bench`, `uag distill`, `uag serve`."""

from uag.cli.commands import main

__all__ = ["main"]
