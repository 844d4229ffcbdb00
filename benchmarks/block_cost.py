"""Cost of a pass over a block relative to a pass over one token, with PyTorch's own products and with fast ones.

    python benchmarks/block_cost.py [--size 0.03 0.1 0.5 1.5] [--width 1 2 4 8 16] [--dtype float32 bfloat16]
                                    [--threads 1 2] [--batch 1] [--context 100] [--trials 5] [--output FILE]

Models of the Qwen2 family with random weights, `--size` billion parameters each. Passes of all widths take turns, each
as transformers runs it and with fast products, after `--context` tokens. Columns:

    one read     time of reading every weight once (a sum over them): a lower bound of any pass
    as is, fast  the median pass, and in brackets its ratio to the one-token pass as it is
    difference   the largest difference of a logit between the block and the same tokens one by one, with fast products

To try a processor with fewer instructions, set ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
ATEN_CPU_CAPABILITY=avx2.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from typing import Any

import common
import torch
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

from uag.hf.cache import caches
from uag.products import FastProducts, clock

SHAPES = {
    0.03: (384, 1536, 6, 6, 49_152),
    0.1: (576, 1536, 24, 9, 49_152),
    0.5: (896, 4864, 24, 14, 151_936),
    1.5: (1536, 8960, 28, 12, 151_936),
}
"""Hidden size, inner size, layers, heads and vocabulary, by billions of parameters."""

COLUMNS = {
    "size": "{size}B",
    "type": "{dtype}",
    "threads": "{threads}",
    "batch": "{batch_size}",
    "one read": "{read_ms:.1f} ms",
    "width": "{width}",
    "as is": "{as_is_ms:.1f} ms ({as_is_ratio:.2f})",
    "fast": "{fast_ms:.1f} ms ({fast_ratio:.2f})",
    "gain": "{gain:.2f}",
    "difference": "{difference:.1e}",
}


def main() -> None:
    """Measure every size, type and number of threads."""
    parser = common.make_parser(__doc__, batch=1, context=100, trials=5)
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
            settings = {"size": size, "dtype": dtype, "threads": threads, "batch_size": arguments.batch}
            yield from (settings | row for row in _by_width(model, arguments))


def random_model(size: float, dtype: torch.dtype, seed: int = 0) -> Any:
    """Return a Qwen2 of about `size` billion parameters with random weights."""
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


def _by_width(model: Any, arguments: argparse.Namespace) -> Iterator[common.Row]:
    ids = torch.arange(arguments.batch * (arguments.context + max(arguments.width))) * 977 % model.config.vocab_size
    ids = ids.view(arguments.batch, -1)
    cache = DynamicCache(config=model.config)
    model(ids[:, : arguments.context], past_key_values=cache)
    products = FastProducts(model)
    arms: dict[str, Any] = {"as_is": nullcontext, "fast": products.in_place}
    differences = _differences(model, ids, cache, arguments.width, products)
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(arguments.trials):
        for width, (name, arm) in product(arguments.width, arms.items()):
            seconds.setdefault((name, width), []).append(_run(model, ids, cache, width, arm())[0])
    medians = {key: statistics.median(times) * 1e3 for key, times in seconds.items()}
    read_ms = _read_s(model, arguments.trials) * 1e3
    for width in arguments.width:
        row = {"width": width, "read_ms": read_ms, "gain": medians["as_is", width] / medians["fast", width]}
        for name in arms:
            row |= {f"{name}_ms": medians[name, width], f"{name}_ratio": medians[name, width] / medians["as_is", 1]}
        yield row | {"difference": differences[width]}


def _run(
    model: Any, ids: torch.Tensor, cache: Any, width: int, arm: AbstractContextManager[None]
) -> tuple[float, torch.Tensor]:
    """Run one pass after the context and crop the cache; return its seconds and logits."""
    first = cache.get_seq_length()
    start_s = clock()
    with arm:
        logits = model(ids[:, first : first + width], past_key_values=cache).logits
    seconds = clock() - start_s
    caches.crop(cache, width)
    return seconds, logits


def _differences(
    model: Any, ids: torch.Tensor, cache: Any, widths: list[int], products: FastProducts
) -> dict[int, float]:
    """Return the largest difference of a logit between each block and the same tokens one by one."""
    first, singles = cache.get_seq_length(), []
    with products.in_place():
        for place in range(first, first + max(widths)):
            singles.append(model(ids[:, place : place + 1], past_key_values=cache).logits)
    caches.crop(cache, len(singles))
    one_by_one = torch.cat(singles, dim=1)
    blocks = {width: _run(model, ids, cache, width, products.in_place())[1] for width in widths}
    return {width: float((block - one_by_one[:, :width]).abs().max()) for width, block in blocks.items()}


def _read_s(model: Any, num_trials: int) -> float:
    parameters = [p.view(torch.float32) for p in model.parameters()]
    seconds = []
    for _ in range(num_trials):
        start_s = time.perf_counter()
        for parameter in parameters:
            parameter.sum()
        seconds.append(time.perf_counter() - start_s)
    return min(seconds)


if __name__ == "__main__":
    main()
