"""`uag generate`: continue a prompt, or chat."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from uag.cli.chat import chat
from uag.cli.common import (
    AsJson,
    Device,
    Draft,
    Dtype,
    FixedWidth,
    IsChat,
    MaxNewTokens,
    Seed,
    Target,
    Temperature,
    begin,
    print_json,
    report,
)
from uag.errors import LoadingError, OptionError


def generate(
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", help="The text to continue; - reads standard input; default: a chat."),
    ] = None,
    target: Target = None,
    draft: Draft = None,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    is_chat: IsChat = False,
    prediction: Annotated[Path | None, typer.Option(help="File with the expected text.")] = None,
    fixed_width: FixedWidth = None,
    dtype: Dtype = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Continue a prompt with a target and a draft, and print the text as it is generated.

    Without --prompt, chat with the target.
    """
    if prompt is None and (as_json or prediction is not None):
        raise OptionError("--json and --prediction need --prompt: without it, uag generate is a chat.")
    if prompt is None and not sys.stdin.isatty():
        raise OptionError("Standard input is not a terminal. Pass --prompt TEXT, or --prompt - to read it from there.")
    try:
        expected = None if prediction is None else prediction.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LoadingError(f"The prediction {str(prediction)!r} cannot be read: {reason}.") from error
    begin(target, draft)
    from uag import bench
    from uag.assistant import Assistant
    from uag.loading import load_pair

    pair = load_pair(target, draft, dtype=dtype, device=device)
    assistant = Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer, fixed_width=fixed_width)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    if prompt is None:
        return chat(pair, assistant, **options)
    text = sys.stdin.read() if prompt == "-" else prompt
    result = bench.complete(pair, assistant, text, **options, is_chat=is_chat, prediction=expected, streams=not as_json)
    if as_json:
        print_json(result.to_dict())
    else:
        report(str(result.stats))
    return None
