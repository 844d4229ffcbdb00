"""Output tokens per target pass at equal numbers of candidates: uag versus transformers' cross-tokenizer path.

    python benchmarks/tokens_per_pass.py [--prompts 8] [--tokens 64] [--candidates 5] [--output FILE]
                                         [--target FOLDER --draft FOLDER [--prompt-file FILE]]

The pairs are the demo pair and, if UAG_SHARED (default ../shared) has them, the six ordered pairs of the three trained
stories models; or the pair of --target and --draft, on the bundled prompts or those of a file. For transformers, a hook
on the target counts passes and candidates; for uag, its statistics do. uag reads the prompt in a pass of its own, which
is not counted; transformers verifies its first candidates in that pass.

transformers fixes the number of DRAFT tokens per round (--candidates), whose number of target tokens varies. So its arm
runs first, and uag runs with more and more candidates until its passes verify as many on average; its figure is
interpolated between the last two runs. If uag never verifies as many, because the draft has nothing to propose, its
figure at its maximum is shown, marked "fewer".
"""

import argparse
import copy
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import common
import numpy as np

import uag
from uag.bench import Arm, assisted, read_prompts, spread
from uag.loading import Pair

MAX_TRIES = 5
COLUMNS = {
    "pair": "{pair}",
    "cand./pass": "{candidates_per_pass:.2f}",
    "peer": "{transformers:.2f}",
    "uag": "{uag:.2f}",
    "ratio": "{ratio:.3f}{mark}",
}


class Tally(NamedTuple):
    """Means of one arm per target pass, over all prompts."""

    num_candidates: float
    num_tokens: float


def main() -> None:
    """Measure all pairs and print one row for each."""
    parser = common.make_parser(__doc__, prompts=8, tokens=64, candidates=5)
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--prompt-file", type=Path, help="HumanEval or Spec-Bench file, or one in the same format")
    arguments = common.parse(parser)
    common.show(arguments, "output tokens per target pass", COLUMNS, _measure(arguments), notes=_overall)


def _overall(rows: list[common.Row]) -> Iterator[str]:
    total = sum(row["uag"] for row in rows) / sum(row["transformers"] for row in rows)
    yield f"over all pairs: {total:.3f}, lowest pair: {min(row['ratio'] for row in rows):.3f}"


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    target, draft, file = arguments.target, arguments.draft, arguments.prompt_file
    named = [common.Folders(f"{Path(target).name} <- {Path(draft).name}", target, draft)] if target and draft else []
    for folders in named or common.demo_and_stories():
        texts, pair = common.texts_for(folders, arguments.prompts), folders.load(dtype="float32")
        if file is not None:
            texts = [prompt.text for prompt in spread(read_prompts(file), arguments.prompts)]
        peer, ours = _compare(pair, texts, arguments.tokens, arguments.candidates)
        mean = peer.num_candidates
        reached = float(np.interp(mean, *zip(*ours[-2:], strict=True)))
        yield {
            "pair": folders.name,
            "candidates_per_pass": mean,
            "transformers": peer.num_tokens,
            "uag": reached,
            "ratio": reached / peer.num_tokens,
            "mark": " fewer" if ours[-1].num_candidates < mean else "",
            "uag_points": ours,
            "dtype": str(pair.target.dtype),
        }


def _compare(pair: Pair, texts: list[str], num_tokens: int, num_draft_tokens: int) -> tuple[Tally, list[Tally]]:
    """Return the figures of transformers' path, and those of uag with more and more candidates."""

    def tally(arm: Arm, num_without: int = 0) -> Tally:
        records = common.measure_equal(pair, [arm], texts, num_tokens, num_trials=1)
        records = [record for record in records if record.arm == arm.name]
        num_passes = sum(record.num_target_forwards - num_without for record in records)
        num_candidates = sum(record.num_candidate_tokens for record in records)
        return Tally(num_candidates / num_passes, sum(record.num_output_tokens for record in records) / num_passes)

    draft = copy.deepcopy(pair.draft)
    schedule = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
    draft.generation_config.update(num_assistant_tokens=num_draft_tokens, **schedule)
    tokenizers = {"tokenizer": pair.target_tokenizer, "assistant_tokenizer": pair.draft_tokenizer}
    peer = tally(Arm("transformers", partial(pair.target.generate, assistant_model=draft, **tokenizers)))

    ours: list[Tally] = []
    length = max(1, math.floor(peer.num_candidates))
    for _ in range(MAX_TRIES):
        assistant = uag.Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer, num_candidate_tokens=length)
        ours.append(tally(assisted("uag", assistant, pair.target), num_without=1))
        missing = peer.num_candidates - ours[-1].num_candidates
        if missing <= 0:
            break
        length += math.ceil(missing)
    return peer, ours


if __name__ == "__main__":
    main()
