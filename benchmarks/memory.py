"""A memory of earlier calls, compared with prompt lookup alone and with plain decoding.

    python benchmarks/memory.py [--tasks 20] [--tokens 80] [--output FILE]

The demo target generates the texts; then calls are replayed on them without it. A pass takes 10 ms, each candidate in
it 0.1 ms more, and the sources take their real time. Speeds are relative to plain decoding. Cases, each with a new
memory unless it is "again":

- tasks, greedy; and again;
- chats: each of five turns has the conversation so far as its prompt, and repeats an earlier question every other time;
- edits: the target continues the beginning of a file five times, each time after another name was replaced;
- samples: eight of one prompt at temperature 1, in one call each;
- strangers: the tasks, with a memory of a million random tokens.

The last row is a look-up in that memory.
"""

import argparse
import re
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from functools import partial

import common
import numpy as np
import torch
from calls import COLUMNS, Calls, compared
from replay import Text, write

import uag
from uag.loading import load_pair

NAMES = ("", "value", "result", "data", "item")
SIZE = 1_000_000


def main() -> None:
    """Measure every case and print one row for each."""
    arguments = common.parse(common.make_parser(__doc__, tasks=20, tokens=80))
    torch.set_num_threads(1)  # for a model this small, synchronizing threads costs more than it saves
    columns = COLUMNS | {"look-up": "{look_up_us:.1f} us", "memory": "{bytes_per_token:.0f} bytes a token"}
    common.show(arguments, "a memory of earlier calls, demo target", columns, _measure(arguments))


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    pair = load_pair(dtype="float32", device="cpu")
    written = partial(write, pair.target, max_new_tokens=arguments.tokens)
    prompts = common.python_texts(arguments.tasks)
    few = prompts[:: max(len(prompts) // 4, 1)][:4]

    def encode(text: str) -> tuple[int, ...]:
        return tuple(pair.target_tokenizer(text, add_special_tokens=False)["input_ids"])

    tasks = written([Text("task", encode(prompt)) for prompt in prompts])
    edits = [written([Text(name, encode(_renamed(prompt, name))) for name in NAMES]) for prompt in few]
    samples = [written([Text("sample", encode(prompt), 1.0, seed) for seed in range(8)]) for prompt in few]
    turns, spoken = [], [encode(prompt) for prompt in few]
    for turn in range(5):
        turns.append(written([Text("turn", ids) for ids in spoken]))
        more = [encode("\n\n\n" + prompts[(number + turn) % 2]) for number in range(len(few))]
        spoken = [text.prompt_ids + text.output_ids + ids for text, ids in zip(turns[-1], more, strict=True)]
    full, row = _look_up()
    cases: dict[str, tuple[uag.Memory, Sequence[Sequence[Text]]]] = {
        "tasks": (uag.Memory(), [tasks, tasks]),
        "chats": (uag.Memory(), [[text for chat in zip(*turns, strict=True) for text in chat]]),
        "edits": (uag.Memory(), [[text for one in edits for text in one]]),
        "samples": (uag.Memory(), [[text for one in samples for text in one]]),
        "strangers": (full, [tasks]),
    }
    for name, (memory, groups) in cases.items():
        ours, lookup = Calls(pair, memory=memory), Calls(pair)
        for case, texts in zip((name, f"{name} again"), groups, strict=False):
            yield compared(case, ours.replay(texts), lookup.replay(texts))
    yield row | {"dtype": "float32"}


def _renamed(text: str, name: str) -> str:
    """Replace the most frequent name; an empty one replaces nothing."""
    names = re.findall(r"\b[a-z_]{4,}\b", text)
    return re.sub(rf"\b{max(names, key=names.count)}\b", name, text) if name and names else text


def _look_up() -> tuple[uag.Memory, common.Row]:
    """Return a full memory of random tokens, and the median time of a look-up of texts of which it has half."""
    draw = np.random.default_rng(0)
    texts = draw.zipf(1.2, (2 * SIZE // 800, 800)) % 1500
    tracemalloc.start()
    memory = uag.Memory(SIZE)
    for text in texts[::2].tolist():
        memory.add([], text)
        memory.look_up(text, 1)
    num_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    times = []
    for text in texts[-1000:].tolist():
        place = int(draw.integers(100, 700))
        start_s = time.perf_counter()
        memory.look_up(text[place - 64 : place], 64)
        times.append(time.perf_counter() - start_s)
    row = {"case": f"{len(memory):,} tokens", "look_up_us": 1e6 * float(np.median(times))}
    return memory, row | {"bytes_per_token": num_bytes / len(memory)}


if __name__ == "__main__":
    main()
