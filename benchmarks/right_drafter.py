"""The upper bound for drafting on a machine: a free drafter that is always right, compared with plain decoding.

    python benchmarks/right_drafter.py [--size 0.5] [--candidates 3] [--batch 1 8] [--threads 1 2] [--tokens 48]
                                       [--prompt-tokens 64] [--trials 5] [--temperature 0] [--output FILE]

The remaining cost is that of verifying candidates. The target is a float32 Qwen2 with random weights (`block_cost.py`).
Arms are interleaved; each must generate the ids of plain `generate`:

    uag, nothing drafted    plain decoding with fast products
    uag, always right       `--candidates` candidates per round, all accepted
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import common
import torch
from block_cost import SHAPES, random_model

import uag
from uag.bench.passes import timed
from uag.drafting import Ask, Drafter
from uag.proposal import Proposal

COLUMNS = {
    "arm": "{arm}",
    "size": "{size}B",
    "T": "{temperature:g}",
    "threads": "{threads}",
    "batch": "{batch_size}",
    "call": "{seconds:.2f} s",
    "passes": "{num_passes}",
    "relative to plain": "{speed:.2f}",
    "ratio of passes": "{ideal:.2f}",
}


class RightDrafter(Drafter):
    """Proposes the next tokens of `sequences` [batch_size, length], prompts included."""

    strategy = "always right"

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self._sequences = sequences
        self._positions: list[int] = []

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Any = None) -> None:  # noqa: ARG002
        """Start after the prompts."""
        self._positions = [len(prompt) for prompt in prompts]

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        """Return the next tokens of each row."""
        rows = zip(self._sequences, self._positions, ask.limits, strict=True)
        return [[Proposal(token_id, 1.0) for token_id in ids[start:][:limit]] for ids, start, limit in rows]

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:  # noqa: ARG002
        """Advance by the output."""
        self._positions[row] += len(output_ids)

    def release(self) -> None:
        """Do nothing."""


def main() -> None:
    """Measure every size, batch size and number of threads."""
    parser = common.make_parser(__doc__, tokens=48, prompt_tokens=64, trials=5, candidates=3)
    parser.add_argument("--size", type=float, nargs="+", default=[0.5], choices=list(SHAPES))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--temperature", type=float, default=0.0)
    arguments = common.parse(parser)
    common.show(arguments, "a drafter that is always right", COLUMNS, _measure(arguments))


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    for size in arguments.size:
        model = random_model(size, torch.float32)
        for threads, batch_size in product(arguments.threads, arguments.batch):
            torch.set_num_threads(threads)
            yield from _by_arm(model, size, batch_size, arguments)


def _by_arm(model: Any, size: float, batch_size: int, arguments: argparse.Namespace) -> Iterator[common.Row]:
    ids = torch.arange(batch_size * arguments.prompt_tokens).view(batch_size, -1) * 977 % model.config.vocab_size
    options = {"max_new_tokens": arguments.tokens, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
    options |= {"do_sample": arguments.temperature > 0, "temperature": arguments.temperature or None, "top_k": 0}
    torch.manual_seed(0)
    written = model.generate(ids, **options)
    nothing = uag.Assistant(None)
    right = uag.Assistant(None, drafter=RightDrafter(written.tolist()), num_candidate_tokens=arguments.candidates)
    arms = {
        "plain": lambda ids, **options: model.generate(ids, **options),
        "uag, nothing drafted": lambda ids, **options: nothing.generate(model, ids, **options),
        "uag, always right": lambda ids, **options: right.generate(model, ids, **options),
    }
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(arguments.trials + 1):
        for name, generate in arms.items():
            torch.manual_seed(0)
            output, call_s = timed(model.device, generate, ids=ids, **options)
            seconds[name].append(call_s)
            if not output.equal(written):
                raise SystemExit(f"{name} generated other ids than plain generate: see tests/support/rounding.py")
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    for name, call_s in medians.items():
        num_passes = right.stats.num_target_forwards if name == "uag, always right" else arguments.tokens
        row = {"arm": name, "size": size, "threads": torch.get_num_threads(), "batch_size": batch_size}
        row |= {"seconds": call_s, "speed": medians["plain"] / call_s, "num_passes": num_passes}
        yield row | {
            "ideal": arguments.tokens / num_passes,
            "temperature": arguments.temperature,
            "dtype": "float32",
        }


if __name__ == "__main__":
    main()
