"""A fixed width of the target's passes: is the output the same for every draft, and what does it cost?

    python benchmarks/fixed_width.py [--prompts FILE] [--num-prompts 24] [--tokens 128] [--width 8] [--part equal ...]
        [--dtype bfloat16 ...] [--cache static] [--device cpu] [--target NAME --draft NAME]

The prompts are held-out Python, or the `prompt` entries of a file of JSON lines (HumanEval.jsonl.gz). Decoding is
greedy. Parts:

    equal   for every source of candidates, how many outputs have the tokens of the same width without a draft, and how
            many also have its logits at every step, bit for bit; beside them, assisted decoding without a width, and
            plain decoding
    costs   tokens per second of plain decoding, assisted decoding, and both with the fixed width, in turns
"""

import argparse
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import common
import torch

from uag.assistant import Assistant
from uag.bench import read_prompts
from uag.drafting import Ask, Drafter
from uag.loading import Pair, encode, load_pair
from uag.proposal import Proposal

EQUAL = {"dtype": "{dtype}", "cache": "{cache}", "source": "{source}"}
EQUAL |= {"tokens": "{tokens}", "and logits": "{logits}", "passes": "{passes}"}
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
    parser = common.make_parser(__doc__, num_prompts=24, tokens=128, width=8)
    parser.add_argument("--prompts", type=Path, help="JSON lines with `prompt`, also compressed")
    parser.add_argument("--part", nargs="+", choices=("equal", "costs"), default=["equal", "costs"])
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--cache", help="cache_implementation of the compared calls; static is compiled on a GPU")
    parser.add_argument("--device", help="default: cuda if there is one")
    for role in ("target", "draft"):
        parser.add_argument(f"--{role}", help="name or folder; default: the demo's")
    arguments = common.parse(parser)
    torch.set_grad_enabled(False)
    for part in arguments.part:
        measure, columns = (compare, EQUAL) if part == "equal" else (time_arms, COSTS)
        rows = itertools.chain.from_iterable(measure(arguments, dtype) for dtype in arguments.dtype)
        common.show(arguments, f"{part}, width {arguments.width}, greedy", columns, rows)


def compare(arguments: argparse.Namespace, dtype: str) -> Iterator[common.Row]:
    """Count the prompts whose output equals that of the same width without a draft."""
    (pair, texts), width = load(arguments, dtype), arguments.width
    models = pair.draft, pair.draft_tokenizer
    with_draft = {
        "draft": Assistant(*models, pair.target_tokenizer, fixed_width=width),
        "three candidates": Assistant(*models, pair.target_tokenizer, fixed_width=width, num_candidate_tokens=3),
        "without a width": Assistant(*models, pair.target_tokenizer),
    }
    reference_of = Assistant(None, None, pair.target_tokenizer, fixed_width=width)
    tokens: Counter[str] = Counter()
    logits: Counter[str] = Counter()
    num_passes: Counter[str] = Counter()
    for text in texts:
        inputs = encode(pair, [text])
        reference = generate(reference_of, pair, inputs, arguments)
        ids, size = reference.sequences[0, inputs["input_ids"].shape[1] :].tolist(), reference.logits[0].shape[-1]
        known = {
            name: Assistant(
                None,
                None,
                pair.target_tokenizer,
                drafter=Known(ids, size, is_right=name == "always right"),
                num_candidate_tokens=width - 1,
                fixed_width=width,
            )
            for name in ("always right", "always wrong")
        }
        plain = Assistant(None, None, pair.target_tokenizer)
        for name, assistant in {"none": reference_of, **known, **with_draft, "plain": plain}.items():
            output = generate(assistant, pair, inputs, arguments)
            is_equal = torch.equal(output.sequences, reference.sequences)
            tokens[name] += is_equal
            logits[name] += is_equal and all(map(torch.equal, output.logits, reference.logits))
            num_passes[name] += assistant.stats.num_target_forwards
    for name in tokens:
        equal = {"tokens": f"{tokens[name]} of {len(texts)}", "logits": f"{logits[name]} of {len(texts)}"}
        row = {"dtype": dtype, "cache": arguments.cache or "default", "source": name}
        yield row | {"passes": num_passes[name], **equal}


def time_arms(arguments: argparse.Namespace, dtype: str) -> Iterator[common.Row]:
    """Time each arm on every prompt, in turns; the first prompt also warms every arm up."""
    (pair, texts), width = load(arguments, dtype), arguments.width
    models = pair.draft, pair.draft_tokenizer
    generate_by: dict[str, Callable[..., Any]] = {
        "plain": lambda model, **options: model.generate(**options),
        "assisted": Assistant(*models, pair.target_tokenizer).generate,
        "fixed width, no draft": Assistant(None, None, pair.target_tokenizer, fixed_width=width).generate,
        "fixed width, assisted": Assistant(*models, pair.target_tokenizer, fixed_width=width).generate,
    }
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


def load(arguments: argparse.Namespace, dtype: str) -> tuple[Pair, list[str]]:
    """Load the pair and the prompts."""
    pair = load_pair(arguments.target, arguments.draft, dtype=dtype, device=arguments.device)
    if arguments.prompts is None:
        return pair, common.python_texts(arguments.num_prompts)
    return pair, [prompt.text for prompt in read_prompts(arguments.prompts)[: arguments.num_prompts]]


def generate(assistant: Assistant, pair: Pair, inputs: dict[str, torch.Tensor], arguments: argparse.Namespace) -> Any:
    """Generate greedily and return ids and logits."""
    options: dict[str, Any] = {"max_new_tokens": arguments.tokens, "do_sample": False}
    options["cache_implementation"] = arguments.cache
    return assistant.generate(pair.target, **inputs, **options, return_dict_in_generate=True, output_logits=True)


if __name__ == "__main__":
    main()
