"""Half precision: how many outputs differ from plain decoding's, and what `exact_half_precision` costs.

    python benchmarks/half_precision.py [--prompts 24] [--tokens 64] [--trials 1] [--dtypes bfloat16 float16]
                                        [--temperatures 0 1] [--arms NAME ...] [--target NAME --draft NAME]
                                        [--output FILE]

Arms take turns in one process: plain `generate`, transformers' own cross-tokenizer path and its prompt lookup, uag with
its number of candidates chosen or fixed, each also with `exact_half_precision=True`. A sampled call has a seed of its
own for each prompt, the same for all arms; transformers' own sampling draws in another order, so it is left out there.

    differ      outputs that are not plain decoding's, id for id
    speed       plain decoding's time over the arm's: the median over prompts of the median over trials
    passes      target passes, all prompts together
"""

import argparse
import statistics
from collections.abc import Iterator

import common

import uag
from uag.bench.arms import NUM_FIXED_CANDIDATE_TOKENS, Arm, assisted, build_arms, run_arm
from uag.bench.equality import first_difference
from uag.loading import Pair, encode, load_pair

PEERS = ("transformers", "prompt-lookup")
OURS = {
    "uag": {},
    "uag, exact": {"exact_half_precision": True},
    "uag-fixed": {"num_candidate_tokens": NUM_FIXED_CANDIDATE_TOKENS},
    "uag-fixed, exact": {"num_candidate_tokens": NUM_FIXED_CANDIDATE_TOKENS, "exact_half_precision": True},
}
COLUMNS = {
    "arm": "{arm}",
    "type": "{dtype}",
    "T": "{temperature:g}",
    "differ": "{num_different} of {num_prompts}",
    "speed": "{speed:.2f}",
    "passes": "{num_passes}",
    "accepted": "{num_accepted}",
    "fall-backs": "{num_fall_backs}",
}


def main() -> None:
    """Measure every type and temperature."""
    parser = common.make_parser(__doc__, prompts=24, tokens=64, trials=1)
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float16"], choices=["bfloat16", "float16"])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--arms", nargs="+", default=[*PEERS, *OURS], choices=[*PEERS, *OURS])
    parser.add_argument("--target")
    parser.add_argument("--draft")
    arguments = common.parse(parser)
    common.show(arguments, "outputs that differ from plain decoding's", COLUMNS, _measure(arguments))


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    for dtype in arguments.dtypes:
        pair = load_pair(arguments.target, arguments.draft, dtype=dtype)
        for temperature in arguments.temperatures:
            names = [name for name in arguments.arms if not (name in PEERS and temperature)]
            arms = [*build_arms(pair, ["plain"]), *(_arm(pair, name) for name in names)]
            yield from _compare(pair, arms, arguments, temperature)


def _arm(pair: Pair, name: str) -> Arm:
    if name in PEERS:
        return build_arms(pair, [name])[0]
    assistant = uag.Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer, **OURS[name])
    return assisted(name, assistant, pair.target)


def _compare(pair: Pair, arms: list[Arm], arguments: argparse.Namespace, temperature: float) -> Iterator[common.Row]:
    options: common.Row = {"max_new_tokens": arguments.tokens, "min_new_tokens": arguments.tokens, "do_sample": False}
    if temperature:
        options |= {"do_sample": True, "temperature": temperature, "top_k": 0}
    runs = {arm.name: [] for arm in arms}
    seconds = {arm.name: [] for arm in arms}
    texts = common.python_texts(arguments.prompts)
    for seed, text in enumerate([texts[0], *texts]):  # the first warms up
        own = {arm.name: [] for arm in arms}
        for _ in range(arguments.trials):
            for arm in arms:
                own[arm.name].append(run_arm(arm, pair, encode(pair, [text]), options, seed))
        if seed:
            for name, trials in own.items():
                runs[name].append(trials[0])
                seconds[name].append(statistics.median(run.seconds for run in trials))
    for arm in arms:
        pairs = list(zip(runs["plain"], runs[arm.name], strict=True))
        yield {
            "arm": arm.name,
            "dtype": str(pair.target.dtype).removeprefix("torch."),
            "temperature": temperature,
            "num_prompts": len(texts),
            "num_different": sum(first_difference(a.output_ids, b.output_ids) is not None for a, b in pairs),
            "speed": statistics.median(p / s for p, s in zip(seconds["plain"], seconds[arm.name], strict=True)),
            "num_passes": sum(run.num_target_forwards for run in runs[arm.name]),
            "num_accepted": sum(run.num_accepted_tokens for run in runs[arm.name]),
            "num_fall_backs": sum(len(run.stats.fallbacks) for run in runs[arm.name] if run.stats is not None),
        }


if __name__ == "__main__":
    main()
