"""The command line: each command parses, makes one library call and prints."""

import io
import sys
from typing import Annotated

import typer

from uag._version import __version__
from uag.cli import generate, measuring, serve
from uag.errors import UagError

__all__ = ["main"]

app = typer.Typer(
    help=(
        "Make a large language model generate the same text faster, with any small model as its draft.\n\n"
        "To begin: uag demo. To measure models of your own: uag doctor TARGET DRAFT."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (measuring.demo, generate.generate, measuring.doctor, measuring.bench, serve.serve):
    app.command(context_settings={"allow_extra_args": command is generate.generate})(command)  # to say what to do


def main(arguments: list[str] | None = None) -> None:
    """Run the command line on `arguments` (None: those of the process) and exit."""
    for stream in (sys.stdout, sys.stderr):  # characters that the terminal lacks are escaped
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(arguments)
    except (UagError, OSError, ImportError) as error:
        print(f"uag: {' '.join(str(error).split())}", file=sys.stderr)  # noqa: T201 - rich would wrap the line
        sys.exit(2)
    except SystemExit as end:
        if end.code == 130:  # after Ctrl-C: start the shell's prompt on a new line
            print(file=sys.stderr)  # noqa: T201
        raise


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"uag {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass
