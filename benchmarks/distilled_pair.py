"""What distillation gives: the trained Python pair of UAG_SHARED/models, two models that were trained apart.

    python benchmarks/distilled_pair.py FOLDER [--texts 8000] [--epochs 3] [--prompts 8000] [--threads 2]
                                        [--temperature 0 0.7] [--tokens 96] [--trials 3] [--output FILE]

The target continues random places of the Python standard library (the modules that the demo pair never saw are left
out), the draft is trained on these texts, and both are measured on held-out prompts of those modules: acceptance on
what the target writes, and the speed of a whole call relative to plain decoding, equality first. A run that was stopped
continues. The draft is written to FOLDER.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import common
import torch

import uag
from uag.bench import heldout_prompts, spread
from uag.bench.arms import Arm, assisted
from uag.distill import Writing, distill
from uag.loading import load_pair, load_tokenizer

sys.path.append(str(Path(__file__).resolve().parents[1]))
from training.library import split_library

COLUMNS = {
    "draft": "{draft}",
    "agreement": "{agreement}",
    "tokens/pass at 4": "{tokens_per_pass}",
    "T": "{temperature:g}",
    "beside plain": "{speed:.2f}",
    "tokens/pass of the call": "{call_tokens_per_pass:.2f}",
    "minutes": "{minutes:.1f}",
}
PROMPT_TOKENS = 48


def main() -> None:
    """Distil, then measure."""
    parser = common.make_parser(__doc__, epochs=3, prompts=8000, threads=2, tokens=96, trials=3)
    parser.add_argument("folder", type=Path, help="for the draft; a folder that was begun goes on")
    parser.add_argument("--texts", type=int, default=8000, help="that the target writes, default 8000")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.7])
    arguments = common.parse(parser)
    torch.set_num_threads(arguments.threads)
    if not (common.MODELS / "py-target").is_dir():
        raise SystemExit(f"no models in {common.MODELS}: set UAG_SHARED")
    common.show(arguments, "py-target <- py-draft, before and after distillation", COLUMNS, _measure(arguments))


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    target, draft = str(common.MODELS / "py-target"), str(common.MODELS / "py-draft")
    began = time.monotonic()
    result = distill(
        target,
        draft,
        arguments.folder,
        prompts=library_prompts(target, arguments.prompts),
        held_out=[prompt.text for prompt in spread(heldout_prompts(), 32)],
        writing=Writing(
            temperatures=tuple(arguments.temperature),
            num_texts=arguments.texts,
            max_new_tokens=arguments.tokens,
            batch_size=128,
        ),
        training={"num_train_epochs": arguments.epochs},
        patience=0,
        on_progress=_Lines(),
    )
    minutes = (time.monotonic() - began) / 60
    for name, folder, acceptances in (("before", draft, result.before), ("after", result.folder, result.after)):
        for acceptance in acceptances:
            found = {"agreement": f"{acceptance.agreement}", "tokens_per_pass": f"{acceptance.tokens_per_pass}"}
            found |= {"temperature": acceptance.temperature, "draft": name, "dtype": "float32"}
            if name == "after":
                found |= {"minutes": minutes, "texts": result.num_texts}
            yield found | ({} if acceptance.temperature else _speed(target, folder, arguments.trials))


def library_prompts(target: str, num_prompts: int) -> list[str]:
    """Return pieces of library modules, each of about `PROMPT_TOKENS` tokens of the target, from random lines on."""
    tokenizer, rng = load_tokenizer(target), random.Random(0)
    modules = [module.text.splitlines(keepends=True) for module in split_library()[0]]
    weights = [len(lines) for lines in modules]
    found = []
    while len(found) < num_prompts:
        lines = rng.choices(modules, weights)[0]
        start = rng.randrange(len(lines))
        ids = tokenizer("".join(lines[start : start + 40]))["input_ids"][:PROMPT_TOKENS]
        if len(ids) == PROMPT_TOKENS:
            found.append(tokenizer.decode(ids))
    return found


def _speed(target: str, draft: str, num_trials: int) -> common.Row:
    """Time greedy calls on held-out prompts, plain and with uag in turns."""
    pair = load_pair(target, draft)
    assistant = uag.Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer)
    options = {"max_new_tokens": 64, "do_sample": False}
    seconds: dict[str, list[float]] = {"plain": [], "uag": []}
    num_tokens = num_passes = 0
    for trial in range(num_trials + 1):
        totals = {"plain": 0.0, "uag": 0.0}
        for text in common.python_texts(8):
            plain = common.run_equal(pair, Arm("plain", pair.target.generate), text, options, None)
            ours = common.run_equal(pair, assisted("uag", assistant, pair.target), text, options, plain)
            totals = {"plain": totals["plain"] + plain.seconds, "uag": totals["uag"] + ours.seconds}
            num_tokens += ours.num_output_tokens
            num_passes += ours.num_target_forwards
        if trial:  # the first warms up
            for name, total in totals.items():
                seconds[name].append(total)
    plain_s, uag_s = (statistics.median(values) for values in seconds.values())
    return {"speed": plain_s / uag_s, "call_tokens_per_pass": num_tokens / num_passes}


class _Lines:
    """A line a minute."""

    def __init__(self) -> None:
        self._shown = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        if time.monotonic() - self._shown > 60 or done == total:
            self._shown = time.monotonic()
            print(f"{stage}: {done} of {total}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
