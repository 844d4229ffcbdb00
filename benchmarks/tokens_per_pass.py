"""Output tokens per target pass at equal numbers of candidates: uag beside transformers' own cross-tokenizer path.

    python benchmarks/tokens_per_pass.py [--prompts 8] [--tokens 64] [--candidates 5] [--output FILE]

The pairs are the demo pair and, where UAG_SHARED (default ../shared) has them, the six ordered pairs of the three
trained stories models. Passes are counted in both arms by a hook on the target, which also counts the candidates.

transformers fixes the number of DRAFT tokens per round, and what they come to in target tokens differs from round to
round. So its arm runs first, at --candidates draft tokens, and uag runs with ever more candidates until its passes
verify as many on average; its figure is read between the last two. Where uag never verifies as many (it stops where the
draft has nothing to propose), its figure at the most it reached stands, marked "fewer".
"""

import argparse
import copy
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers.utils import logging

import uag
from uag.bench import heldout_prompts, spread
from uag.bench.equality import first_difference
from uag.bench.passes import PassCounter
from uag.loading import Pair, encode, load_pair

MAX_TRIES = 5
STORIES = ("stories260K", "stories-tok105", "stories-tok361")
STORY_PROMPTS = (
    "Once upon a time",
    "Lily and Ben went to the park. They saw",
    "The little dog was sad because",
    '"Mom, can I have a cookie?" asked Tom.',
    "One day, a big bear found a red ball in the forest. He",
    "Tim had a toy car. It was",
    "The sun was hot and the bird was",
    "Sara wanted to bake a cake, but she did not have any",
)


class Tally:
    """Tokens, passes and candidates of one arm, added up over prompts; passes do not count the prefill alone."""

    def __init__(self) -> None:
        self.num_tokens = self.num_passes = self.num_candidates = 0

    @property
    def tokens_per_pass(self) -> float:
        """Output tokens per target pass."""
        return self.num_tokens / self.num_passes

    @property
    def candidates_per_pass(self) -> float:
        """Candidates per target pass."""
        return self.num_candidates / self.num_passes


def main() -> None:
    """Measure all pairs and print one row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--candidates", type=int, default=5, help="draft tokens per round in transformers' own path")
    parser.add_argument("--output", type=Path, help="JSON lines, one per pair")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    table = Table(title="output tokens per target pass", title_justify="left")
    for heading in ("pair", "cand./pass", "peer", "uag", "ratio"):
        table.add_column(heading, no_wrap=True)
    results = []
    console = Console()
    for pair, texts in _pairs(arguments.prompts):
        result = _compare(pair, texts, arguments.tokens, arguments.candidates)
        results.append(result)
        console.print(f"{result['pair']}: {result['uag']:.2f} against {result['transformers']:.2f}", style="dim")
        table.add_row(
            result["pair"],
            f"{result['candidates_per_pass']:.2f}",
            f"{result['transformers']:.2f}",
            f"{result['uag']:.2f}",
            f"{result['uag'] / result['transformers']:.3f}" + (" fewer" if result["has_fewer_candidates"] else ""),
        )
    console.print(table)
    total = sum(result["uag"] for result in results) / sum(result["transformers"] for result in results)
    lowest = min(result["uag"] / result["transformers"] for result in results)
    console.print(f"over all pairs: {total:.3f}, lowest pair: {lowest:.3f}", highlight=False)
    if arguments.output is not None:
        arguments.output.write_text("".join(json.dumps(result) + "\n" for result in results), encoding="utf-8")


def _pairs(num_prompts: int) -> Iterator[tuple[Pair, list[str]]]:
    yield load_pair(), [prompt.text for prompt in spread(heldout_prompts(), num_prompts)]
    models = Path(os.environ.get("UAG_SHARED", "../shared")) / "models"
    if not models.is_dir():
        print(f"no folder {models}: the stories pairs are left out")
        return
    for target, draft in itertools.permutations(STORIES, 2):
        yield load_pair(str((models / target).resolve()), str((models / draft).resolve())), _stories(num_prompts)


def _stories(num_prompts: int) -> list[str]:
    return [STORY_PROMPTS[index % len(STORY_PROMPTS)] for index in range(min(num_prompts, len(STORY_PROMPTS)))]


def _compare(pair: Pair, texts: list[str], num_tokens: int, num_draft_tokens: int) -> dict[str, Any]:
    name = " <- ".join(Path(part).name for part in (pair.target_name, pair.draft_name))
    inputs = [encode(pair, [text]) for text in texts]
    options = {"max_new_tokens": num_tokens, "do_sample": False}
    plain = [pair.target.generate(**item, **options) for item in inputs]

    draft = copy.deepcopy(pair.draft)
    draft.generation_config.num_assistant_tokens = num_draft_tokens
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    tokenizers = {"tokenizer": pair.target_tokenizer, "assistant_tokenizer": pair.draft_tokenizer}
    peer = _tally(
        pair, inputs, plain, name, partial(pair.target.generate, **options, assistant_model=draft, **tokenizers)
    )

    mean = peer.candidates_per_pass
    ours: list[Tally] = []
    length = max(1, math.floor(mean))
    for _ in range(MAX_TRIES):
        assistant = uag.Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer, num_candidate_tokens=length)
        ours.append(_tally(pair, inputs, plain, name, partial(assistant.generate, pair.target, **options)))
        if ours[-1].candidates_per_pass >= mean:
            break
        length += math.ceil(mean - ours[-1].candidates_per_pass)
    return {
        "pair": name,
        "candidates_per_pass": mean,
        "transformers": peer.tokens_per_pass,
        "uag": _read_between(ours, mean),
        "uag_points": [(tally.candidates_per_pass, tally.tokens_per_pass) for tally in ours],
        "has_fewer_candidates": ours[-1].candidates_per_pass < mean,
    }


def _tally(
    pair: Pair,
    inputs: list[dict[str, torch.Tensor]],
    plain: list[torch.Tensor],
    name: str,
    generate: Callable[..., torch.Tensor],
) -> Tally:
    tally = Tally()
    for item, expected in zip(inputs, plain, strict=True):
        width = item["input_ids"].shape[1]
        with PassCounter(pair.target) as counter:
            sequences = generate(**item)
        difference = first_difference(expected[:, width:].cpu(), sequences[:, width:].cpu())
        if difference is not None:
            raise SystemExit(f"{name}: {difference.describe(pair.target_tokenizer)}")
        tally.num_tokens += sequences.shape[1] - width
        tally.num_passes += len(counter.widths)
        tally.num_candidates += counter.num_candidate_tokens(width)
    return tally


def _read_between(ours: list[Tally], candidates_per_pass: float) -> float:
    """Read tokens per pass at a number of candidates per pass off the last two points, on the line through them."""
    high = ours[-1]
    low = ours[-2] if len(ours) > 1 else high
    span = high.candidates_per_pass - low.candidates_per_pass
    if high.candidates_per_pass <= candidates_per_pass or span <= 0:
        return high.tokens_per_pass
    share = max(0.0, (candidates_per_pass - low.candidates_per_pass) / span)
    return low.tokens_per_pass + share * (high.tokens_per_pass - low.tokens_per_pass)


if __name__ == "__main__":
    main()
