"""Seconds to build a pair from two tokenizers, which every new process spends once, by stage.

    python benchmarks/start_up.py TARGET DRAFT [TARGET DRAFT ...] [--trials 3] [--output FILE]

TARGET and DRAFT are folders (or hub names) with a tokenizer; no model is loaded. "loading" is transformers' own; the
other stages are uag's: adapters with the bytes of each id, fingerprints, and the maps between the vocabularies. Every
trial loads the tokenizers again; medians are shown.
"""

import argparse
import statistics
import time
from collections.abc import Iterator

import common
from transformers import AutoTokenizer

from uag.adapters import from_tokenizer
from uag.projection import TokenizerPair

STAGES = ("loading", "adapters", "fingerprints", "maps")
COLUMNS = {"pair": "{pair}"} | {stage: f"{{{stage}:.2f}}" for stage in STAGES}


def main() -> None:
    """Measure all pairs and print one row for each."""
    parser = common.make_parser(__doc__, trials=3)
    parser.add_argument("tokenizers", nargs="+", help="TARGET DRAFT, for one or more pairs")
    arguments = common.parse(parser)
    if len(arguments.tokenizers) % 2:
        parser.error("pass a target and a draft for each pair")
    common.show(arguments, "seconds to build a pair from two tokenizers", COLUMNS, _measure(arguments))


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    folders = iter(arguments.tokenizers)
    for target, draft in zip(folders, folders, strict=True):
        trials = [start(target, draft) for _ in range(arguments.trials)]
        medians = {stage: statistics.median(trial[stage] for trial in trials) for stage in STAGES}
        yield {"pair": f"{target} <- {draft}", "dtype": "no model"} | medians


def start(target_name: str, draft_name: str) -> dict[str, float]:
    """Return the seconds of each stage of one start."""
    times = [time.perf_counter()]
    tokenizers = [AutoTokenizer.from_pretrained(name) for name in (target_name, draft_name)]
    times.append(time.perf_counter())
    adapters = [from_tokenizer(tokenizer) for tokenizer in tokenizers]
    for adapter in adapters:
        adapter.token_bytes  # noqa: B018 - computed when it is first read
    times.append(time.perf_counter())
    for adapter in adapters:
        adapter.fingerprint  # noqa: B018 - computed when it is first read
    times.append(time.perf_counter())
    TokenizerPair.of(*adapters)
    times.append(time.perf_counter())
    return {stage: end - begin for stage, begin, end in zip(STAGES, times[:-1], times[1:], strict=True)}


if __name__ == "__main__":
    main()
