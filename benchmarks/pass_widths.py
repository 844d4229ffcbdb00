"""Time a model's passes over 1 to 8 tokens: in one call of uag's kernels, with the kernels of its layers, in PyTorch.

    python benchmarks/pass_widths.py MODEL [--dtype float32] [--quantization NAME] [--context 64] [--trials 13]

Arms are interleaved; each pass follows `context` tokens in a dynamic cache. Columns: medians in ms, and each median
relative to the arm's one-token pass.
`ATEN_CPU_CAPABILITY=avx2` before the command measures AVX2.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from statistics import median
from typing import Any

import common
import torch
from quantizations import QUANTIZATIONS, load_quantized
from transformers import DynamicCache

from uag.hf.cache.caches import CACHE
from uag.kernels import Decoder, OwnKernels, decoder_of, one_call
from uag.loading import load_model

WIDTHS = (1, 2, 4, 6, 8)
COLUMNS = {"arm": "{arm}", **{str(width): f"{{ms[{width}]:.0f}} ({{ratio[{width}]:.2f}})" for width in WIDTHS}}


def main() -> None:
    """Measure all arms."""
    parser = common.make_parser(__doc__, trials=13, context=64)
    parser.add_argument("model", help="name or folder")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantization", choices=QUANTIZATIONS, help="how to quantize the weights")
    arguments = common.parse(parser)
    weights = f"{arguments.dtype}, {arguments.quantization or 'not quantized'}"
    title = f"ms by tokens of a pass, {weights}, {torch.backends.cpu.get_cpu_capability()}"
    common.show(arguments, title, COLUMNS, measure(arguments.model, arguments.dtype, arguments))


@torch.no_grad()  # packed weights do not run in inference_mode
def measure(name: str, dtype: str, arguments: argparse.Namespace) -> Iterator[common.Row]:
    """Yield each arm's medians."""
    quantization = arguments.quantization
    model = load_quantized(name, quantization, dtype) if quantization else load_model(name, dtype=dtype, device="cpu")
    ids = torch.arange(100, 100 + max(arguments.context, max(WIDTHS)))[None]
    cache = DynamicCache(config=model.config)
    kernels, decoder = OwnKernels(model), decoder_of(model, "model")
    with kernels.in_place(), kernels.reading():
        model(ids[:, : arguments.context], **{CACHE: cache})

    def run(arm: str, inputs: dict[str, Any]) -> None:
        used = kernels if arm != "PyTorch" else OwnKernels()
        with used.in_place(), used.running():
            if arm != "one call":
                model(**inputs)
            elif one_call.run(decoder, inputs, inputs["input_ids"].shape[1]) is None:
                raise SystemExit("A pass did not run in one call.")

    arms = ["one call", "kernels", "PyTorch"] if isinstance(decoder, Decoder) else ["kernels", "PyTorch"]
    seconds: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for trial in range(arguments.trials + 1):
        for width in WIDTHS:
            for arm in arms:
                start = time.perf_counter()
                run(arm, {"input_ids": ids[:, :width], CACHE: cache})
                taken = time.perf_counter() - start
                cache.crop(-width)
                if trial:  # the first warms up
                    seconds[arm, width].append(taken)
    for arm in arms:
        ms = {width: 1e3 * median(seconds[arm, width]) for width in WIDTHS}
        ratio = {width: value / ms[1] for width, value in ms.items()}
        yield {"arm": arm, "dtype": dtype, "quantization": quantization, "ms": ms, "ratio": ratio}


if __name__ == "__main__":
    main()
