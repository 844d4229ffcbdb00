"""Time a draft's passes over 1 to 8 tokens: in one call over int8 or int4 weights, in PyTorch, and in llama.cpp.

    python benchmarks/draft_pass.py DRAFT [--threads N] [--dtype float32] [--gguf FILE] [--context 64 1024]
        [--trials 13]

Arms are interleaved, also with reading one byte of each weight once, which no pass over int8 weights can beat. Columns:
medians in ms, the median of one token relative to that of reading, and each median relative to that of one token.
Contexts that exceed the draft's positions are left out.
`ATEN_CPU_CAPABILITY=avx2` before the command measures AVX2.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from statistics import median
from typing import Any

import common
import torch

from uag.drafting import Passes
from uag.drafting.models.open_draft import open_passes
from uag.gguf import GgufDraft
from uag.hf.models import max_positions
from uag.kernels import kernel
from uag.loading import load_model
from uag.projection import DraftRow, Feed, Node, link

WIDTHS = (1, 2, 4, 8)
WEIGHTS = {"one call, int8": "int8", "one call, int4": "int4", "PyTorch": "model"}
READING = "reading the bytes"
COLUMNS = {
    "context": "{context}",
    "arm": "{arm}",
    "1": "{ms[1]:.2f}",
    "of reading": "{of_reading:.2f}",
    **{str(width): f"{{ms[{width}]:.2f}} ({{ratio[{width}]:.2f}})" for width in WIDTHS[1:]},
}


class Arm:
    """A way to run draft passes, and one sequence in it."""

    def __init__(self, passes: Passes, context: int) -> None:
        self.passes, self.context, self.row = passes, context, DraftRow()
        passes.start([self.row])
        self.run(0, context)

    def run(self, keep: int, width: int) -> float:
        """Run a pass over `width` tokens after the first `keep`, and return its seconds."""
        nodes = link(
            [Node(None, 100 + i % 50, b"", 0) for i in range(width)], self.row.path[keep - 1] if keep else None
        )
        start = time.perf_counter()
        self.passes.feed([(0, Feed(keep, nodes))])
        return time.perf_counter() - start


def main() -> None:
    """Measure all arms."""
    parser = common.make_parser(__doc__, trials=13)
    parser.add_argument("draft", help="name or folder")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--gguf", help="a file of the same model, for llama.cpp")
    parser.add_argument("--context", type=int, nargs="*", default=[64, 1024])
    arguments = common.parse(parser)
    torch.set_num_threads(arguments.threads)
    title = f"ms by tokens of a pass, {arguments.dtype}, {arguments.threads} threads, {kernel.describe()}"
    common.show(arguments, title, COLUMNS, measure(arguments))


def arms_of(model: Any, arguments: argparse.Namespace, context: int) -> dict[str, Arm]:
    """Return the ways in which this draft's passes can run."""
    arms = {name: Arm(open_passes(model, weights=form), context) for name, form in WEIGHTS.items()}
    for name, form in WEIGHTS.items():
        how = arms[name].passes.counts.passes
        if form != "model" and how.startswith("in PyTorch"):
            print(f"{name}: {how}")
            del arms[name]
    if arguments.gguf and find_spec("llama_cpp"):
        arms["llama.cpp"] = Arm(
            open_passes(GgufDraft(arguments.gguf, threads=arguments.threads), weights="model"), context
        )
    return arms


@torch.inference_mode()
def measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    """Yield each arm's medians."""
    model = load_model(arguments.draft, dtype=arguments.dtype, device="cpu")
    weights = torch.ones(sum(each.numel() for each in model.parameters()) // 4, dtype=torch.int32)
    for context in arguments.context:
        if context + max(WIDTHS) > max_positions(model):
            continue
        arms = arms_of(model, arguments, context)
        seconds: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        for trial in range(arguments.trials + 1):
            for width in WIDTHS:
                start = time.perf_counter()
                weights.max()
                taken = {READING: time.perf_counter() - start}
                taken |= {name: arm.run(context, width) for name, arm in arms.items()}
                for name, value in taken.items() if trial else ():  # the first warms up
                    seconds[name, width].append(value)
        reading = 1e3 * median(value for width in WIDTHS for value in seconds[READING, width])
        for name in (READING, *arms):
            ms = {width: 1e3 * median(seconds[name, width]) for width in WIDTHS}
            ratio = {width: value / ms[1] for width, value in ms.items()}
            yield {
                "context": context,
                "arm": name,
                "dtype": arguments.dtype,
                "ms": ms,
                "of_reading": ms[1] / reading,
                "ratio": ratio,
            }


if __name__ == "__main__":
    main()
