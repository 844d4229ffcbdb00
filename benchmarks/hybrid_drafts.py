"""Draft passes of models with states beside those of an attention model of their size: what do copied states cost?

    python benchmarks/hybrid_drafts.py [--passes 60] [--context 200] [--output FILE]

Models have random weights. A pass reads one token after the context and is rolled back by the next one, so each pass
copies the states once and puts them back once. "states" is the share of that work in a pass.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partialmethod
from typing import Any
from unittest.mock import patch

import common
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from uag.drafting.models.opening import open_passes
from uag.drafting.models.passes import Passes
from uag.hf.cache.rewinding import RewindableCache
from uag.projection import DraftRow, Feed, Node, link

SIZES = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8,
         "num_key_value_heads": 2, "vocab_size": 8192, "bos_token_id": None, "eos_token_id": None}  # fmt: skip
LINEAR = {f"linear_num_{kind}_heads": 8 for kind in ("key", "value")}
LINEAR |= {"head_dim": 64, "linear_key_head_dim": 64, "linear_value_head_dim": 64}
DRAFTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "lfm2": {"layer_types": ["conv", "conv", "conv", "full_attention"] * 2},
    "qwen3_5_text": LINEAR | {"layer_types": ["linear_attention"] * 6 + ["full_attention"] * 2},
    "mamba2": {"num_heads": 16, "head_dim": 64, "state_size": 64, "n_groups": 1},
}
COLUMNS = {
    "draft": "{draft}",
    "parameters": "{parameters:.1f} M",
    "ms per pass": "{pass_ms:.2f}",
    "states": "{states:.1%}",
}


def main() -> None:
    """Time all drafts and print one row for each."""
    parser = common.make_parser(__doc__, passes=60, context=200)
    arguments = common.parse(parser)
    common.show(arguments, "draft passes over one token", COLUMNS, _measure(arguments))


def _measure(arguments: Any) -> Iterator[common.Row]:
    for name, sizes in DRAFTS.items():
        torch.manual_seed(0)
        config = AutoConfig.for_model(name, **SIZES | sizes)
        passes = open_passes(AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval())
        spent_s: list[float] = []
        timed = {part: partialmethod(_time, getattr(RewindableCache, part), spent_s) for part in ("save", "cut")}
        with patch.multiple(RewindableCache, **timed):
            pass_s = _pass_s(passes, arguments.context, arguments.passes)
        states = sum(spent_s) / (arguments.passes * pass_s)
        parameters = passes.counts.num_parameters / 1e6
        yield {"draft": name, "dtype": "float32", "parameters": parameters, "pass_ms": 1e3 * pass_s, "states": states}


def _pass_s(passes: Passes, context: int, num_passes: int) -> float:
    """Return the median seconds of a pass over one token, which the next pass rolls back."""
    row, seconds = DraftRow(), []
    passes.start([row])
    passes.feed([(0, Feed(0, link([Node(None, draft_id, b"", 0) for draft_id in range(1, context)])))])
    for _ in range(num_passes + 1):
        before = passes.counts.forward_s
        passes.feed([(0, Feed(context - 1, link([Node(None, 1, b"", 0)], row.path[context - 2])))])
        seconds.append(passes.counts.forward_s - before)
    passes.release()
    return statistics.median(seconds[1:])


def _time(cache: RewindableCache, function: Callable[..., None], spent_s: list[float], *arguments: int) -> None:
    start = time.perf_counter()
    function(cache, *arguments)
    spent_s.append(time.perf_counter() - start)


if __name__ == "__main__":
    main()
