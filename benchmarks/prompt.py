"""Time reading a prompt, with uag's kernels and with PyTorch's operations, and compare their rounding.

    python benchmarks/prompt.py MODEL [--dtype bfloat16] [--lengths 30 128 512] [--trials 5] [--threads 2] [--cpu]

Arms are interleaved. Columns: the medians in ms of a pass over the prompt that returns its last logits, the first one
relative to PyTorch's, and the RMS errors of the logits of all tokens against float32.
`--cpu` takes the main thread's processor time, for busy machines; use it with one thread.
"""

import argparse
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import common
import torch

from uag.hf.cache.caches import CACHE, default_cache
from uag.kernels import OwnKernels
from uag.loading import load_model

COLUMNS = {
    "dtype": "{dtype}",
    "tokens": "{length}",
    "kernels": "{kernels:.0f}",
    "PyTorch": "{PyTorch:.0f}",
    "ratio": "{ratio:.2f}",
    "error, kernels": "{kernels_error:.3g}",
    "error, PyTorch": "{PyTorch_error:.3g}",
}


def main() -> None:
    """Measure every dtype and length."""
    parser = common.make_parser(__doc__, trials=5, threads=2)
    parser.add_argument("model", help="name or folder")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16", "float16"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[30, 128, 512])
    parser.add_argument("--cpu", action="store_true", help="take processor time")
    arguments = common.parse(parser)
    torch.set_num_threads(arguments.threads)
    title = f"reading a prompt, {torch.backends.cpu.get_cpu_capability()}, {arguments.threads} threads"
    common.show(arguments, title, COLUMNS, measure(arguments))


@torch.inference_mode()
def measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    """Yield the medians and errors of each dtype and length."""
    clock = time.thread_time if arguments.cpu else time.perf_counter
    exact = load_model(arguments.model, dtype="float32", device="cpu")
    for dtype in arguments.dtype:
        model = load_model(arguments.model, dtype=dtype, device="cpu")
        arms = {"kernels": OwnKernels(model), "PyTorch": OwnKernels()}
        for length in arguments.lengths:
            ids = torch.randint(100, 1000, (1, length), generator=torch.Generator().manual_seed(length))
            expected, row = exact(ids).logits, {"dtype": dtype, "length": length}
            ms: dict[str, list[float]] = {arm: [] for arm in arms}
            for trial in range(arguments.trials):
                for arm, kernels in arms.items():
                    with kernels.in_place(), kernels.reading():
                        start = clock()
                        read(model, ids, logits_to_keep=1)
                        ms[arm].append(1e3 * (clock() - start))
                        if not trial:
                            row[f"{arm}_error"] = float((read(model, ids) - expected).pow(2).mean().sqrt())
            medians = {arm: median(of_arm) for arm, of_arm in ms.items()}
            yield row | medians | {"ratio": medians["kernels"] / medians["PyTorch"]}


def read(model: Any, ids: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """Return the logits of a prompt, read into an empty cache."""
    logits: torch.Tensor = model(ids, **{CACHE: default_cache(model)}, **kwargs).logits
    return logits.float()


if __name__ == "__main__":
    main()
