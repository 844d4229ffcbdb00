"""A conversation with a target on a terminal."""

from typing import Any

from uag.assistant import Assistant
from uag.cli.common import console, report
from uag.cli.completion import complete
from uag.loading import Pair, encode_prompt


def chat(pair: Pair, fixed_width: int | None = None, **options: Any) -> None:
    """Read messages from the terminal and print the target's answers, until Ctrl-D.

    Ctrl-C stops an answer and takes its message back.

    Args:
        pair: the models.
        fixed_width: as in `uag.Assistant`.
        options: `max_new_tokens`, `temperature` and `seed`, as in `complete`.

    Raises:
        OptionError: the target has no chat template.
    """
    encode_prompt(pair.target_tokenizer, "", is_chat=True)  # a missing template fails before the first message
    assistant = Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer, fixed_width=fixed_width)
    messages: list[dict[str, Any]] = []
    report("chat: Ctrl-C stops an answer, Ctrl-D ends")
    while True:
        try:
            text = console.input("> ")
        except EOFError:
            console.print()
            return
        messages.append({"role": "user", "content": text})
        try:
            answer = complete(pair, messages, assistant=assistant, streams=True, **options)
        except KeyboardInterrupt:
            messages.pop()
            console.print()
            continue
        report(assistant.stats.summary())
        messages.append({"role": "assistant", "content": answer.text})
