"""Prompts for the target to write on from: a file in any of the usual forms, as target ids."""

import gzip
import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from uag.errors import OptionError

Prompt = str | list[dict[str, Any]]
"""A text, or the messages of a conversation."""

_SEPARATOR = "---"


def read_prompts(path: Path) -> list[Prompt]:
    """Read the prompts of a file, in its order.

    A `.jsonl` file (also `.jsonl.gz`) holds an object on each line: `prompt`, a text; `messages`, a conversation in the
    form of chat templates; or Spec-Bench's `turns`, of which the first is taken. Any other file is text: a prompt on
    each line that is not blank, or blocks of lines with a line `---` between them where there is such a line.

    Raises:
        OptionError: a line is in none of these forms, or there is no prompt.
        OSError: there is no such file.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except UnicodeDecodeError as error:
        raise OptionError(f"{str(path)!r} is no text in UTF-8: {error}") from error
    if ".jsonl" in path.suffixes:
        numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
        prompts = [_from_json(line, f"{path}, line {number}") for number, line in numbered]
    elif _SEPARATOR in lines:
        prompts = _blocks(lines)
    else:
        prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise OptionError(
            f"{str(path)!r} holds no prompt: write one on each line, blocks with a line {_SEPARATOR!r} between them, "
            "or JSON lines with 'prompt' or 'messages'"
        )
    return prompts


def _blocks(lines: Sequence[str]) -> list[Prompt]:
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line == _SEPARATOR:
            blocks.append([])
        else:
            blocks[-1].append(line)
    return [text for block in blocks if (text := "\n".join(block).strip("\n"))]


def _from_json(line: str, place: str) -> Prompt:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise OptionError(f"{place} is not JSON: {error}") from error
    match entry:
        case {"prompt": str(text)} | {"turns": [str(text), *_]} if text.strip():
            return text
        case {"messages": [*messages]} if messages and all(_is_message(message) for message in messages):
            return messages
    raise OptionError(
        f"{place} is no prompt: it needs 'prompt' (a text that is not empty) or 'messages' (a list of objects with "
        f"'role' and 'content'), and it is {line[:80]!r}"
    )


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and "content" in message and isinstance(message.get("role"), str)


def encode_prompts(
    tokenizer: Any, prompts: Sequence[Prompt], *, is_chat: bool = False, max_tokens: int | None = None
) -> list[tuple[int, ...]]:
    """Return the target ids of each prompt; with `is_chat` a text becomes a user turn of the chat template.

    Raises:
        OptionError: a prompt has no tokens or more than `max_tokens`, or the tokenizer has no chat template.
    """
    encoded = []
    for number, prompt in enumerate(prompts, start=1):
        ids = _encode(tokenizer, prompt, is_chat)
        if not ids:
            raise OptionError(f"prompt {number} has no tokens: {prompt!r}")
        if max_tokens is not None and len(ids) > max_tokens:
            raise OptionError(
                f"prompt {number} has {len(ids)} tokens and at most {max_tokens} leave room to write: shorten it, or "
                "write fewer tokens (--max-new-tokens)"
            )
        encoded.append(tuple(ids))
    return encoded


def _encode(tokenizer: Any, prompt: Prompt, is_chat: bool) -> list[int]:
    if isinstance(prompt, str) and not is_chat:
        return list(tokenizer(prompt)["input_ids"])
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except ValueError as error:
        raise OptionError(f"the target has no chat template for these messages: {error}") from error
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def hold_out(num_prompts: int, num_held_out: int) -> list[int]:
    """Choose the prompts, evenly spaced, that nothing is trained on: a tenth, at most `num_held_out`, at least one.

    Raises:
        OptionError: there is but one prompt.

    >>> hold_out(30, 8)
    [0, 10, 20]
    """
    if num_prompts < 2:
        raise OptionError("one prompt is too few: one at least is held out to measure acceptance. Give more prompts.")
    size = max(1, min(num_held_out, num_prompts // 10))
    return [index * num_prompts // size for index in range(size)]


def prompts_digest(*parts: Sequence[Sequence[int]]) -> str:
    """Return what tells one list of encoded prompts from another."""
    return blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
