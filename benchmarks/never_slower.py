"""Never slower: pairs and prompts on which drafting without a back-off loses time.

    python benchmarks/never_slower.py [--tokens 256] [--trials 5] [--prompts 4] [--pairs TARGET<-DRAFT ...]
                                      [--output FILE]

Arms are interleaved in one process, and all outputs are compared. The table shows medians over prompts: plain
decoding's time divided by that of uag without a draft, whose own passes are faster, and this one's time divided by
that with the draft. Cases: a draft with random weights, a draft as large as the target, prompts of random characters;
and, if UAG_SHARED (default ../shared) has it, a trained pair that rarely agrees. With --pairs, only drafts of random
weights for the models in these folders.
"""

import argparse
import copy
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

import common

import uag
from uag.bench import assisted, speed
from uag.loading import Pair, load_pair

COLUMNS = {
    "case": "{case}",
    "no draft beside plain": "{no_draft_median:.2f}",
    "draft beside no draft": "{draft_median:.2f} (worst {draft_worst:.2f})",
    "draft and lookup beside no draft": "{uag_median:.2f} (worst {uag_worst:.2f})",
}


def main() -> None:
    """Measure every case and print one row for each."""
    parser = common.make_parser(__doc__, tokens=256, trials=5, prompts=4)
    parser.add_argument("--pairs", nargs="+", default=[], help="folders of models: TARGET<-DRAFT")
    arguments = common.parse(parser)
    common.show(arguments, "relative speed", COLUMNS, _measure(arguments))


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    for name, pair, texts in _cases(arguments.prompts, arguments.pairs):
        drafts = (pair.draft, pair.draft_tokenizer, pair.target_tokenizer)
        arms = [
            assisted("no_draft", uag.Assistant(None, None, pair.target_tokenizer, prompt_lookup=False), pair.target),
            assisted("draft", uag.Assistant(*drafts, prompt_lookup=False), pair.target),
            assisted("uag", uag.Assistant(*drafts), pair.target),
        ]
        records = common.measure_equal(pair, arms, texts, arguments.tokens, arguments.trials)
        row: common.Row = {"case": name, "dtype": str(pair.target.dtype)}
        for arm, reference in (("no_draft", "plain"), ("draft", "no_draft"), ("uag", "no_draft")):
            ours, theirs = ([record for record in records if record.arm == name] for name in (arm, reference))
            speeds = [speed([of], [to]) or 0.0 for of, to in zip(ours, theirs, strict=True)]  # one for each prompt
            row |= {f"{arm}_speeds": speeds, f"{arm}_median": statistics.median(speeds), f"{arm}_worst": min(speeds)}
        yield row


def _cases(num_prompts: int, pairs: Sequence[str]) -> Iterator[tuple[str, Pair, list[str]]]:
    texts = common.python_texts(num_prompts)
    for folders in map(common.folders_of, pairs):
        yield f"{folders.name}, draft of random weights", _with_random_weights(folders.load()), texts
    if pairs:
        return
    pair = load_pair()
    rng = random.Random(0)
    garbage = ["".join(chr(rng.randrange(33, 1_000)) for _ in range(60)) for _ in range(num_prompts)]
    yield "demo pair, useless prompts", pair, garbage
    yield "draft of random weights", _with_random_weights(pair), texts
    large = replace(pair, draft=copy.deepcopy(pair.target), draft_tokenizer=pair.target_tokenizer)
    yield "draft as large as the target", large, texts
    for folders in common.demo_and_python(["py<-py"]):
        yield "py-target <- py-draft", folders.load(), texts


def _with_random_weights(pair: Pair) -> Pair:
    draft = type(pair.draft)(pair.draft.config).to(pair.draft.device, pair.draft.dtype).eval()
    return replace(pair, draft=draft)


if __name__ == "__main__":
    main()
