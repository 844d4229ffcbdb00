"""`uag generate`: continue a prompt, or chat."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from uag.cli import common
from uag.errors import LoadingError, OptionError, UagError

_PROMPT = "The text to continue; - reads standard input; default: a chat."


def generate(
    context: typer.Context,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help=_PROMPT)] = None,
    target: common.Target = None,
    draft: common.Draft = None,
    max_new_tokens: common.MaxNewTokens = 128,
    temperature: common.Temperature = 0.0,
    seed: common.Seed = 0,
    is_chat: common.IsChat = False,
    prediction: Annotated[Path | None, typer.Option(help="File with the expected text.")] = None,
    dtype: common.Dtype = None,
    device: common.Device = None,
    as_json: common.AsJson = False,
    compile_draft: common.CompileDraft = False,
    draft_independent: common.DraftIndependent = False,
) -> None:
    """Continue a prompt, or chat.

    The text is printed as it is generated. Without --prompt, it is a chat.
    """
    if context.args:
        raise OptionError("This command takes the prompt with -p: uag generate -p TEXT --target TARGET --draft DRAFT.")
    if prompt is None and (as_json or prediction is not None):
        raise OptionError("--json and --prediction need --prompt: without it, uag generate is a chat.")
    if prompt is None and not (sys.stdin and sys.stdin.isatty()):
        raise OptionError("Standard input is not a terminal. Pass --prompt TEXT, or --prompt - to read it from there.")
    try:
        expected = None if prediction is None else prediction.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LoadingError(f"The prediction {str(prediction)!r} cannot be read: {reason}.") from error
    if prompt == "-" and sys.stdin is None:
        raise OptionError("Standard input is closed. Pass --prompt TEXT, or open it: uag generate -p - < FILE.")
    try:
        text = sys.stdin.read().removeprefix("\ufeff") if prompt == "-" else prompt
    except UnicodeDecodeError as error:
        raise OptionError(f"Standard input is not a text in {sys.stdin.encoding}: {error}.") from error
    common.begin(target, draft)
    from uag import bench
    from uag.assistant import Assistant
    from uag.loading import load_pair

    pair = load_pair(target, draft, dtype=dtype, device=device)
    own = pair.draft, pair.draft_tokenizer, pair.target_tokenizer
    assistant = Assistant(*own, compile_draft=compile_draft, draft_independent=draft_independent)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    if text is None:
        return _chat(pair, assistant, **options)
    result = bench.complete(pair, assistant, text, **options, is_chat=is_chat, prediction=expected, streams=not as_json)
    if as_json:
        common.print_json(result.to_dict())
    common.report(str(result.stats))  # silenced by --json
    return None


def _chat(pair: Any, assistant: Any, **options: Any) -> None:
    """Read messages from the terminal and print the target's answers, until Ctrl-D; Ctrl-C takes a message back."""
    from uag.bench import complete
    from uag.loading import encode_prompt

    encode_prompt(pair.target_tokenizer, "", is_chat=True)  # a missing template fails before the first message
    messages: list[dict[str, Any]] = []
    common.report("chat: Ctrl-C stops an answer, Ctrl-D ends")
    while True:
        try:
            text = common.console.input("> ")
        except EOFError:
            common.console.print()
            return
        messages.append({"role": "user", "content": text})
        try:
            answer = complete(pair, assistant, messages, streams=True, **options)
        except KeyboardInterrupt:
            messages.pop()
            common.console.print()
            continue
        except UagError as error:  # such as of one message's characters, or its length
            messages.pop()
            common.report(str(error))
            continue
        common.report(assistant.stats.summary())
        messages.append({"role": "assistant", "content": answer.text})
