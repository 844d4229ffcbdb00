"""Never slower: pairs and prompts on which a careless assistant loses time.

    python benchmarks/never_slower.py [--tokens 256] [--trials 5] [--prompts 4] [--output FILE]

Arms alternate in one process and all outputs are compared; printed are medians of plain time over uag's time, wall
clock, each prompt by itself. Cases: a draft of random weights, a draft as large as the target, prompts of random bytes;
and, where UAG_SHARED (default ../shared) has it, a trained pair that agrees little.
"""

import argparse
import copy
import random
import statistics
from collections.abc import Iterator
from dataclasses import replace

import common

import uag
from uag.bench.arms import Arm, assisted
from uag.loading import Pair, load_pair

COLUMNS = {
    "case": "{case}",
    "uag, no prompt lookup": "{alone_median:.2f} (worst {alone_worst:.2f})",
    "uag": "{uag_median:.2f} (worst {uag_worst:.2f})",
}


def main() -> None:
    """Measure every case and print one row for each."""
    arguments = common.parse(common.make_parser(__doc__, tokens=256, trials=5, prompts=4))
    common.show(arguments, "speed against plain generate", COLUMNS, _measure(arguments))


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    for name, pair, texts in _cases(arguments.prompts):
        row: common.Row = {"case": name, "dtype": str(pair.target.dtype)}
        for arm, speeds in _compare(pair, texts, arguments.tokens, arguments.trials).items():
            row |= {f"{arm}_speeds": speeds, f"{arm}_median": statistics.median(speeds), f"{arm}_worst": min(speeds)}
        yield row


def _cases(num_prompts: int) -> Iterator[tuple[str, Pair, list[str]]]:
    pair, texts = load_pair(), common.python_texts(num_prompts)
    noise = random.Random(0)
    garbage = ["".join(chr(noise.randrange(33, 1_000)) for _ in range(60)) for _ in range(num_prompts)]
    yield "demo pair, useless prompts", pair, garbage
    draft = type(pair.draft)(pair.draft.config).to(pair.draft.device, pair.draft.dtype).eval()
    yield "draft of random weights", replace(pair, draft=draft), texts
    large = replace(pair, draft=copy.deepcopy(pair.target), draft_tokenizer=pair.target_tokenizer)
    yield "draft as large as the target", large, texts
    for folders in common.demo_and_python(["py<-py"]):
        yield "py-target <- py-draft", folders.load(), texts


def _compare(pair: Pair, texts: list[str], num_tokens: int, num_trials: int) -> dict[str, list[float]]:
    """Return each arm's speed over plain's on every prompt."""
    drafts = (pair.draft, pair.draft_tokenizer, pair.target_tokenizer)
    assistants = {"alone": uag.Assistant(*drafts, prompt_lookup=False), "uag": uag.Assistant(*drafts)}
    arms = {"plain": Arm("plain", pair.target.generate)} | {
        name: assisted(name, assistant, pair.target) for name, assistant in assistants.items()
    }
    options = {"max_new_tokens": num_tokens, "min_new_tokens": num_tokens, "do_sample": False}
    speeds: dict[str, list[float]] = {name: [] for name in assistants}
    for text in texts:
        plain = common.run_equal(pair, arms["plain"], text, options, None)
        seconds: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(num_trials + 1):
            for name, arm in arms.items():
                seconds[name].append(common.run_equal(pair, arm, text, options, plain).seconds)
        median_s = {name: statistics.median(own[1:]) for name, own in seconds.items()}  # the first warms up
        for name, own in speeds.items():
            own.append(median_s["plain"] / median_s[name])
    return speeds


if __name__ == "__main__":
    main()
