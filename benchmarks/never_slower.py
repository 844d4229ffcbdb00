"""Never slower: pairs and prompts on which a careless assistant loses time.

    python benchmarks/never_slower.py [--tokens 256] [--trials 5] [--prompts 4]

Arms alternate in one process after a check that all outputs are equal; printed are medians of plain time over uag's
time, wall clock, each prompt by itself. Cases: a draft of random weights, a draft as large as the target, prompts of
random bytes; and, where UAG_SHARED (default ../shared) has it, a trained pair that agrees little.
"""

import argparse
import copy
import os
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers.utils import logging

import uag
from uag.bench import heldout_prompts, spread
from uag.loading import Pair, encode, load_pair


def main() -> None:
    """Measure every case and print one row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=4)
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    table = Table("case", "uag, no prompt lookup", "uag", "no draft", title="speed against plain generate")
    for name, pair, texts in _cases(arguments.prompts):
        ratios = _compare(pair, texts, arguments.tokens, arguments.trials)
        table.add_row(name, *(f"{statistics.median(ratio):.2f} (worst {min(ratio):.2f})" for ratio in ratios))
    console = Console()
    console.print(table)
    console.print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, CPU, float32", highlight=False)


def _cases(num_prompts: int) -> Iterator[tuple[str, Pair, list[str]]]:
    pair = load_pair()
    texts = [prompt.text for prompt in spread(heldout_prompts(), num_prompts)]
    noise = random.Random(0)
    garbage = ["".join(chr(noise.randrange(33, 1_000)) for _ in range(60)) for _ in range(num_prompts)]
    yield "demo pair, useless prompts", pair, garbage
    draft = type(pair.draft)(pair.draft.config).eval()
    yield "draft of random weights", replace(pair, draft=draft), texts
    large = replace(pair, draft=copy.deepcopy(pair.target), draft_tokenizer=pair.target_tokenizer)
    yield "draft as large as the target", large, texts
    folder = Path(os.environ.get("UAG_SHARED", "../shared")) / "models"
    if folder.is_dir():
        loaded = load_pair(str((folder / "py-target").resolve()), str((folder / "py-draft").resolve()))
        yield "py-target <- py-draft", loaded, texts


def _compare(pair: Pair, texts: list[str], num_tokens: int, num_trials: int) -> list[list[float]]:
    drafts = (pair.draft, pair.draft_tokenizer, pair.target_tokenizer)
    arms: list[Any] = [
        uag.Assistant(*drafts, prompt_lookup=False),
        uag.Assistant(*drafts),
        uag.Assistant(None, None, pair.target_tokenizer),
    ]
    options = {"max_new_tokens": num_tokens, "min_new_tokens": num_tokens, "do_sample": False}
    ratios: list[list[float]] = [[] for _ in arms]
    for text in texts:
        inputs = encode(pair, [text])
        expected = pair.target.generate(**inputs, **options)
        for arm in arms:
            if not torch.equal(arm.generate(pair.target, **inputs, **options), expected):
                raise SystemExit("outputs differ: run `uag bench` to see where")
        seconds: list[list[float]] = [[] for _ in range(len(arms) + 1)]
        for _ in range(num_trials):
            seconds[0].append(_timed(partial(pair.target.generate, **inputs, **options)))
            for index, arm in enumerate(arms):
                run = partial(arm.generate, pair.target, **inputs, **options)
                seconds[index + 1].append(_timed(run))
        for index in range(len(arms)):
            ratios[index].append(statistics.median(seconds[0]) / statistics.median(seconds[index + 1]))
    return ratios


def _timed(run: Any) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
