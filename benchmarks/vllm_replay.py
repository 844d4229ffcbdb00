"""Proposers for vLLM led along outputs that the target has written already: no engine, and the same text for each.

    OMP_NUM_THREADS=1 python benchmarks/vllm_replay.py [--prompts 40] [--tokens 48] [--candidates 5] [--no-text]
    OMP_NUM_THREADS=1 python benchmarks/vllm_replay.py --temperature 1 --samples 2 --confidences 0 0.2

The target's outputs are computed once. Then a proposer is asked as vLLM would ask it: what agrees with the output
counts as accepted, and one more token is taken from the output. For sampled outputs this is vLLM's rejection sampling
of certain candidates, on the same samples for every proposer. Proposers are the drafter of `uag.vllm` at several
`min_confidence` and re-tokenized text; the pairs are those of `vllm_acceptance.py`.

`speed` is what uag's figures come to beside plain decoding, where a draft pass costs the given share of a target step
and nothing else costs anything: `(1 + accepted) / (1 + share x passes)`, the geometric mean over pairs.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from vllm_acceptance import TextProposer, pairs

from uag.adapters import from_tokenizer
from uag.bench import heldout_prompts, spread
from uag.loading import Pair, load_pair
from uag.vllm.drafter import RequestDrafter

SHARES = (0.1, 0.05, 0.03, 0.02, 0.01)
Output = tuple[list[int], list[int]]
"""Ids of a prompt, and of what the target wrote behind it."""


def main() -> None:
    """Measure every pair with every proposer and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--candidates", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--samples", type=int, default=1, help="of each prompt")
    parser.add_argument("--confidences", type=float, nargs="+", default=[0, 0.05, 0.1, 0.2, 0.3, 0.4])
    parser.add_argument("--no-text", action="store_true", help="leave out re-tokenized text, which takes longest")
    parser.add_argument("--pairs", nargs="+", help="names of pairs to measure, as printed; default all")
    arguments = parser.parse_args()

    counts = Table(title="per target step", title_justify="left")
    for heading in ("pair", "proposer", "drafted", "accepted", "draft passes"):
        counts.add_column(heading, justify="right")
    measured: dict[float, list[tuple[float, float]]] = {confidence: [] for confidence in arguments.confidences}
    for name, target, draft in pairs():
        if arguments.pairs and name not in arguments.pairs:
            continue
        pair = load_pair(target, draft, dtype="float32", device="cpu")
        outputs = list(written(pair, arguments))
        for confidence in arguments.confidences:
            drafter = drafter_of(pair, confidence)
            steps, drafted, accepted = replay(drafter_call(drafter), outputs, arguments.candidates)
            passes = drafter.stats.num_draft_forwards / steps
            measured[confidence].append((accepted / steps, passes))
            counts.add_row(
                name, f"uag {confidence:g}", f"{drafted / steps:.2f}", f"{accepted / steps:.3f}", f"{passes:.2f}"
            )
        if not arguments.no_text:
            proposer = TextProposer.of(pair, arguments.candidates)
            steps, drafted, accepted = replay(lambda ids, _, own=proposer: own.candidates(ids), outputs, 0)
            counts.add_row(name, "text", f"{drafted / steps:.2f}", f"{accepted / steps:.3f}", "")
    speeds = Table(title="speed of uag by what a draft pass costs, in target steps", title_justify="left")
    for heading in ("min_confidence", *map(str, SHARES)):
        speeds.add_column(heading, justify="right")
    for confidence, found in measured.items():
        rates = [statistics.geometric_mean((1 + a) / (1 + share * p) for a, p in found) for share in SHARES]
        speeds.add_row(f"{confidence:g}", *(f"{rate:.2f}" for rate in rates))
    console = Console(width=100)
    console.print(counts)
    console.print(speeds)


def written(pair: Pair, arguments: argparse.Namespace) -> Iterator[Output]:
    """Yield what the target writes for each prompt."""
    how: dict[str, object] = {"do_sample": False}
    if arguments.temperature:
        how = {"do_sample": True, "temperature": arguments.temperature, "top_k": 0, "top_p": 1.0}
    torch.manual_seed(0)
    for prompt in spread(heldout_prompts(), arguments.prompts):
        inputs = pair.target_tokenizer(prompt.text, return_tensors="pt")
        size = inputs["input_ids"].shape[1]
        rows = pair.target.generate(
            **inputs, **how, max_new_tokens=arguments.tokens, num_return_sequences=arguments.samples,
            eos_token_id=None, pad_token_id=0,
        ).tolist()  # fmt: skip
        for row in rows:
            yield row[:size], row[size:]


def drafter_of(pair: Pair, min_confidence: float) -> RequestDrafter:
    """Return what drafts inside `uag.vllm.Proposer`."""
    return RequestDrafter(
        pair.draft,
        from_tokenizer(pair.target_tokenizer),
        from_tokenizer(pair.draft_tokenizer),
        vocab_size=pair.target.config.vocab_size,
        min_confidence=min_confidence,
    )


def drafter_call(drafter: RequestDrafter) -> Callable[[np.ndarray, int], list[int]]:
    """Return the drafter as a function of one request's ids and its limit."""
    return lambda ids, limit: [proposal.target_id for proposal in drafter.propose([ids], [limit])[0]]


def replay(
    propose: Callable[[np.ndarray, int], list[int]], outputs: Sequence[Output], limit: int
) -> tuple[int, int, int]:
    """Return target steps behind the prompts' own, candidates, and accepted candidates."""
    num_steps = num_candidates = num_accepted = 0
    for prompt_ids, output_ids in outputs:
        position = 1  # the pass over the prompt gives the first token
        while position < len(output_ids):
            candidates = propose(np.array(prompt_ids + output_ids[:position]), limit)
            num_steps += 1
            num_candidates += len(candidates)
            for candidate, target_id in zip(candidates, output_ids[position:], strict=False):
                if candidate != target_id:
                    break
                num_accepted += 1
                position += 1
            position += 1
    return num_steps, num_candidates, num_accepted


if __name__ == "__main__":
    main()
