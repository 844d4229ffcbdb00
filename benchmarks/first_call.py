"""The first call of a process: nothing was measured or compiled before.

    python benchmarks/first_call.py TARGET [--draft DRAFT] [--tokens 48] [--trials 4] [--threads 2] [--dtype float32]
                                    [--output FILE]

Every call runs in a process of its own, the arms in turns, greedy. Loading is not timed. All outputs must be equal; in
half precision, those of uag.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import common
import torch

import uag
from uag.loading import load_draft, load_model, load_tokenizer

PROMPT = "def fibonacci(n):"
ARMS = ("plain", "uag without a draft", "uag")
COLUMNS = {"arm": "{arm}", "seconds": "{seconds:.2f}", "speed": "{speed:.2f}"}


def main() -> None:
    """Run every arm in new processes, and print the medians."""
    parser = common.make_parser(__doc__, tokens=48, trials=4, threads=2)
    parser.add_argument("target")
    parser.add_argument("--draft", help="a folder, a hub name or a GGUF file")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--arm", choices=ARMS, help="run one call in this process")
    arguments = common.parse(parser)
    torch.set_num_threads(arguments.threads)
    if arguments.arm is not None:
        print(json.dumps(_call(arguments)))
    else:
        common.show(arguments, "the first call of a process", COLUMNS, _measure(arguments))


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    arms = ARMS if arguments.draft else ARMS[:2]
    runs: dict[str, list[float]] = {arm: [] for arm in arms}
    outputs: dict[str, list[int]] = {}
    for arm in arms * arguments.trials:
        command = [sys.executable, __file__, *sys.argv[1:], "--arm", arm]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        seconds, ids = json.loads(output.splitlines()[-1])
        runs[arm].append(seconds)
        reference = "plain" if arguments.dtype == "float32" or arm == "plain" else "uag"
        if ids != outputs.setdefault(reference, ids):
            raise SystemExit(f"{arm}: the output differs from that of {reference}.")
    for arm in arms:
        seconds = statistics.median(runs[arm])
        speed = statistics.median(runs["plain"]) / seconds
        yield {"arm": arm, "seconds": seconds, "speed": speed, "dtype": arguments.dtype}


def _call(arguments: argparse.Namespace) -> tuple[float, list[int]]:
    model, tokenizer = load_model(arguments.target, dtype=arguments.dtype), load_tokenizer(arguments.target)
    options = dict(tokenizer(PROMPT, return_tensors="pt")) | {"max_new_tokens": arguments.tokens}
    if arguments.arm == "uag":
        draft = load_draft(arguments.draft)
        draft_tokenizer = None if arguments.draft.endswith(".gguf") else load_tokenizer(arguments.draft)
        options["custom_generate"] = uag.Assistant(draft, draft_tokenizer, tokenizer)
    elif arguments.arm != "plain":
        options["custom_generate"] = uag.Assistant.from_prompt_lookup(tokenizer)
    start_time = time.perf_counter()
    sequences = model.generate(**options, do_sample=False, pad_token_id=0)
    return time.perf_counter() - start_time, sequences[0].tolist()


if __name__ == "__main__":
    main()
