"""What a round costs beyond its bare passes: uag against a replay of the very same passes, nothing around them.

    python benchmarks/overhead.py [--tokens 128] [--trials 5] [--batch 1 8] [--context 64] [--temperature 0 1]
                                  [--target NAME --draft NAME] [--output FILE]

A hook on target and draft notes the shape of every pass of a call: batch, positions, cache length. The replay runs
passes of the same shapes in the same order, each model on a cache of its own that is cut back where the call cut it
back. Call and replay take turns in one process; the medians of the trials are printed, with

    speed       time of the replay over time of the call: 1.00 would be a call without any overhead
    overhead    time of the call less time of the replay, for one round, and as a share of the round

and the same for plain `generate`, whose own loop is not free either.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from transformers import DynamicCache
from transformers.utils import logging

import uag
from uag.bench import heldout_prompts
from uag.bench.environment import describe_environment
from uag.bench.passes import synchronize
from uag.loading import Pair, load_pair


class Pass(NamedTuple):
    """The shape of one forward pass; `num_logits` 0 stands for logits at every position."""

    is_target: bool
    batch_size: int
    width: int
    num_cached: int
    num_logits: int


@dataclass
class Trace:
    """Notes every pass of two models while used as a context manager."""

    pair: Pair
    passes: list[Pass] = field(default_factory=list)

    def __enter__(self) -> "Trace":
        """Start to note."""
        self._hooks = ExitStack()
        for model, is_target in ((self.pair.target, True), (self.pair.draft, False)):
            handle = model.register_forward_pre_hook(self._hook(is_target), with_kwargs=True)
            self._hooks.callback(handle.remove)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop to note."""
        self._hooks.close()

    def _hook(self, is_target: bool) -> Callable[..., None]:
        def note(_model: Any, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            cache = kwargs.get("past_key_values")
            num_cached = 0 if cache is None else int(cache.get_seq_length())
            num_logits = kwargs.get("logits_to_keep", 0)
            self.passes.append(Pass(is_target, *kwargs["input_ids"].shape, num_cached, num_logits))

        return note


def main() -> None:
    """Measure every combination of batch, context and temperature."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--context", type=int, nargs="+", default=[64])
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0])
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--output", type=Path, help="JSON lines, one per row of the table")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    pair = load_pair(arguments.target, arguments.draft)
    pair.target.generation_config.eos_token_id = None  # every call writes the same number of tokens
    results = []
    for batch_size in arguments.batch:
        for num_context in arguments.context:
            for temperature in arguments.temperature:
                results += _measure(pair, batch_size, num_context, temperature, arguments.tokens, arguments.trials)
    console = Console()
    console.print(describe_environment())
    console.print(_table(results))
    if arguments.output is not None:
        lines = (json.dumps({**result, **describe_environment()}) + "\n" for result in results)
        arguments.output.write_text("".join(lines), encoding="utf-8")


def _measure(
    pair: Pair, batch_size: int, num_context: int, temperature: float, num_tokens: int, num_trials: int
) -> list[dict[str, Any]]:
    inputs = _inputs(pair, batch_size, num_context)
    options: dict[str, Any] = {"max_new_tokens": num_tokens, "do_sample": temperature > 0}
    if temperature > 0:
        options |= {"temperature": temperature, "top_k": 0}
    assistant = uag.Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer)
    arms: dict[str, Callable[[], Any]] = {
        "plain": lambda: pair.target.generate(**inputs, **options),
        "uag": lambda: assistant.generate(pair.target, **inputs, **options),
    }
    timings: dict[str, list[tuple[float, float, int]]] = {name: [] for name in arms}
    expected = None
    for trial in range(num_trials + 1):
        for name, generate in arms.items():
            torch.manual_seed(trial)
            with Trace(pair) as trace:
                seconds, sequences = _timed(pair, generate)
            expected = sequences if name == "plain" else expected
            if not torch.equal(sequences, expected):
                raise SystemExit(f"batch {batch_size}, T={temperature:g}: the output of {name} differs from plain's")
            bare_seconds, _ = _timed(pair, lambda passes=trace.passes: _replay(pair, passes))
            num_rounds = sum(item.is_target for item in trace.passes)
            if trial > 0:  # the first one warms up
                timings[name].append((seconds, bare_seconds, num_rounds))
    return [
        {"arm": name, "batch_size": batch_size, "num_context": num_context, "temperature": temperature}
        | _summary(measured, batch_size * num_tokens)
        for name, measured in timings.items()
    ]


def _inputs(pair: Pair, batch_size: int, num_context: int) -> dict[str, torch.Tensor]:
    text = "\n\n\n".join(prompt.text for prompt in heldout_prompts())
    ids = pair.target_tokenizer(text)["input_ids"]
    rows = [(ids[start * 97 :] + ids * (1 + num_context // len(ids)))[:num_context] for start in range(batch_size)]
    input_ids = torch.tensor(rows, device=pair.target.device)
    return {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}


def _timed(pair: Pair, call: Callable[[], Any]) -> tuple[float, Any]:
    synchronize(pair.target.device)
    start_s = time.perf_counter()
    result = call()
    synchronize(pair.target.device)
    return time.perf_counter() - start_s, result


@torch.inference_mode()
def _replay(pair: Pair, passes: list[Pass]) -> None:
    """Run passes of the noted shapes, with nothing around them but the cutting back of the caches."""
    caches: dict[bool, Any] = {}
    for item in passes:
        model = pair.target if item.is_target else pair.draft
        if item.num_cached == 0:
            caches[item.is_target] = DynamicCache()
        cache = caches[item.is_target]
        if item.num_cached < cache.get_seq_length() or (cache.layers and len(cache.layers[0].keys) > item.batch_size):
            for layer in cache.layers:
                layer.keys = layer.keys[: item.batch_size, :, : item.num_cached]
                layer.values = layer.values[: item.batch_size, :, : item.num_cached]
        ids = torch.zeros((item.batch_size, item.width), dtype=torch.long, device=model.device)
        model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=item.num_logits)


def _summary(measured: list[tuple[float, float, int]], num_tokens: int) -> dict[str, Any]:
    seconds = statistics.median(item[0] for item in measured)
    return {
        "tokens_per_s": num_tokens / seconds,
        "num_rounds": measured[-1][2],
        "seconds": seconds,
        "bare_seconds": statistics.median(item[1] for item in measured),
        "speed": statistics.median(bare / call for call, bare, _ in measured),
        "overhead_per_round_s": statistics.median((call - bare) / rounds for call, bare, rounds in measured),
        "overhead_share": statistics.median((call - bare) / call for call, bare, _ in measured),
    }


def _table(results: list[dict[str, Any]]) -> Table:
    table = Table(title="the call and a replay of its passes", title_justify="left")
    for heading in ("arm", "batch", "context", "T", "tokens/s", "rounds", "call", "replay", "speed", "overhead/round"):
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(
            result["arm"],
            str(result["batch_size"]),
            str(result["num_context"]),
            f"{result['temperature']:g}",
            f"{result['tokens_per_s']:.1f}",
            str(result["num_rounds"]),
            f"{result['seconds']:.3f} s",
            f"{result['bare_seconds']:.3f} s",
            f"{result['speed']:.2f}",
            f"{result['overhead_per_round_s'] * 1e3:.2f} ms ({result['overhead_share']:.0%})",
        )
    return table


if __name__ == "__main__":
    main()
