"""What one `propose` call costs as the number of running requests grows; no engine needed.

    OMP_NUM_THREADS=1 python benchmarks/vllm_propose.py [--requests 1 2 4 8 16 32 64] [--rounds 6] [--candidates 5]

The demo pair on vLLM's buffers: held-out prompts of one length, rounds in which each request gets one token (the first
candidate where the draft has one) and so goes on. The first round, which reads the prompts, is shown apart. Processor
time of this process, not time on the clock: other work on the machine does not count.
"""

import argparse
import statistics
import time
from types import SimpleNamespace

import numpy as np
from rich.console import Console
from rich.table import Table

from uag.bench import heldout_prompts
from uag.loading import demo_folder, load_tokenizer
from uag.vllm.proposer import Proposer

MAX_LENGTH = 1024


def main() -> None:
    """Measure each number of requests and print a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--candidates", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    arguments = parser.parse_args()

    tokenizer = load_tokenizer(demo_folder("target"))
    text = "\n".join(prompt.text for prompt in heldout_prompts())
    ids = tokenizer(text, truncation=False)["input_ids"]
    table = Table(title="processor time of a propose call", title_justify="left")
    for heading in ("requests", "first round, ms", "a round, ms", "per request, ms", "drafted per request"):
        table.add_column(heading, justify="right")
    for num in arguments.requests:
        first, later, drafted = measure(ids, num, arguments)
        table.add_row(
            str(num), f"{1e3 * first:.1f}", f"{1e3 * later:.1f}", f"{1e3 * later / num:.2f}", f"{drafted:.2f}"
        )
    Console(width=100).print(table)


def measure(ids: list[int], num: int, arguments: argparse.Namespace) -> tuple[float, float, float]:
    """Return the seconds of the first round, the median of the later ones, and the candidates per request."""
    proposer = Proposer(_config(arguments.candidates))
    proposer.load_model(None)
    length = arguments.prompt_tokens
    buffer = np.zeros((num, MAX_LENGTH), dtype=np.int32)
    for row in range(num):
        start = 97 * row % (len(ids) - length)
        buffer[row, :length] = ids[start : start + length]
    sizes = np.full(num, length, dtype=np.int32)
    seconds, drafted = [], []
    for _ in range(arguments.rounds + 1):
        began = time.process_time()
        proposed = proposer.propose([[1]] * num, sizes, buffer)
        seconds.append(time.process_time() - began)
        drafted.append(sum(map(len, proposed)) / num)
        for row, candidates in enumerate(proposed):
            buffer[row, sizes[row]] = candidates[0] if candidates else ids[0]
            sizes[row] += 1
    if proposer.stats.failures:
        raise SystemExit(f"drafting failed: {proposer.stats.failures}")
    return seconds[0], statistics.median(seconds[1:]), statistics.mean(drafted[1:])


def _config(num_candidates: int) -> SimpleNamespace:
    """Return what the proposer reads of vLLM's configuration."""
    return SimpleNamespace(
        additional_config={"uag": {"draft": demo_folder("draft"), "min_confidence": 0.0, "log_interval_s": 0}},
        speculative_config=SimpleNamespace(num_speculative_tokens=num_candidates),
        model_config=SimpleNamespace(
            max_model_len=MAX_LENGTH, get_vocab_size=lambda: 1536, tokenizer=demo_folder("target"),
            tokenizer_revision=None, trust_remote_code=False,
        ),
        parallel_config=SimpleNamespace(rank=0, tensor_parallel_size=1, distributed_executor_backend=None),
    )  # fmt: skip


if __name__ == "__main__":
    main()
