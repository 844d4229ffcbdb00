"""A conversation with a target on a terminal."""

from typing import Any

from uag.cli.common import console, report


def chat(pair: Any, assistant: Any, **options: Any) -> None:
    """Read messages from the terminal and print the target's answers, until Ctrl-D.

    Ctrl-C stops an answer and takes its message back. `options` are `max_new_tokens`, `temperature` and `seed`, as in
    `uag.bench.complete`.

    Raises:
        OptionError: the target has no chat template.
    """
    from uag.bench import complete
    from uag.loading import encode_prompt

    encode_prompt(pair.target_tokenizer, "", is_chat=True)  # a missing template fails before the first message
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
            answer = complete(pair, assistant, messages, streams=True, **options)
        except KeyboardInterrupt:
            messages.pop()
            console.print()
            continue
        report(assistant.stats.summary())
        messages.append({"role": "assistant", "content": answer.text})
