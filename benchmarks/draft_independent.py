"""Does the draft change the output, what does that cost, and how do uag's kernels round?

    python benchmarks/draft_independent.py [--prompts FILE] [--num-prompts 10] [--tokens 96] [--part equal ...]
        [--dtype bfloat16 ...] [--way kernels width] [--cache static] [--device cpu] [--target NAME --draft NAME]

The prompts are held-out Python, or the `prompt` entries of a file of JSON lines (HumanEval.jsonl.gz). Ways: uag's
kernels, the default on a CPU; passes of a fixed width without them (`draft_independent=True, own_kernels=False`); and
neither, which is any other assistant's way. Parts:

    equal     for every source of candidates, how many outputs, greedy and sampled, have the tokens of the same way
              without a draft, and how many also have its logits at every step, bit for bit; beside them, how many have
              the tokens of plain `generate`
    costs     tokens per second of plain decoding and of each way without and with a draft, greedy, in turns
    rounding  over the prompts and plain decoding's continuations: the RMS error of the logits of single tokens against
              float32, and the share of tokens whose highest logit is the same as in float32, for plain decoding and for
              uag's kernels
"""

import argparse
import copy
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import common
import torch

from uag.assistant import Assistant
from uag.bench import read_prompts
from uag.drafting import Ask, Drafter
from uag.hf.cache.caches import CACHE
from uag.kernels import OwnKernels, kernel
from uag.loading import Pair, encode, load_pair
from uag.proposal import Proposal

WAYS: dict[str, dict[str, Any]] = {
    "kernels": {},
    "width": {"draft_independent": True, "own_kernels": False},
    "neither": {"own_kernels": False},
}
EQUAL = {"dtype": "{dtype}", "way": "{way}", "cache": "{cache}", "source": "{source}"}
EQUAL |= {"tokens": "{tokens}", "and logits": "{logits}", "plain's tokens": "{plain}", "passes": "{passes}"}
ROUNDING = {
    "dtype": "{dtype}",
    "passes": "{source}",
    "RMS error": "{error:.4f}",
    "same selection": "{same} of {number}",
}
COSTS = {"dtype": "{dtype}", "arm": "{source}", "tokens/s": "{speed:.1f}", "of plain": "{ratio:.2f}x"}


class Known(Drafter):
    """Proposes a known continuation of one row: all of it right, or all wrong."""

    strategy = "known"

    def __init__(self, ids: Sequence[int], size: int, *, is_right: bool) -> None:
        self._ids = [i if is_right else (i + 1) % size for i in ids]
        self._done = 0

    def start(self, *_: Any) -> None:
        """Begin at the first token."""
        self._done = 0

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        """Return the next ids."""
        return [[Proposal(i, 1.0) for i in self._ids[self._done : self._done + limit]] for limit in ask.limits]

    def accept(self, _row: int, _num_accepted: int, output_ids: Sequence[int]) -> None:
        """Go on behind the output."""
        self._done += len(output_ids)

    def release(self) -> None:
        """Do nothing."""


def main() -> None:
    """Run the parts."""
    parser = common.make_parser(__doc__, num_prompts=10, tokens=96)
    parser.add_argument("--prompts", type=Path, help="JSON lines with `prompt`, also compressed")
    parts: dict[str, tuple[Callable[..., Iterator[common.Row]], dict[str, str]]] = {
        "equal": (compare, EQUAL),
        "costs": (time_arms, COSTS),
        "rounding": (rounding, ROUNDING),
    }
    parser.add_argument("--part", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--way", nargs="+", choices=WAYS, default=["kernels", "neither"])
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--cache", help="cache_implementation of the compared calls; static is compiled on a GPU")
    parser.add_argument("--device", help="default: cuda if there is one")
    for role in ("target", "draft"):
        parser.add_argument(f"--{role}", help="name or folder; default: the demo's")
    arguments = common.parse(parser)
    torch.set_grad_enabled(False)
    for part in arguments.part:
        measure, columns = parts[part]
        rows = itertools.chain.from_iterable(measure(arguments, dtype) for dtype in arguments.dtype)
        common.show(arguments, f"{part}, {kernel.describe()}", columns, rows)


def compare(arguments: argparse.Namespace, dtype: str) -> Iterator[common.Row]:
    """Count the outputs, greedy and sampled, that equal those of the same way without a draft."""
    pair, texts = load(arguments, dtype)
    for way in arguments.way:
        counts: Counter[tuple[str, str]] = Counter()
        make = partial(Assistant, tokenizer=pair.target_tokenizer, **WAYS[way])
        drafting = {
            "draft": make(pair.draft, pair.draft_tokenizer),
            "three candidates": make(pair.draft, pair.draft_tokenizer, num_candidate_tokens=3),
            "memory": make(None, memory=True),
        }
        reference_of = make(None)
        for text, do_sample in itertools.product(texts, (False, True)):
            inputs = encode(pair, [text])
            reference = generate(reference_of.generate, pair, inputs, arguments, do_sample)
            ids, size = reference.sequences[0, inputs["input_ids"].shape[1] :].tolist(), reference.logits[0].shape[-1]
            known = {
                name: make(None, drafter=Known(ids, size, is_right=name == "always right"), num_candidate_tokens=7)
                for name in ("always right", "always wrong")
            }
            plain = generate(type(pair.target).generate, pair, inputs, arguments, do_sample)
            for name, assistant in {"none": reference_of, **known, **drafting}.items():
                output = generate(assistant.generate, pair, inputs, arguments, do_sample)
                is_equal = torch.equal(output.sequences, reference.sequences)
                counts[name, "tokens"] += is_equal
                counts[name, "logits"] += is_equal and all(map(torch.equal, output.logits, reference.logits))
                counts[name, "plain"] += torch.equal(output.sequences, plain.sequences)
                counts[name, "passes"] += assistant.stats.num_target_forwards
        for name in ("none", *known, *drafting):
            found = {kind: f"{counts[name, kind]} of {2 * len(texts)}" for kind in ("tokens", "logits", "plain")}
            row = {"dtype": dtype, "way": way, "cache": arguments.cache or "default", "source": name}
            yield row | {"passes": counts[name, "passes"], **found}


def time_arms(arguments: argparse.Namespace, dtype: str) -> Iterator[common.Row]:
    """Time each arm on every prompt, in turns; the first prompt also warms every arm up."""
    pair, texts = load(arguments, dtype)
    generate_by: dict[str, Callable[..., Any]] = {"plain": lambda model, **options: model.generate(**options)}
    for way in arguments.way:
        make = partial(Assistant, tokenizer=pair.target_tokenizer, **WAYS[way])
        generate_by[f"{way}, no draft"] = make(None).generate
        generate_by[f"{way}, draft"] = make(pair.draft, pair.draft_tokenizer).generate
    speeds: dict[str, list[float]] = {name: [] for name in generate_by}
    for text in (texts[0], *texts):
        inputs = encode(pair, [text])
        for name, call in generate_by.items():
            start_time = time.perf_counter()
            ids = call(pair.target, **inputs, max_new_tokens=arguments.tokens, do_sample=False)
            num_new = ids.shape[1] - inputs["input_ids"].shape[1]
            speeds[name].append(num_new / (time.perf_counter() - start_time))
    for name, measured in speeds.items():
        ratios = [mine / plain for mine, plain in zip(measured[1:], speeds["plain"][1:], strict=True)]
        yield {"dtype": dtype, "source": name, "speed": median(measured[1:]), "ratio": median(ratios)}


def rounding(arguments: argparse.Namespace, dtype: str) -> Iterator[common.Row]:
    """Compare the logits of single tokens with those of the same model in float32."""
    if dtype == "float32":
        return
    pair, texts = load(arguments, dtype)
    exact = copy.deepcopy(pair.target).float()
    errors: dict[str, list[float]] = {"plain": [], "uag": []}
    same: Counter[str] = Counter()
    number = 0
    for text in texts:
        inputs = encode(pair, [text])
        start = inputs["input_ids"].shape[1]
        ids = exact.generate(**inputs, max_new_tokens=arguments.tokens, do_sample=False)
        expected = step_by_step(exact, ids, start, OwnKernels())
        number += len(expected)
        for name, kernels in (("plain", OwnKernels()), ("uag", OwnKernels(pair.target))):
            logits = step_by_step(pair.target, ids, start, kernels)
            errors[name].append(float((logits - expected).pow(2).mean()))
            same[name] += int((logits.argmax(-1) == expected.argmax(-1)).sum())
    for name, of_texts in errors.items():
        error = fmean(of_texts) ** 0.5
        yield {"dtype": dtype, "source": name, "error": error, "same": same[name], "number": number}


def step_by_step(model: Any, ids: torch.Tensor, start: int, kernels: OwnKernels) -> torch.Tensor:
    """Return the logits [num_steps, vocab_size] of single tokens after a prompt of `start` tokens."""
    cache = model(ids[:, :start], use_cache=True)[CACHE]
    found = []
    with kernels.in_place(), kernels.running():
        for step in range(start, ids.shape[1]):
            found.append(model(ids[:, step : step + 1], **{CACHE: cache}).logits[0, -1].float())
    return torch.stack(found)


def load(arguments: argparse.Namespace, dtype: str) -> tuple[Pair, list[str]]:
    """Load the pair and the prompts."""
    pair = load_pair(arguments.target, arguments.draft, dtype=dtype, device=arguments.device)
    if arguments.prompts is None:
        return pair, common.python_texts(arguments.num_prompts)
    return pair, [prompt.text for prompt in read_prompts(arguments.prompts)[: arguments.num_prompts]]


def generate(
    call: Callable[..., Any],
    pair: Pair,
    inputs: dict[str, torch.Tensor],
    arguments: argparse.Namespace,
    do_sample: bool,
) -> Any:
    """Generate from a fixed seed and return ids and logits."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"max_new_tokens": arguments.tokens, "do_sample": do_sample}
    options["cache_implementation"] = arguments.cache
    return call(pair.target, **inputs, **options, return_dict_in_generate=True, output_logits=True)


if __name__ == "__main__":
    main()
