"""The gain from distillation for the trained Python pair of UAG_SHARED, whose models were trained independently.

    python benchmarks/distilled_pair.py FOLDER [--texts 8000] [--epochs 3] [--prompts 8000] [--threads 2]
                                        [--temperatures 0 0.7] [--tokens 96] [--trials 3] [--output FILE]

The target continues random excerpts of the Python standard library (without the modules of the held-out prompts), and
the draft is trained on these texts. Both drafts are then measured on held-out prompts: acceptance, and the speed of
greedy calls relative to plain decoding. The draft and the texts are written to FOLDER.
"""

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import common
import torch

import uag
from uag.bench import ProgressLines, assisted, summarize
from uag.distill import Writing, distill
from uag.loading import load_pair, load_tokenizer

sys.path.append(str(Path(__file__).resolve().parents[1]))
from training.library import split_library

COLUMNS = {
    "draft": "{draft}",
    "T": "{temperature:g}",
    "agreement": "{agreement}",
    "speed": "{speed:.2f}",
    "tokens/pass of the call": "{call_tokens_per_pass:.2f}",
}
PROMPT_TOKENS = 48


def main() -> None:
    """Distill, then measure."""
    parser = common.make_parser(__doc__, epochs=3, prompts=8000, texts=8000, threads=2, tokens=96, trials=3)
    parser.add_argument("folder", type=Path, help="folder for the draft and the texts")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7])
    arguments = common.parse(parser)
    torch.set_num_threads(arguments.threads)
    if not (common.MODELS / "py-target").is_dir():
        raise SystemExit(f"no models in {common.MODELS}: set UAG_SHARED")
    common.show(arguments, "py-target <- py-draft, before and after distillation", COLUMNS, _measure(arguments))


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    target, draft = str(common.MODELS / "py-target"), str(common.MODELS / "py-draft")
    progress = {"writing": ProgressLines("writing", "texts"), "training": ProgressLines("training", "steps")}
    result = distill(
        target,
        draft,
        arguments.folder,
        prompts=_library_prompts(target, arguments.prompts),
        held_out=common.python_texts(32),
        writing=Writing(tuple(arguments.temperatures), arguments.texts, arguments.tokens, batch_size=128),
        training={"num_train_epochs": arguments.epochs},
        patience=0,
        on_progress=lambda stage, done, total: progress[stage](done, total),
    )
    for name, folder, acceptances in (("before", draft, result.before), ("after", result.folder, result.after)):
        for acceptance in acceptances:
            row = {"draft": name, "temperature": acceptance.temperature, "dtype": "float32"}
            row |= {"agreement": f"{acceptance.agreement}"}
            yield row | ({} if acceptance.temperature else _speed(target, folder, arguments.trials))


def _library_prompts(target: str, num_prompts: int) -> list[str]:
    """Return excerpts of library modules, each of about `PROMPT_TOKENS` target tokens."""
    tokenizer, rng = load_tokenizer(target), random.Random(0)
    modules = [module.text.splitlines(keepends=True) for module in split_library()[0]]
    prompts: list[str] = []
    while len(prompts) < num_prompts:
        lines = rng.choices(modules, [len(lines) for lines in modules])[0]
        start = rng.randrange(len(lines))
        ids = tokenizer("".join(lines[start : start + 40]))["input_ids"][:PROMPT_TOKENS]
        if len(ids) == PROMPT_TOKENS:
            prompts.append(tokenizer.decode(ids))
    return prompts


def _speed(target: str, draft: str, num_trials: int) -> common.Row:
    """Time greedy calls on held-out prompts."""
    pair = load_pair(target, draft)
    assistant = uag.Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer)
    arms = [assisted("uag", assistant, pair.target)]
    summary = summarize(common.measure_equal(pair, arms, common.python_texts(8), 64, num_trials))[1]
    return {"speed": summary.speed_up, "call_tokens_per_pass": summary.tokens_per_target_pass}


if __name__ == "__main__":
    main()
