"""What a round costs beyond its bare passes: uag against a replay of the very same passes, nothing around them.

    python benchmarks/overhead.py [--tokens 128] [--trials 5] [--batch 1 8] [--context 64] [--temperature 0 1]
                                  [--candidates N [--compile-draft]] [--target NAME --draft NAME] [--output FILE]

Noted is the shape of every pass of a call: batch, positions, cache length. The replay runs passes of the same shapes in
the same order, each model on a cache of its own that is cut back where the call cut it back, with the products that the
call's passes had (docs/products.md), and the draft's short forward where the call took it. Call and replay take turns
in one process; the medians of the trials are printed, with

    speed       time of the replay over time of the call: 1.00 would be a call without any overhead
    overhead    time of the call less time of the replay, for one round, and as a share of the round
    search ...  where uag's own clocks say that the call's time went: search, draft passes, target passes, the rest

and the same for plain `generate`, whose own loop is not free either. With --compile-draft a further arm compiles its
draft passes and is set against the same passes, bare and not compiled.
"""

import argparse
import functools
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import common
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import DynamicCache

import uag
from uag.bench import heldout_prompts
from uag.bench.passes import timed
from uag.drafting import DraftModel
from uag.hf.llama.forward import MOST_SHORT
from uag.hf.trials.forward import blocks_of
from uag.loading import Pair, load_pair
from uag.products import FastProducts

COLUMNS = {
    "arm": "{arm}",
    "batch": "{batch_size}",
    "context": "{num_context}",
    "T": "{temperature:g}",
    "tokens/s": "{tokens_per_s:.1f}",
    "rounds": "{num_rounds}",
    "call": "{seconds:.3f} s",
    "replay": "{bare_seconds:.3f} s",
    "speed": "{speed:.2f}",
    "overhead/round": "{overhead_per_round_ms:.2f} ms ({overhead_share:.0%})",
    "search / draft / target / rest": "{search_share:.0%} / {draft_share:.0%} / {target_share:.0%} / {rest_share:.0%}",
}


class Pass(NamedTuple):
    """The shape of one forward pass; `num_logits` 0 stands for logits at every position."""

    is_target: bool
    batch_size: int
    width: int
    num_cached: int
    num_logits: int
    is_short: bool = False


def main(*, tokens: int = 128, candidates: int | None = None, temperatures: Sequence[float] = (0.0,)) -> None:
    """Measure every combination of batch, context and temperature; the arguments are defaults of the options."""
    parser = common.make_parser(__doc__, tokens=tokens, trials=5)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--context", type=int, nargs="+", default=[64])
    parser.add_argument("--temperature", type=float, nargs="+", default=temperatures)
    parser.add_argument("--candidates", type=int, default=candidates, help="in every round; default: chosen by rate")
    parser.add_argument("--compile-draft", action="store_true", help="a further arm; needs --candidates")
    parser.add_argument("--target")
    parser.add_argument("--draft")
    arguments = common.parse(parser)
    if arguments.compile_draft and arguments.candidates is None:
        parser.error("--compile-draft needs --candidates: only then do all arms run the same passes")
    common.show(arguments, "the call and a replay of its passes", COLUMNS, _measure(arguments))


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    pair = load_pair(arguments.target, arguments.draft)
    pair.target.generation_config.eos_token_id = None  # every call writes the same number of tokens
    assistants = {
        name: uag.Assistant(
            pair.draft,
            pair.draft_tokenizer,
            pair.target_tokenizer,
            num_candidate_tokens=arguments.candidates,
            compile_draft=name == "uag-compiled",
        )
        for name in ("uag", *(["uag-compiled"] if arguments.compile_draft else []))
    }
    for batch_size, num_context, temperature in product(arguments.batch, arguments.context, arguments.temperature):
        options: dict[str, Any] = {"max_new_tokens": arguments.tokens, "do_sample": temperature > 0}
        if temperature > 0:
            options |= {"temperature": temperature, "top_k": 0}
        call = _inputs(pair, batch_size, num_context) | options
        _trial(pair, assistants, call, seed=0)  # warms up
        trials = [_trial(pair, assistants, call, seed) for seed in range(1, arguments.trials + 1)]
        for arm in trials[0]:
            row = {"arm": arm, "batch_size": batch_size, "num_context": num_context, "temperature": temperature}
            figures = [trial[arm] for trial in trials]
            medians = {name: statistics.median(figure[name] for figure in figures) for name in figures[0]}
            rate = batch_size * arguments.tokens / medians["seconds"]
            num_rounds = figures[-1]["num_rounds"]
            yield row | medians | {"num_rounds": num_rounds, "tokens_per_s": rate, "dtype": str(pair.target.dtype)}


def _inputs(pair: Pair, batch_size: int, num_context: int) -> dict[str, torch.Tensor]:
    text = "\n\n\n".join(prompt.text for prompt in heldout_prompts())
    ids = pair.target_tokenizer(text)["input_ids"]
    rows = [(ids[start * 97 :] + ids * (1 + num_context // len(ids)))[:num_context] for start in range(batch_size)]
    input_ids = torch.tensor(rows, device=pair.target.device)
    return {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}


def _trial(
    pair: Pair, assistants: dict[str, uag.Assistant], call: dict[str, Any], seed: int
) -> dict[str, dict[str, float]]:
    """Run plain `generate` and each assistant once, each followed by its replay; return the figures of each."""
    arms: dict[str, Callable[..., Any]] = {"plain": pair.target.generate}
    arms |= {name: partial(assistant.generate, pair.target) for name, assistant in assistants.items()}
    found, expected, passes = {}, None, []
    for arm, generate in arms.items():
        torch.manual_seed(seed)
        # Compiled passes are padded ones: those of "uag", just noted, are what they do.
        with nullcontext(passes) if arm == "uag-compiled" else _noted(pair) as passes:
            sequences, seconds = timed(pair.target.device, generate, **call)
        expected = sequences if arm == "plain" else expected
        if not torch.equal(sequences, expected):
            raise SystemExit(f"{arm}: the output differs from plain's, with {call}")
        with FastProducts(None if arm == "plain" else pair.target).in_place(), FastProducts(pair.draft).in_place():
            _, bare_seconds = timed(pair.target.device, _replay, pair=pair, passes=passes)
        num_rounds = sum(item.is_target for item in passes)
        found[arm] = {
            "seconds": seconds,
            "bare_seconds": bare_seconds,
            "num_rounds": num_rounds,
            "speed": bare_seconds / seconds,
            "overhead_per_round_ms": 1e3 * (seconds - bare_seconds) / num_rounds,
            "overhead_share": 1 - bare_seconds / seconds,
        } | (_shares(assistants[arm].stats, seconds) if arm in assistants else {})
    return found


def _shares(stats: uag.Stats, seconds: float) -> dict[str, float]:
    parts = {"search": stats.draft_s - stats.draft_forward_s, "draft": stats.draft_forward_s, "target": stats.target_s}
    parts["rest"] = seconds - sum(parts.values())
    return {f"{name}_share": part / seconds for name, part in parts.items()}


@contextmanager
def _noted(pair: Pair) -> Iterator[list[Pass]]:
    """Note every pass of the two models; a hook on the draft would keep it from its short forward."""
    passes: list[Pass] = []

    kind = type(pair.target)
    forward, whole = DraftModel._forward, kind.forward

    @functools.wraps(whole)
    def target(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self is pair.target:
            cache = kwargs.get("past_key_values")
            num_cached = 0 if cache is None else int(cache.get_seq_length())
            passes.append(Pass(True, *kwargs["input_ids"].shape, num_cached, kwargs.get("logits_to_keep", 0)))
        return whole(self, *args, **kwargs)

    def draft(self: DraftModel, requests: Any, places: Any, kept: int) -> torch.Tensor:
        _, rows, width = places.shape
        logits = forward(self, requests, places, kept)
        is_short = blocks_of(pair.draft) is not None and self._length > 0 and width <= MOST_SHORT
        passes.append(Pass(False, rows, width, self._length, kept, is_short))
        return logits

    DraftModel._forward, kind.forward = draft, target  # type: ignore[method-assign]
    try:
        yield passes
    finally:
        DraftModel._forward, kind.forward = forward, whole  # type: ignore[method-assign]


@torch.inference_mode()
def _replay(pair: Pair, passes: list[Pass]) -> None:
    """Run passes of the noted shapes, with nothing around them but the fitting of the caches."""
    caches: dict[bool, Any] = {}
    blocks: Any = blocks_of(pair.draft)
    for item in passes:
        model = pair.target if item.is_target else pair.draft
        if item.num_cached == 0:
            caches[item.is_target] = DynamicCache()
        cache = caches[item.is_target]
        for layer in cache.layers:
            layer.keys, layer.values = (_fitted(part, item) for part in (layer.keys, layer.values))
        ids = torch.zeros((item.batch_size, item.width), dtype=torch.long, device=model.device)
        if item.is_short:
            last = item.num_cached + item.width - 1
            mask = torch.zeros((item.batch_size, 1, item.width, last + 1), dtype=model.dtype, device=model.device)
            mask = mask if ids.numel() > 1 else None
            blocks(ids, ids + last, last, mask, cache, item.num_logits)
            continue
        model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=item.num_logits)


def _fitted(part: torch.Tensor, item: Pass) -> torch.Tensor:
    """Cut keys or values to a pass's rows and positions, or fill them up where the call had moved rows together."""
    missing = (item.batch_size - part.shape[0], item.num_cached - part.shape[2])
    if max(missing) > 0:
        part = F.pad(part, (0, 0, 0, max(0, missing[1]), 0, 0, 0, max(0, missing[0])))
    return part[: item.batch_size, :, : item.num_cached] if min(missing) < 0 else part


if __name__ == "__main__":
    main()
