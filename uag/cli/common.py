"""Shared by all commands: consoles, common options, messages and JSON."""

import math
from typing import Annotated, Any

import typer
from rich.console import Console

from uag.errors import OptionError

console, error_console = Console(), Console(stderr=True, style="dim", highlight=False, markup=False, soft_wrap=True)
report = error_console.print  # print a status message to standard error


def _silence_messages(is_json: bool) -> bool:
    error_console.quiet = is_json
    return is_json


def _checked_temperature(value: float) -> float:
    if value and not 1e-6 <= value < math.inf:  # scores divided by less are infinite
        raise OptionError(f"--temperature is {value!r}, it must be 0 (greedy) or a number of at least 1e-6.")
    return value


_COMPILE_DRAFT = "Compile the draft's passes: several times faster on a GPU, after half a minute or more of compiling."
_DRAFT_INDEPENDENT = "Decode plainly where the output could depend on the draft, even in rounding."
_DTYPE = "auto, float32, bfloat16 or float16; default: float32 on a CPU, else the checkpoint's own."
_TARGET = "Hub name or folder of the target; default: the demo's."

Target = Annotated[str | None, typer.Option(help=_TARGET)]
TargetArgument = Annotated[str | None, typer.Argument(help=_TARGET)]
Draft = Annotated[str | None, typer.Option("--draft", help="Hub name, folder or GGUF file; default: the demo's.")]
Dtype = Annotated[str | None, typer.Option(help=_DTYPE)]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ...; default: cuda if there is one.")]
Seed = Annotated[int, typer.Option(min=0, max=(1 << 32) - 1, help="Seed of the sampling.")]
IsChat = Annotated[bool, typer.Option("--chat", help="Apply the target's chat template.")]
Temperature = Annotated[float, typer.Option(callback=_checked_temperature, help="0 is greedy.")]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Maximum number of new tokens per prompt.")]
AsJson = Annotated[bool, typer.Option("--json", callback=_silence_messages, help="Print JSON and nothing else.")]

CompileDraft = Annotated[bool, typer.Option("--compile-draft", help=_COMPILE_DRAFT)]
DraftIndependent = Annotated[bool, typer.Option("--draft-independent", help=_DRAFT_INDEPENDENT)]


def show(value: Any, **options: Any) -> None:
    """Print a line, a text or a table to standard output."""
    console.print(value, highlight=False, markup=False, soft_wrap=True, **options)


def print_json(value: Any) -> None:
    """Print a value as JSON, in ASCII if standard output has another encoding than UTF-8."""
    console.print_json(data=value, ensure_ascii=not console.encoding.startswith("utf"))


def begin(target: str | None, *drafts: str | None) -> None:
    """Report which models are loaded, because imports alone take seconds, and disable transformers' progress bars."""
    names = [draft or "the demo draft" for draft in drafts or (None,)]
    report(f"loading {', '.join([target or 'the demo target', *names])}")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
