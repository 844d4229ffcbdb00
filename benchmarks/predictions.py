"""Predictions (text that the user expects), compared with prompt lookup alone and with plain decoding.

    python benchmarks/predictions.py [--tokens 80] [--prompts 6] [--functions 20] [--trials 5] [--output FILE]

Predictions are edited copies of the demo target's own output, and the output is compared in every run. Cases:

- unedited, one word in the middle replaced, wrong throughout (prose; unrelated Python) without prompt lookup;
- functions of the standard library as prompts, with an edited prediction: a name replaced throughout, a line removed, a
  line added, all three;
- a prediction of 1 kB and of 1 MB: the time of a round that searches it after the output has diverged.

Output tokens per target pass are counts; speeds are wall-clock times relative to plain decoding, with interleaved arms.
The first call of an arm, in which costs are measured, is not timed; with --trials 0 only counts are reported.
"""

import argparse
import inspect
import re
import statistics
import textwrap
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import common
import torch

import uag
from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.drafting.texts.follower import Follower
from uag.drafting.texts.known_text import KnownText
from uag.loading import Pair, encode, load_pair

COLUMNS = {
    "case": "{case}",
    "tokens per pass": "{tokens_per_pass:.2f} (worst {worst_tokens_per_pass:.2f})",
    "speed": "{speed:.2f} (worst {worst_speed:.2f})",
    "lookup alone": "{lookup_tokens_per_pass:.2f}",
    "its speed": "{lookup_speed:.2f}",
    "search per round": "{search_us:.1f} us",
}
WRONG = {
    "prose": "The quick brown fox jumps over the lazy dog, and nobody knows why it would want to do that. " * 6,
    "Python": "def main():\n    parser = Parser()\n    for line in parser.lines():\n        print(line, end='')\n" * 4,
}
MODULES = ("textwrap", "shlex", "fnmatch", "statistics", "heapq", "bisect", "calendar", "colorsys", "difflib", "string")


def main() -> None:
    """Measure every case and print one row for each."""
    arguments = common.parse(common.make_parser(__doc__, tokens=80, prompts=6, functions=20, trials=5))
    torch.set_num_threads(1)  # for a model this small, synchronizing threads costs more than it saves
    common.show(arguments, "predictions on the demo target, greedy", COLUMNS, _measure(arguments))


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    pair = load_pair()
    measure = partial(_case, pair, arguments)
    texts = common.python_texts(arguments.prompts)
    yield measure("correct throughout", texts, lambda written, _: written)
    yield measure("one word replaced", texts, lambda written, _: one_word(written))
    for name, wrong in WRONG.items():
        yield measure(f"wrong throughout: {name}", texts, lambda *_, wrong=wrong: wrong, looks_up=False)
    prompts = functions(arguments.functions)
    for name, edit in EDITS.items():
        yield measure(name, prompts, edit)
    adapter = from_tokenizer(pair.target_tokenizer)
    for name, size in (("1 kB", 1_000), ("1 MB", 1_000_000)):
        yield {
            "case": f"a prediction of {name}",
            "search_us": search_us(size, adapter),
            "dtype": str(pair.target.dtype),
        }


def _case(
    pair: Pair,
    arguments: argparse.Namespace,
    case: str,
    prompts: list[str],
    edit: Callable[[str, int], str],
    *,
    looks_up: bool = True,
) -> common.Row:
    """Measure one kind of prediction over some prompts, with or without prompt lookup."""
    tokenizer, options = pair.target_tokenizer, {"max_new_tokens": arguments.tokens, "do_sample": False}
    ours = uag.Assistant(None, None, tokenizer, prompt_lookup=looks_up)
    lookup = uag.Assistant.from_prompt_lookup(tokenizer)
    per_pass: dict[str, list[float]] = {"ours": [], "lookup": []}
    speeds: dict[str, list[float]] = {"ours": [], "lookup": []}
    for number, prompt in enumerate(prompts):
        inputs = encode(pair, [prompt])
        plain = pair.target.generate(**inputs, **options)
        written = tokenizer.decode(plain[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        arms: dict[str, Callable[..., Any]] = {
            "plain": pair.target.generate,
            "ours": partial(ours.generate, pair.target, prediction=edit(written, number)),
            "lookup": partial(lookup.generate, pair.target),
        }
        seconds: dict[str, list[float]] = {name: [] for name in arms}
        for trial in range(arguments.trials + 1):
            for name, generate in list(arms.items())[0 if trial else 1 :]:
                start_s = time.perf_counter()
                output = generate(**inputs, **options)
                if trial:
                    seconds[name].append(time.perf_counter() - start_s)
                if output.tolist() != plain.tolist():
                    raise SystemExit(f"{case}: {name} differs from plain decoding on prompt {number}")
        for name, assistant in (("ours", ours), ("lookup", lookup)):
            stats = assistant.stats
            per_pass[name].append(stats.num_output_tokens / stats.num_target_forwards)
            if arguments.trials:
                speeds[name].append(statistics.median(seconds["plain"]) / statistics.median(seconds[name]))
    row: common.Row = {
        "case": case,
        "tokens_per_pass": statistics.mean(per_pass["ours"]),
        "worst_tokens_per_pass": min(per_pass["ours"]),
        "lookup_tokens_per_pass": statistics.mean(per_pass["lookup"]),
        "dtype": str(pair.target.dtype),
    }
    if arguments.trials:
        row |= {"speed": statistics.median(speeds["ours"]), "worst_speed": min(speeds["ours"])}
        row |= {"lookup_speed": statistics.median(speeds["lookup"])}
    return row


def one_word(written: str) -> str:
    """Replace the word nearest to the middle."""
    words = list(re.finditer(r"[A-Za-z]{3,}", written))
    if not words:
        return written
    word = min(words, key=lambda found: abs(found.start() - len(written) // 2))
    return f"{written[: word.start()]}something{written[word.end() :]}"


def rename(written: str, _: int) -> str:
    """Replace the most frequent name throughout."""
    names = [name for name in re.findall(r"\b[a-z_]{3,}\b", written) if name not in ("self", "def", "return", "for")]
    most = max(names, key=lambda name: (names.count(name), name), default="x")
    return re.sub(rf"\b{most}\b", "old_name", written)


def leave_out(written: str, number: int) -> str:
    """Add a line that the target does not generate."""
    lines = written.splitlines(keepends=True)
    lines.insert(len(lines) // 2, f"    old_{number} = compute(old_{number}, 'gone')\n")
    return "".join(lines)


def put_in(written: str, _: int) -> str:
    """Remove a line that the target generates."""
    lines = written.splitlines(keepends=True)
    del lines[len(lines) // 2]
    return "".join(lines)


EDITS: dict[str, Callable[[str, int], str]] = {
    "functions, a name changed": rename,
    "functions, a line deleted": leave_out,
    "functions, a line inserted": put_in,
    "functions, all three": lambda written, number: rename(leave_out(put_in(written, number), number), number),
}
"""Edits, named by what turns the prediction into the target's text; each function applies the inverse to that text."""


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


def search_us(size: int, adapter: TokenizerAdapter) -> float:
    """Return the microseconds of a round after the output has diverged from a text of `size` bytes."""
    unit = WRONG["Python"] + WRONG["prose"]
    follower = Follower(KnownText((unit * (size // len(unit) + 1))[:size], adapter))
    follower.write(adapter.encode_continuation(b"nothing that it has: 0123456789"))
    times = []
    for number in range(200):
        ids = adapter.encode_continuation(f" x{number} in lines".encode())  # its ending occurs often in the text
        start_s = time.perf_counter()
        follower.write(ids)
        follower.guesses()
        times.append(time.perf_counter() - start_s)
    return 1e6 * statistics.median(times)


if __name__ == "__main__":
    main()
