"""The command line: a module for each command, `app` with what they form, and `common` with what they share.

Each command parses, makes one library call and prints. The libraries behind it are imported when it runs.
"""

from uag.cli.app import main

__all__ = ["main"]
