"""How near the loop comes to its limit: the same passes, replayed as bare forwards.

    python benchmarks/limit.py [--tokens 96] [--trials 5] [--batch-sizes 1 8] [--temperatures 0 1] [--compile-draft]

A call on the demo pair is recorded as its trace: the width and the context of every draft and target pass. The replay
runs bare forwards of those shapes over plain caches and nothing else: no projection, no selection, no bookkeeping. The
two alternate; printed are medians and the share of the limit that the loop reaches. With --compile-draft the loop's
draft passes are compiled, and the bare ones are not.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import DynamicCache
from transformers.utils import logging

import uag
from uag.bench import heldout_prompts, spread
from uag.loading import Pair, encode, load_pair

Pass = tuple[str, int, int]
"""("draft" or "target", tokens per row, positions in the cache before)."""


def main() -> None:
    """Measure each batch size and temperature and print one row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--candidates", type=int, default=5)
    parser.add_argument("--compile-draft", action="store_true")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    pair = load_pair()
    table = Table("batch", "temperature", "loop, s", "bare passes, s", "share of the limit", title="near the limit")
    for batch_size in arguments.batch_sizes:
        for temperature in arguments.temperatures:
            loop_s, bare_s = _measure(pair, batch_size, temperature, arguments)
            table.add_row(
                str(batch_size), str(temperature), f"{loop_s:.3f}", f"{bare_s:.3f}", f"{100 * bare_s / loop_s:.1f} %"
            )
    console = Console()
    console.print(table)
    console.print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, CPU, float32", highlight=False)


def _measure(pair: Pair, batch_size: int, temperature: float, arguments: argparse.Namespace) -> tuple[float, float]:
    texts = [prompt.text for prompt in spread(heldout_prompts(), batch_size)]
    inputs = encode(pair, texts)
    options: dict[str, Any] = {"max_new_tokens": arguments.tokens, "do_sample": temperature > 0}
    if temperature > 0:
        options["temperature"] = temperature
    recorded, timed = (
        uag.Assistant(
            pair.draft,
            pair.draft_tokenizer,
            pair.target_tokenizer,
            num_candidate_tokens=arguments.candidates,
            compile_draft=is_compiled,
        )
        for is_compiled in (False, arguments.compile_draft)
    )

    def run(assistant: uag.Assistant) -> None:
        torch.manual_seed(0)
        assistant.generate(pair.target, **inputs, **options)

    with _record(pair) as trace:
        run(recorded)
    run(timed)  # whatever is compiled is compiled here
    loops, bares = [], []
    for _ in range(arguments.trials):
        loops.append(_timed(lambda: run(timed)))
        bares.append(_replay(pair, trace, batch_size))
    return statistics.median(loops), statistics.median(bares)


@contextmanager
def _record(pair: Pair) -> Iterator[list[Pass]]:
    """Note every pass of the two models."""
    trace: list[Pass] = []
    removers = []
    for name, model in (("target", pair.target), ("draft", pair.draft)):

        def note(_module: Any, _args: Any, kwargs: dict[str, Any], name: str = name) -> None:
            trace.append((name, kwargs["input_ids"].shape[1], kwargs["past_key_values"].get_seq_length()))

        removers.append(model.register_forward_pre_hook(note, with_kwargs=True))
    try:
        yield trace
    finally:
        for remover in removers:
            remover.remove()


@torch.inference_mode()
def _replay(pair: Pair, trace: list[Pass], batch_size: int) -> float:
    """Run bare forwards of the recorded shapes; returns the seconds spent in them alone."""
    models = {"target": pair.target, "draft": pair.draft}
    caches = {name: DynamicCache() for name in models}
    seconds = 0.0
    for name, width, context in trace:
        cache, model = caches[name], models[name]
        have = cache.get_seq_length()
        if have > context:
            cache.crop(context - have)
        ids = torch.ones((batch_size, width + max(context - have, 0)), dtype=torch.long)
        if context > have:  # compaction and shifts change lengths: catch up outside the clock
            model(input_ids=ids[:, width:], past_key_values=cache, use_cache=True, logits_to_keep=1)
            ids = ids[:, :width]
        kept = 1 if context == 0 and name == "target" else min(width, 8)
        began = time.perf_counter()
        model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=kept)
        seconds += time.perf_counter() - began
    return seconds


def _timed(run: Any) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
