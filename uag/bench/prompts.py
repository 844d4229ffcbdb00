"""Read prompts: JSON lines, plain text, or the bundled Python."""

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uag.errors import LoadingError, OptionError
from uag.loading import Content, demo_folder


@dataclass(frozen=True)
class Prompt:
    """One prompt of a file, named by its line if it has no name: a text or, if that is empty, a conversation."""

    prompt_id: str
    text: str = ""
    messages: tuple[dict[str, Any], ...] = ()

    @property
    def content(self) -> Content:
        return self.text or list(self.messages)


def read_prompts(source: Path | str | Sequence[Content]) -> list[Prompt]:
    """Read the prompts of a file, or number texts and conversations that are passed directly.

    A `.jsonl` file (also `.jsonl.gz`) has one object per line, with one of these keys: `prompt` or `text`, a text;
    `messages`, a conversation in the form of chat templates; or `turns`, texts of which the first is used. `task_id` or
    `question_id` names it. Any other file is plain text: one prompt per non-blank line.
    """
    if not isinstance(source, Path | str):
        named = enumerate(source, start=1)
        return [Prompt(str(n), p) if isinstance(p, str) else Prompt(str(n), messages=tuple(p)) for n, p in named]
    path = Path(source)
    if path.suffix == ".json":
        raise OptionError(
            f"{str(path)!r} is JSON: write JSON lines (.jsonl), one object with 'prompt' or 'messages' each"
        )
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
            lines = file.read().split("\n")
    except UnicodeDecodeError as error:
        raise OptionError(f"{str(path)!r} is not a text file in UTF-8: {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise LoadingError(f"The prompts {str(path)!r} cannot be read: {reason}.") from error
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if ".jsonl" in path.suffixes:
        prompts = [_from_json(line, number, f"{path}, line {number}") for number, line in numbered]
    else:
        prompts = [Prompt(str(number), line) for number, line in numbered]
    if not prompts:
        raise OptionError(
            f"{str(path)!r} has no prompts: write one per line, or JSON lines (.jsonl) with 'prompt' or 'messages'"
        )
    return prompts


def heldout_prompts() -> list[Prompt]:
    """Return the bundled prompts: Python that neither model of the demo pair has seen."""
    return read_prompts(demo_folder("heldout.jsonl"))


def spread(prompts: list[Prompt], num_prompts: int) -> list[Prompt]:
    """Choose `num_prompts` prompts (0: all), evenly spaced over the list.

    >>> [prompt.prompt_id for prompt in spread([Prompt(str(i), "x") for i in range(10)], 4)]
    ['0', '2', '5', '7']
    """
    num_prompts = min(num_prompts or len(prompts), len(prompts))
    return [prompts[index * len(prompts) // num_prompts] for index in range(num_prompts)]


def _from_json(line: str, number: int, where: str) -> Prompt:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{where} is not JSON: {error}") from error
    entry = entry if isinstance(entry, dict) else {}
    name = str(entry.get("task_id", entry.get("question_id", number)))
    turns, messages = entry.get("turns") or [None], entry.get("messages")
    text = entry.get("prompt", entry.get("text", turns[0] if isinstance(turns, list) else None))
    if isinstance(text, str) and text.strip():
        return Prompt(name, text)
    if isinstance(messages, list) and messages and all(map(_is_message, messages)):
        return Prompt(name, messages=tuple(messages))
    raise OptionError(
        f"{where} is not a prompt: expected 'prompt' or 'text' (non-empty text), 'messages' (a list of objects with "
        f"'role' and 'content') or 'turns' (a list of texts), got {line[:80]!r}"
    )


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and "content" in message and isinstance(message.get("role"), str)
