"""The cost of a pass over a block relative to a pass over one token, with the layers' own products and with fast ones.

    python benchmarks/block_cost.py [--size 0.03 0.1 0.5 1.5] [--width 1 2 4 8 16] [--dtype float32 bfloat16]
                                    [--threads 1 2] [--trials 5] [--output FILE]

Models of the Qwen2 family with random weights, `--size` billion parameters each. Trials of both arms are interleaved;
each is the median of a few passes (`uag.bench.time_passes`). Columns:

    one read     the time of a sum over all weights, a lower bound for any pass
    as is, fast  the median of the trials, and in parentheses relative to the one-token pass as is
    gain         as is / fast

To emulate a processor with fewer instructions, set ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
ATEN_CPU_CAPABILITY=avx2 before the command. `product_forms.py` times single products.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import product
from typing import Any

import common
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from uag.bench import time_passes
from uag.products import FastProducts

SHAPES = {
    0.03: (384, 1536, 6, 6, 49_152),
    0.1: (576, 1536, 24, 9, 49_152),
    0.5: (896, 4864, 24, 14, 151_936),
    1.5: (1536, 8960, 28, 12, 151_936),
}
"""Hidden size, inner size, layers, heads and vocabulary by size."""

COLUMNS = {
    "size": "{size}B",
    "type": "{dtype}",
    "threads": "{threads}",
    "one read": "{read_ms:.1f} ms",
    "width": "{width}",
    "as is": "{as_is_ms:.1f} ms ({as_is_ratio:.2f})",
    "fast": "{fast_ms:.1f} ms ({fast_ratio:.2f})",
    "gain": "{gain:.2f}",
}
CONTEXT = range(64)
"""Token ids that the model reads before the timed passes."""


def main() -> None:
    """Measure every size, type and number of threads."""
    parser = common.make_parser(__doc__, trials=5)
    parser.add_argument("--size", type=float, nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--width", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 8, 12, 16])
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    arguments = common.parse(parser)
    arguments.width = sorted({1, *arguments.width})
    common.show(arguments, "passes over blocks", COLUMNS, _measure(arguments))


@torch.inference_mode()
def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    for size, dtype in product(arguments.size, arguments.dtype):
        model = random_model(size, getattr(torch, dtype))
        for threads in arguments.threads:
            torch.set_num_threads(threads)
            yield from (
                {"size": size, "dtype": dtype, "threads": threads} | row
                for row in _by_width(model, arguments.width, arguments.trials)
            )


def random_model(size: float, dtype: torch.dtype, seed: int = 0) -> Any:
    """Return a Qwen2 with about `size` billion parameters and random weights."""
    hidden, inner, num_layers, num_heads, vocab_size = SHAPES[size]
    torch.manual_seed(seed)
    config = Qwen2Config(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=max(1, num_heads // 6),
        vocab_size=vocab_size,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen2ForCausalLM(config).to(dtype).eval()


def _by_width(model: Any, widths: list[int], num_trials: int) -> Iterator[common.Row]:
    arms: dict[str, Any] = {"as_is": nullcontext, "fast": FastProducts(model).in_place}
    trials: dict[str, list[dict[int, float]]] = {name: [] for name in arms}
    for _, (name, arm) in product(range(num_trials), arms.items()):
        with arm():
            trials[name].append(time_passes(model, CONTEXT, widths))
    read_ms = min(_read_s(model) for _ in range(num_trials)) * 1e3
    medians = {
        (name, width): statistics.median(trial[width] for trial in trials[name]) * 1e3
        for name, width in product(arms, widths)
    }
    for width in widths:
        row = {"width": width, "read_ms": read_ms, "gain": medians["as_is", width] / medians["fast", width]}
        for name in arms:
            row |= {f"{name}_ms": medians[name, width], f"{name}_ratio": medians[name, width] / medians["as_is", 1]}
        yield row


def _read_s(model: Any) -> float:
    start_s = time.perf_counter()
    for parameter in model.parameters():
        parameter.view(torch.float32).sum()
    return time.perf_counter() - start_s


if __name__ == "__main__":
    main()
