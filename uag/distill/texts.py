"""What the target writes: which texts are due, what one looks like, and the folder that keeps them.

A text depends on its prompt, its temperature and its seed alone, and the list of texts on the settings alone. So a run
that was stopped, killed or moved goes on with what is missing, and ends with the texts that an undisturbed run has.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from uag.ray import Parts, row_seed

_WINDOW = 8
"""Batches' worth of texts that are sorted by length before they are cut into batches: more pads less, and a time limit
cuts off a less even choice of prompts."""


@dataclass(frozen=True)
class Task:
    """One text that is due.

    Attributes:
        text_id: unique among the texts of a run.
        prompt_ids: target ids.
        temperature: 0 is greedy.
        seed: of the sampling: the text is plain sampling's own after `torch.manual_seed(seed)`.
    """

    text_id: str
    prompt_ids: tuple[int, ...]
    temperature: float
    seed: int


@dataclass(frozen=True)
class Text:
    """One text that the target wrote.

    Attributes:
        text_id: as in its task.
        prompt_ids: target ids.
        output_ids: target ids that it wrote, its end of text included where it came to one.
        temperature: 0 is greedy.
        seed: what its sampling noise can be drawn from again; None where another engine drew it.
    """

    text_id: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    temperature: float
    seed: int | None


def tasks(
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    num_texts: int | None,
    seed: int,
    prefix: str = "",
) -> list[Task]:
    """List the texts to write: a first for every prompt, then a second, and so on; a longer list begins as a shorter.

    Args:
        prompts: target ids.
        temperatures: of a prompt's texts, each prompt beginning with another one, so that a list that is cut off has
            as much of each; behind the last, those above 0 come again, since a second greedy text of a prompt would be
            the first.
        num_texts: how many; None for one of each prompt at each temperature.
        seed: of all sampling.
        prefix: of the texts' ids.
    """
    again = [temperature for temperature in temperatures if temperature > 0]
    most = len(prompts) * len(temperatures)
    wanted = most if num_texts is None else num_texts if again else min(num_texts, most)
    found = []
    for number in range(wanted):
        turn, prompt = divmod(number, len(prompts))
        late = turn - len(temperatures)
        temperature = temperatures[(turn + prompt) % len(temperatures)] if late < 0 else again[late % len(again)]
        text_id = f"{prefix}{prompt}-{turn}"
        found.append(Task(text_id, tuple(prompts[prompt]), temperature, row_seed(seed, text_id)))
    return found


def batches(due: Sequence[Task], batch_size: int) -> Iterator[list[Task]]:
    """Cut tasks into batches of prompts of about one length."""
    window = _WINDOW * batch_size
    for start in range(0, len(due), window):
        part = sorted(due[start : start + window], key=lambda task: len(task.prompt_ids))
        for first in range(0, len(part), batch_size):
            yield part[first : first + batch_size]


class TextStore:
    """A folder of JSON lines: each part file appears whole or not at all, so that no kill leaves half a text.

    Raises:
        OptionError: the folder holds something else.
    """

    def __init__(self, folder: Path) -> None:
        self._parts = Parts(folder, "text_id", "jsonl")

    @property
    def folder(self) -> Path:
        """Where the parts lie."""
        return self._parts.folder

    def ids(self) -> set[str]:
        """Return the ids of the texts that are there."""
        return self._parts.ids()

    def texts(self) -> list[Text]:
        """Return the texts that are there, in the order in which they were written."""
        return [_text(row) for row in self._parts.rows()]

    def add(self, texts: Sequence[Text], decoded: Sequence[str]) -> None:
        """Write texts, with what they say for a reader; all of them are there afterwards, or none.

        Raises:
            OSError: no space is left, or another process writes here.
        """
        rows = zip(texts, decoded, strict=True)
        self._parts.write([asdict(text) | {"text": said} for text, said in rows])


def _text(row: dict[str, Any]) -> Text:
    ids = {name: tuple(row[name]) for name in ("prompt_ids", "output_ids")}
    return Text(row["text_id"], ids["prompt_ids"], ids["output_ids"], row["temperature"], row["seed"])
