"""What the commands share: the consoles, options that several have, and how JSON is printed."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console

console, error_console = Console(), Console(stderr=True)

Target = Annotated[str | None, typer.Option("--target", help="Hub name or folder of the target; default: the demo's.")]
Draft = Annotated[str | None, typer.Option("--draft", help="Hub name, folder or GGUF file; default: the demo's.")]
Dtype = Annotated[
    str | None,
    typer.Option(help="auto, float32, bfloat16 or float16; default: float32 on a CPU, else the checkpoint's own."),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ...; default: cuda where there is one.")]
IsChat = Annotated[bool, typer.Option("--chat", help="Apply the target's chat template.")]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Maximum number of new tokens per prompt.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def quieten() -> None:
    """Keep transformers' progress bars and advice off the terminal; errors still show."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def print_json(value: dict[str, Any]) -> None:
    """Print one object."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))
