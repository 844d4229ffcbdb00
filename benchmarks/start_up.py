"""Seconds from two tokenizers to the first candidate, stage by stage: what every new process pays once for its pair.

    python benchmarks/start_up.py TARGET DRAFT [TARGET DRAFT ...] [--trials 3] [--output FILE]

TARGET and DRAFT are folders (or hub names) with a tokenizer; no model is loaded. "loading" is transformers' own, all
else is ours: adapters (with the bytes of each id), fingerprints, maps, and the first candidate, greedy and sampled, of
a draft whose law is made up (Zipf's over ids in a random order, which asks about more tokens than a model does). Each
trial loads anew, the medians are shown.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import common
import numpy as np
from transformers import AutoTokenizer

from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.drafting.models.cross_row import CrossRow
from uag.projection import Projection, Scoring, Search, TokenizerPair
from uag.projection.vocabulary import build_vocabulary_map
from uag.proposal import Warpers

COLUMNS = {
    "pair": "{pair}",
    "loading": "{loading_s:.2f}",
    "adapters": "{adapters_s:.2f}",
    "fingerprints": "{fingerprints_s:.2f}",
    "maps": "{maps_s:.2f}",
    "greedy": "{greedy_s:.2f}",
    "sampled": "{sampled_s:.2f}",
    "ours": "{ours_s:.2f}",
}
STAGES = ("loading_s", "adapters_s", "fingerprints_s", "maps_s", "greedy_s", "sampled_s")
PROMPT = "def add(first, second):\n    return"

T = TypeVar("T")


def main() -> None:
    """Measure all pairs and print one row for each."""
    parser = common.make_parser(__doc__, trials=3)
    parser.add_argument("tokenizers", nargs="+", help="TARGET DRAFT, as many pairs as wanted")
    arguments = common.parse(parser)
    if len(arguments.tokenizers) % 2:
        parser.error("give a target and a draft for each pair")
    common.show(arguments, "seconds from two tokenizers to a candidate", COLUMNS, _measure(arguments))


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    folders = iter(arguments.tokenizers)
    for target, draft in zip(folders, folders, strict=True):
        trials = [_start(target, draft) for _ in range(arguments.trials)]
        seconds = {stage: statistics.median(trial[stage] for trial in trials) for stage in STAGES}
        ours_s = statistics.median(sum(trial.values()) - trial["loading_s"] for trial in trials)
        yield {"pair": f"{target} <- {draft}", **seconds, "ours_s": ours_s, "dtype": "no model"}


def _start(target_name: str, draft_name: str) -> dict[str, float]:
    """Return the seconds of each stage of one start."""
    stages = iter(STAGES)
    seconds: dict[str, float] = {}

    def timed(call: Callable[[], T]) -> T:
        began = time.perf_counter()
        result = call()
        seconds[next(stages)] = time.perf_counter() - began
        return result

    names = (target_name, draft_name)
    tokenizers = timed(lambda: [AutoTokenizer.from_pretrained(name) for name in names])
    target, draft = timed(lambda: [_adapter(tokenizer) for tokenizer in tokenizers])
    timed(lambda: (target.fingerprint, draft.fingerprint))
    # Not `TokenizerPair.of`, which keeps maps: each trial is to build its own.
    pair = TokenizerPair(target, draft, timed(lambda: build_vocabulary_map(target, draft)))
    for temperature in (0.0, 0.7):
        timed(lambda temperature=temperature: first_candidate(pair, temperature))
    return seconds


def _adapter(tokenizer: Any) -> TokenizerAdapter:
    adapter = from_tokenizer(tokenizer)
    adapter.token_bytes  # noqa: B018 - worked out when it is first read
    return adapter


def first_candidate(pair: TokenizerPair, temperature: float, seed: int = 0) -> int | None:
    """Return the target token that the search chooses first, None for none; 0 is greedy."""
    rng = np.random.default_rng(seed)
    law = rng.permutation(1 / np.arange(1, pair.draft.vocab_size + 1)).astype(np.float32)
    law /= law.sum()
    noise = rng.exponential(size=pair.target.vocab_size)
    warpers = Warpers(temperature or 1.0)
    scoring = Scoring(pair.target.vocab_size, warpers, noise.astype(np.float32) if temperature else None)
    row = CrossRow(Projection(pair), pair.target.encode_continuation(PROMPT.encode()), ())
    return _answer(row, row.projection.next_target(row, scoring), law)


def _answer(row: CrossRow, search: Search, law: np.ndarray) -> int | None:
    """Answer the passes that a search asks for with one law, and return its choice."""
    try:
        while True:
            feed = next(search)
            del row.path[feed.keep :]
            for node in feed.nodes:
                row.path.append(node)
                node.probs = law
    except StopIteration as end:
        return None if end.value is None else int(end.value.target_id)


if __name__ == "__main__":
    main()
