"""Predictions (text that the user expects), compared with prompt lookup alone and with plain decoding.

    python benchmarks/predictions.py [--tokens 80] [--prompts 6] [--functions 20] [--output FILE]

The demo target generates the texts; then calls are replayed on them without it. A pass takes 10 ms, each candidate in
it 0.1 ms more, and the sources take their real time. Speeds are relative to plain decoding. Predictions are edited
copies of the target's output. Cases:

- unedited; one word in the middle replaced; and, without prompt lookup, wrong throughout: prose, Python, 1 MB of it;
- first halves of functions of the standard library as prompts, with an edited prediction: a name replaced throughout,
  a line that the target does not write, one left out that it writes, all three.
"""

import argparse
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator

import common
import torch
from calls import COLUMNS, Calls, compared
from replay import Text, write

from uag.loading import load_pair

PROSE = "The quick brown fox jumps over the lazy dog, and nobody knows why it would want to do that. "
PYTHON = "def main():\n    parser = Parser()\n    for line in parser.lines():\n        print(line, end='')\n"
WRONG = {"prose": 6 * PROSE, "Python": 4 * PYTHON, "1 MB": (1_000_000 // len(PYTHON)) * PYTHON}
MODULES = ("textwrap", "shlex", "fnmatch", "statistics", "heapq", "bisect", "calendar", "colorsys", "difflib", "string")


def main() -> None:
    """Measure every case and print one row for each."""
    arguments = common.parse(common.make_parser(__doc__, tokens=80, prompts=6, functions=20))
    torch.set_num_threads(1)  # for a model this small, synchronizing threads costs more than it saves
    common.show(arguments, "predictions on the demo target, greedy", COLUMNS, _measure(arguments))


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    pair = load_pair(dtype="float32", device="cpu")
    tokenizer = pair.target_tokenizer

    def texts_after(prompts: list[str]) -> list[Text]:
        due = [Text("", tuple(tokenizer(prompt)["input_ids"])) for prompt in prompts]
        return write(pair.target, due, arguments.tokens)

    def measure(case: str, texts: list[Text], edit: Callable[[str], str], *, looks_up: bool = True) -> common.Row:
        predictions = [edit(tokenizer.decode(text.output_ids, skip_special_tokens=True)) for text in texts]
        ours = Calls(pair, looks_up=looks_up).replay(texts, predictions)
        return compared(case, ours, Calls(pair).replay(texts))

    texts = texts_after(common.python_texts(arguments.prompts))
    yield measure("correct throughout", texts, lambda written: written)
    yield measure("one word replaced", texts, replace_word)
    for name, wrong in WRONG.items():
        yield measure(f"wrong throughout: {name}", texts, lambda _, wrong=wrong: wrong, looks_up=False)
    texts = texts_after(functions(arguments.functions))
    for name, edit in EDITS.items():
        yield measure(f"functions, {name}", texts, edit)


def replace_word(written: str) -> str:
    """Replace the word nearest to the middle."""
    words = list(re.finditer(r"[A-Za-z]{3,}", written))
    if not words:
        return written
    word = min(words, key=lambda match: abs(match.start() - len(written) // 2))
    return f"{written[: word.start()]}something{written[word.end() :]}"


def rename(written: str) -> str:
    """Replace the most frequent name throughout."""
    names = [name for name in re.findall(r"\b[a-z_]{3,}\b", written) if name not in ("self", "def", "return", "for")]
    most = max(names, key=lambda name: (names.count(name), name), default="x")
    return re.sub(rf"\b{most}\b", "old_name", written)


def add_line(written: str) -> str:
    """Add a line in the middle."""
    lines = written.splitlines(keepends=True)
    lines.insert(len(lines) // 2, "    old_value = compute(old_value, 'gone')\n")
    return "".join(lines)


def remove_line(written: str) -> str:
    """Remove the line in the middle."""
    lines = written.splitlines(keepends=True)
    del lines[len(lines) // 2]
    return "".join(lines)


EDITS: dict[str, Callable[[str], str]] = {
    "one name replaced": rename,
    "with a line that the target does not write": add_line,
    "without a line that it writes": remove_line,
    "all three": lambda written: rename(add_line(remove_line(written))),
}


def functions(most: int) -> list[str]:
    """Return the first halves of functions of the standard library, for a Python model to continue."""
    prompts = []
    for name in MODULES:
        module = __import__(name)
        for _, function in inspect.getmembers(module, inspect.isfunction):
            source = textwrap.dedent(inspect.getsource(function))
            if function.__module__ == name and 400 < len(source) < 2_000:
                lines = source.splitlines(keepends=True)
                prompts.append("".join(lines[: len(lines) // 2]))
    step = max(len(prompts) // most, 1)
    return prompts[::step][:most]


if __name__ == "__main__":
    main()
