"""The command line: `uag demo`, `uag generate`, `uag doctor`, `uag bench`."""

from uag.cli.commands import main

__all__ = ["main"]
