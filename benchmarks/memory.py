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
from typing import Any

import common
import numpy as np
import torch

import uag
from uag.drafting import OptionalSources, PromptLookup
from uag.hf import models
from uag.loading import load_pair
from uag.lookahead import Lookahead, Round
from uag.measure import BatchWriter, Replay, Text

COLUMNS = {
    "case": "{case}",
    "tokens per pass": "{memory_tokens_per_pass:.2f}",
    "prompt lookup alone": "{lookup_tokens_per_pass:.2f}",
    "speed": "{memory_speed:.2f}",
    "prompt lookup's": "{lookup_speed:.2f}",
    "look-up": "{look_up_us:.1f} us",
    "memory": "{bytes_per_token:.0f} bytes a token",
}
NAMES = ("", "value", "result", "data", "item")
SIZE, PASS_S, CANDIDATE_S = 1_000_000, 10e-3, 0.1e-3


def main() -> None:
    """Measure every case and print one row for each."""
    arguments = common.parse(common.make_parser(__doc__, tasks=20, tokens=80))
    torch.set_num_threads(1)  # for a model this small, synchronizing threads costs more than it saves
    common.show(arguments, "a memory of earlier calls, demo target", COLUMNS, _measure(arguments))


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    pair = load_pair(dtype="float32", device="cpu")
    writer, prompts = BatchWriter(pair.target, arguments.tokens), common.python_texts(arguments.tasks)
    few = prompts[:: max(len(prompts) // 4, 1)][:4]

    def encode(text: str) -> tuple[int, ...]:
        return tuple(pair.target_tokenizer(text, add_special_tokens=False)["input_ids"])

    tasks = writer.write([Text("task", encode(prompt)) for prompt in prompts])
    edits = [writer.write([Text(name, encode(_renamed(prompt, name))) for name in NAMES]) for prompt in few]
    samples = [writer.write([Text("sample", encode(prompt), 1.0, seed) for seed in range(8)]) for prompt in few]
    turns, spoken = [], [encode(prompt) for prompt in few]
    for turn in range(5):
        turns.append(writer.write([Text("turn", ids) for ids in spoken]))
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
        arms = _replay(pair.target, "memory", memory, groups), _replay(pair.target, "lookup", None, groups)
        for case, figures, of_lookup in zip((name, f"{name} again"), *arms, strict=False):
            yield {"case": case, "dtype": "float32"} | figures | of_lookup
    yield row | {"dtype": "float32"}


def _renamed(text: str, name: str) -> str:
    """Replace the most frequent name; an empty one replaces nothing."""
    names = re.findall(r"\b[a-z_]{4,}\b", text)
    return re.sub(rf"\b{max(names, key=names.count)}\b", name, text) if name and names else text


def _replay(target: Any, arm: str, memory: uag.Memory | None, groups: Sequence[Sequence[Text]]) -> list[common.Row]:
    """Replay groups of calls with one assistant's sources, and return the figures of each group."""
    lookup, lookahead, vocab_size = PromptLookup(), Lookahead(), models.head_size(target)
    sources, rows = OptionalSources(looks_up=True, memory=memory), []
    for texts in groups:
        num_tokens, num_passes, seconds = 0, 0, 0.0
        for text in texts:
            replay = Replay(sources.drafter(lookup, None, target, 1, None) or lookup, vocab_size)
            lookahead.begin(1, "sample" if text.temperature else "greedy")
            num_tokens, num_passes, seconds = num_tokens + 1, num_passes + 1, seconds + PASS_S  # of the prompt's pass
            for drafted in replay.rounds([text], lookahead, lambda left: left - 1 if left else None, start=1):
                width = len(drafted.lines[0])
                pass_s = PASS_S + CANDIDATE_S * width
                lookahead.learn_round(Round(width, drafted.draft_s, pass_s, []))
                num_tokens += 1 + (drafted.num_accepted[0] or 0)
                num_passes, seconds = num_passes + 1, seconds + pass_s + drafted.draft_s
            if memory is not None:
                memory.add(text.prompt_ids, text.output_ids)
        speed = num_tokens * PASS_S / seconds
        rows.append({f"{arm}_tokens_per_pass": num_tokens / num_passes, f"{arm}_speed": speed})
    return rows


def _look_up() -> tuple[uag.Memory, common.Row]:
    """Return a full memory of random tokens, and the median time of a look-up of texts of which it has half."""
    draw = np.random.default_rng(0)
    texts = draw.zipf(1.2, (2 * SIZE // 800, 800)) % 1500
    tracemalloc.start()
    memory = uag.Memory(SIZE)
    num_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    for text in texts[::2].tolist():
        memory.add([], text)
    times = []
    for text in texts[-1000:].tolist():
        place = int(draw.integers(100, 700))
        start_s = time.perf_counter()
        memory.look_up(text[place - 16 : place], 64, 4)
        times.append(time.perf_counter() - start_s)
    row = {"case": f"{len(memory):,} tokens", "look_up_us": 1e6 * float(np.median(times))}
    return memory, row | {"bytes_per_token": num_bytes / SIZE}


if __name__ == "__main__":
    main()
