"""Breakdown of the time of a call: search, draft passes, target passes, and the rest.

    python benchmarks/overhead.py [--tokens 128] [--trials 5] [--prompts 4] [--temperatures 0 1] [--candidates N]
                                  [--target NAME --draft NAME] [--output FILE]

Sums over greedy and sampled calls of the demo pair or another one, as uag's statistics report them; the first call on
each prompt is not counted. "rest" is everything that is neither drafting nor the target's passes.
"""

import argparse
from collections.abc import Iterator

import common
import torch

import uag
from uag.bench.passes import timed
from uag.loading import encode, load_pair

COLUMNS = {
    "T": "{temperature:g}",
    "tokens/s": "{tokens_per_s:.1f}",
    "rounds": "{num_rounds}",
    "search": "{search:.0%}",
    "draft passes": "{draft:.0%}",
    "target passes": "{target:.0%}",
    "rest": "{rest:.0%}",
    "rest per round": "{rest_per_round_ms:.2f} ms",
}


def main() -> None:
    """Measure every temperature."""
    parser = common.make_parser(__doc__, tokens=128, trials=5, prompts=4)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--candidates", type=int, help="per round; default: chosen by speed")
    parser.add_argument("--target")
    parser.add_argument("--draft")
    arguments = common.parse(parser)
    common.show(arguments, "shares of the time of a call", COLUMNS, _measure(arguments))


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    pair = load_pair(arguments.target, arguments.draft)
    assistant = uag.Assistant(
        pair.draft, pair.draft_tokenizer, pair.target_tokenizer, num_candidate_tokens=arguments.candidates
    )
    for temperature in arguments.temperatures:
        options = {"max_new_tokens": arguments.tokens, "do_sample": temperature > 0}
        options |= {"temperature": temperature, "top_k": 0} if temperature else {}
        total_s = search_s = draft_s = target_s = 0.0
        num_rounds = num_tokens = 0
        for text in common.python_texts(arguments.prompts):
            for trial in range(arguments.trials + 1):
                torch.manual_seed(trial)
                inputs = encode(pair, [text])
                _, seconds = timed(pair.target.device, assistant.generate, model=pair.target, **inputs, **options)
                if not trial:
                    continue
                stats = assistant.stats
                total_s, target_s = total_s + seconds, target_s + stats.target_s
                draft_s, search_s = draft_s + stats.draft_forward_s, search_s + stats.draft_s - stats.draft_forward_s
                num_rounds, num_tokens = num_rounds + stats.num_rounds, num_tokens + stats.num_output_tokens
        parts = {"search": search_s / total_s, "draft": draft_s / total_s, "target": target_s / total_s}
        rest = 1 - sum(parts.values())
        row = {"temperature": temperature, "num_rounds": num_rounds, "tokens_per_s": num_tokens / total_s}
        row |= {"rest": rest, "rest_per_round_ms": 1e3 * rest * total_s / num_rounds, "dtype": str(pair.target.dtype)}
        yield row | parts


if __name__ == "__main__":
    main()
