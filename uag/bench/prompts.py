"""Prompts to measure with: Spec-Bench and HumanEval files as they are, plain text, or the bundled held-out Python."""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

from uag.errors import OptionError
from uag.loading import demo_folder


@dataclass(frozen=True)
class Prompt:
    """One prompt, under the name that its file gives it."""

    prompt_id: str
    text: str
    category: str | None = None


def read_prompts(path: Path) -> list[Prompt]:
    """Read the prompts of a file, in its order.

    A `.jsonl` file (also `.jsonl.gz`) holds one object per line: Spec-Bench's `question_id`, `category`, `turns` (the
    first turn is taken: later ones need an answer), HumanEval's `task_id`, `prompt`, or uag's own `prompt`, `module`,
    `line`. Any other file is plain text with one prompt on each line that is not blank.

    Raises:
        OptionError: a line of a `.jsonl` file is not an object in one of these forms, or the file holds no prompt.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        lines = [(number, line.rstrip("\r\n")) for number, line in enumerate(file, start=1) if line.strip()]
    if ".jsonl" in path.suffixes:
        prompts = [_from_json(line, number, f"{path}, line {number}") for number, line in lines]
    else:
        prompts = [Prompt(str(number), line) for number, line in lines]
    if not prompts:
        raise OptionError(f"{str(path)!r} holds no prompt: write one prompt on each line, or one JSON object")
    return prompts


def heldout_prompts() -> list[Prompt]:
    """Return the bundled prompts: Python that neither model of the demo pair has seen."""
    return read_prompts(Path(demo_folder("heldout.jsonl")))


def spread(prompts: list[Prompt], num_prompts: int | None) -> list[Prompt]:
    """Choose `num_prompts` prompts (None: all), evenly spaced over the list so that every category has its share.

    >>> [prompt.prompt_id for prompt in spread([Prompt(str(i), "x") for i in range(10)], 4)]
    ['0', '2', '5', '7']
    """
    if num_prompts is None or num_prompts >= len(prompts):
        return prompts
    return [prompts[index * len(prompts) // num_prompts] for index in range(num_prompts)]


def _from_json(line: str, number: int, place: str) -> Prompt:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise OptionError(f"{place} is not JSON: {error}") from error
    match entry:
        case {"turns": [str(text), *_]}:
            prompt_id = entry.get("question_id", number)
        case {"prompt": str(text), "module": module, "line": source_line}:
            prompt_id = f"{module}:{source_line}"
        case {"prompt": str(text)}:
            prompt_id = entry.get("task_id", number)
        case _:
            raise OptionError(
                f"{place} is no prompt: it needs 'turns' (Spec-Bench, a list of texts) or 'prompt' (HumanEval, a "
                f"text), and it is {line[:80]!r}"
            )
    category = entry.get("category")
    return Prompt(str(prompt_id), text, None if category is None else str(category))
