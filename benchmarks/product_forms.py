"""Time every form of a matrix product by shape and number of rows, and compare with the form that uag's rule picks.

    python benchmarks/product_forms.py [--shape 8960x1536 1536x8960 ...] [--rows 1 2 3 4 ...] [--threads 1 2]
                                       [--trials 10] [--output FILE]

A shape is outputs x inputs of a float32 layer; the defaults are the layers of Qwen2 0.5B and 1.5B and two small ones.
Forms are interleaved on copies of the weights that together exceed the cache, so that each product reads its weights
from memory, as in a model's pass. Columns:

    one read       ms of a sum over the weights, a lower bound for any product
    by form        ms of each form, the minimum of the trials
    rule           the form that uag picks (docs/products.md)
    rule / as is   gain of the rule over the layer's own product
    rule / best    speed of the rule relative to the fastest form: 1.00 means that the rule picks the best

To emulate a processor with fewer instructions, set ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
ATEN_CPU_CAPABILITY=avx2 before the command.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from itertools import product

import common
import torch
from torch.nn import functional

from uag.products import forms, kernel

SHAPES = ("896x896", "4864x896", "896x4864", "151936x896", "8960x1536", "1536x8960", "512x512", "1024x1024")
ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64)

NUM_ENTRIES = 1 << 26
"""Total entries of all copies of a weight matrix. Increase for caches beyond 100 MB; decrease to save memory."""

FORMS: dict[str, forms.Form] = {
    "as is": functional.linear,
    "blocks": forms.blocks,
    "oneDNN, weight first": forms.onednn_weight_first,
    **({"kernel": kernel.linear} if kernel.LEVEL else {}),
}
COLUMNS = {
    "shape": "{shape}",
    "threads": "{threads}",
    "rows": "{num_rows}",
    "one read": "{read_ms:.3f}",
    **{name: f"{{{name}:.3f}}" for name in FORMS},
    "rule": "{rule}",
    "rule / as is": "{gain:.2f}",
    "rule / best": "{share:.2f}",
}


def main() -> None:
    """Measure every shape, number of threads and number of rows."""
    parser = common.make_parser(__doc__, trials=10)
    parser.add_argument("--shape", nargs="+", default=SHAPES)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    arguments = common.parse(parser)
    title = f"ms by form, {torch.backends.cpu.get_cpu_capability()}"
    common.show(arguments, title, COLUMNS, _measure(arguments))


@torch.inference_mode()
def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    for shape in arguments.shape:
        num_out, num_in = map(int, shape.split("x"))
        pages = [torch.randn(num_out, num_in) for _ in range(max(2, NUM_ENTRIES // (num_out * num_in)))]
        for threads, num_rows in product(arguments.threads, arguments.rows):
            torch.set_num_threads(threads)
            row = {"shape": shape, "threads": threads, "num_rows": num_rows, "dtype": "float32"}
            yield row | _by_form(torch.randn(num_rows, num_in), pages, arguments.trials)


def _by_form(x: torch.Tensor, pages: list[torch.Tensor], num_trials: int) -> common.Row:
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"read_ms": torch.sum}
    calls |= {name: lambda weight, form=form: form(x, weight, None) for name, form in FORMS.items()}
    milliseconds = dict.fromkeys(calls, math.inf)
    for trial in range(num_trials):
        for index, (name, call) in enumerate(calls.items()):
            page = pages[(trial * len(calls) + index) % len(pages)]
            start_s = time.perf_counter()
            call(page)
            milliseconds[name] = min(milliseconds[name], 1e3 * (time.perf_counter() - start_s))
    picked = forms.pick_form(x.shape[0]) if x.shape[0] <= forms.MAX_ROWS else None
    rule = next((name for name, form in FORMS.items() if form is picked), "as is")
    best = min(milliseconds[name] for name in FORMS)
    gain, share = milliseconds["as is"] / milliseconds[rule], best / milliseconds[rule]
    return {**milliseconds, "rule": rule, "gain": gain, "share": share}


if __name__ == "__main__":
    main()
