"""Draft passes and draft tokens per candidate, with one continuation per pass and with several.

    python benchmarks/draft_passes.py [--prompts 8] [--tokens 96] [--candidates 4] [--temperatures 1 0.7 0]
                                      [--pairs "demo<-demo" "py<-py" TARGET:DRAFT ...] [--output FILE]

The script counts and does not time: it makes the same call twice with the same seed, once without alternative
continuations in its passes. Candidates, acceptance and output must be equal, otherwise the script stops. The prompt's
own pass is not counted.
"""

import argparse
from collections.abc import Iterator
from unittest.mock import patch

import common
import torch

import uag
from uag.loading import Pair
from uag.stats import Stats

COLUMNS = {
    "pair": "{pair}",
    "T": "{temperature:g}",
    "accepted": "{accepted:.3f}",
    "one per pass": "{one:.2f}",
    "several": "{several:.2f}",
    "draft tokens": "{tokens_one:.2f} -> {tokens_several:.2f}",
}


def main() -> None:
    """Count for all pairs and temperatures."""
    parser = common.make_parser(__doc__, prompts=8, tokens=96, candidates=4)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 0.7, 0.0])
    parser.add_argument("--pairs", nargs="*", help="'py<-py', or TARGET:DRAFT of the stories models; all by default")
    arguments = common.parse(parser)
    common.show(arguments, "draft passes per candidate", COLUMNS, _measure(arguments))


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    known = {folders.name: folders for folders in (*common.demo_and_python(), *common.demo_and_stories()[1:])}
    for name in arguments.pairs or known:
        pair, texts = known[name].load(), common.texts_for(known[name], arguments.prompts)
        pair.target.generation_config.eos_token_id = None  # every call generates the same number of tokens
        for temperature in arguments.temperatures:
            one = _count(pair, texts, arguments, temperature, is_alone=True)
            several = _count(pair, texts, arguments, temperature, is_alone=False)
            if [call[0] for call in one] != [call[0] for call in several]:
                raise SystemExit(f"{name}: alternative continuations changed the candidates or the output")
            yield {"pair": name, "temperature": temperature, "dtype": str(pair.target.dtype)} | _figures(one, several)


def _count(
    pair: Pair, texts: list[str], arguments: argparse.Namespace, temperature: float, *, is_alone: bool
) -> list[tuple[object, Stats]]:
    assistant = uag.Assistant(
        pair.draft,
        pair.draft_tokenizer,
        pair.target_tokenizer,
        num_candidate_tokens=arguments.candidates,
        prompt_lookup=False,
    )
    options = {"max_new_tokens": arguments.tokens, "do_sample": temperature > 0}
    options |= {"temperature": temperature, "top_k": 0} if temperature > 0 else {}
    calls: list[tuple[object, Stats]] = []
    with patch("uag.drafting.models.torch_draft._MOST_SIDE", 0) if is_alone else patch.dict({}):
        for seed, text in enumerate(texts):
            inputs = pair.target_tokenizer(text, return_tensors="pt").to(pair.target.device)
            torch.manual_seed(seed)
            output = assistant.generate(pair.target, inputs["input_ids"], **options)
            stats = assistant.stats
            calls.append(((output.tolist(), stats.candidates_by_position, stats.accepted_by_position), stats))
    return calls


def _figures(one: list[tuple[object, Stats]], several: list[tuple[object, Stats]]) -> common.Row:
    num = sum(stats.num_candidate_tokens for _, stats in one)
    return {
        "num_candidates": num,
        "accepted": sum(stats.num_accepted_tokens for _, stats in one) / num,
        "one": sum(stats.num_draft_forwards - 1 for _, stats in one) / num,
        "several": sum(stats.num_draft_forwards - 1 for _, stats in several) / num,
        "tokens_one": sum(stats.num_draft_tokens for _, stats in one) / num,
        "tokens_several": sum(stats.num_draft_tokens for _, stats in several) / num,
    }


if __name__ == "__main__":
    main()
