"""Show where a pass spends its time: linear layers by shape, attention, cache, norms and the rest, for 1 to 8 tokens.

    python benchmarks/pass_parts.py MODEL [--dtype float32] [--context 64 512] [--trials 9]

Widths are interleaved; each pass follows `context` tokens in a dynamic cache. Functions and classes of transformers are
timed from outside; a part's time excludes the parts inside it. Columns: medians in ms. The share of `Python and small
operations` is what no other part accounts for.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import common
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from uag.hf.cache.caches import CACHE
from uag.kernels import OwnKernels, kernel
from uag.loading import load_model

WIDTHS = (1, 2, 4, 6, 8)
REST = "Python and small operations"
COLUMNS = {"context": "{context}", "part": "{part}", **{str(width): f"{{ms[{width}]:.1f}}" for width in WIDTHS}}
spent: defaultdict[str, float] = defaultdict(float)
inside = [0.0]


def timed(function: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
    """Return a function that adds its own time to a part of `spent`, without the parts inside it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        inside.append(0.0)
        start = time.perf_counter()
        result = function(*args, **kwargs)
        taken = time.perf_counter() - start
        spent[name(*args)] += taken - inside.pop()
        inside[-1] += taken
        return result

    return call


def time_parts(model: Any) -> None:
    """Time the parts of a model's passes."""
    size = "{1} x {0}".format
    kernel.linear = timed(kernel.linear, lambda *args: f"linear {size(*args[1].t().shape)}")
    torch.nn.Linear.forward = timed(torch.nn.Linear.forward, lambda layer, _: f"linear {size(*layer.weight.t().shape)}")
    kernel.attention = timed(kernel.attention, lambda *_: "attention")
    kernel.gate = timed(kernel.gate, lambda *_: "activation")
    DynamicLayer.update = timed(DynamicLayer.update, lambda *_: "cache")
    for kind in {type(module) for module in model.modules()}:
        for word, part in (("RMSNorm", "norms"), ("MLP", "gate"), ("RotaryEmbedding", "rotary")):
            if word in kind.__name__:
                kind.forward = timed(kind.forward, lambda *_, part=part: part)


def main() -> None:
    """Measure all parts."""
    parser = common.make_parser(__doc__, trials=9)
    parser.add_argument("model", help="name or folder")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--context", type=int, nargs="+", default=[64, 512])
    arguments = common.parse(parser)
    title = f"ms by tokens of a pass, {arguments.dtype}, {kernel.describe()}"
    common.show(arguments, title, COLUMNS, measure(arguments))


@torch.inference_mode()
def measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    """Yield each part's medians."""
    model = load_model(arguments.model, dtype=arguments.dtype, device="cpu")
    kernels = OwnKernels(model)
    time_parts(model)
    for context in arguments.context:
        ids = torch.arange(100, 100 + context + max(WIDTHS))[None]
        cache = DynamicCache(config=model.config)
        model(ids[:, :context], **{CACHE: cache})
        seconds: defaultdict[str, dict[int, list[float]]] = defaultdict(lambda: {width: [] for width in WIDTHS})
        for trial in range(arguments.trials + 1):
            for width in WIDTHS:
                spent.clear()
                with kernels.in_place(), kernels.running():
                    start = time.perf_counter()
                    model(ids[:, :width], **{CACHE: cache})
                    taken = time.perf_counter() - start
                cache.crop(-width)
                spent[REST], spent["whole pass"] = taken - sum(spent.values()), taken
                for part, value in spent.items() if trial else ():  # the first warms up
                    seconds[part][width].append(value)
        for part, by_width in seconds.items():
            ms = {width: 1e3 * median(values) for width, values in by_width.items()}
            yield {"context": context, "dtype": arguments.dtype, "part": part, "ms": ms}


if __name__ == "__main__":
    main()
