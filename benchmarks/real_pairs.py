"""Real pairs: every arm on HumanEval and Spec-Bench prompts, with every output compared.

    python benchmarks/real_pairs.py FOLDER [--pairs NAME ...] [--arms NAME ...] [--prompts 10] [--tokens 64]
                                    [--trials 3] [--threads 2] [--temperatures 0 0.7]
                                    [--humaneval FILE] [--spec-bench FILE] [--output rows.jsonl]

FOLDER has a folder for each model (qwen2.5-coder-1.5b, ...), and next to it NAME.gguf for the arms uag-gguf and
llama.cpp. HumanEval prompts are completed as they are; Spec-Bench's first turns go through the target's chat template
if it has one. The arms are those of `uag bench`, uag-gguf (uag with a GGUF draft, run by
llama.cpp) and two baselines whose output may differ: plain-bfloat16 and llama.cpp.

The lines below each table show how much of a speed-up comes from matrix products (the arm uag-no-draft) and how much
from drafting. --output appends a JSON line for each prompt and arm to a file.
"""

import argparse
import itertools
import json
import os
from pathlib import Path

import baselines
import common
import torch

from uag import Assistant, bench
from uag.errors import UagError
from uag.loading import Pair, load_draft, load_pair

PROMPTS = common.MODELS.parent / "prompts"
PAIRS = {
    "qwen1.5b<-smollm2": ("qwen2.5-coder-1.5b", "smollm2-135m"),
    "qwen0.5b<-smollm2": ("qwen2.5-coder-0.5b", "smollm2-135m"),
    "qwen1.5b<-qwen0.5b": ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"),
    "gemma<-smollm2": ("gemma3-270m", "smollm2-135m"),
    "smollm2<-gemma": ("smollm2-135m", "gemma3-270m"),
}
DEFAULT_ARMS = ("plain", "transformers", "prompt-lookup", "uag-no-draft", "uag", "uag-gguf")
ARMS = (*DEFAULT_ARMS, *baselines.NAMES)


def main() -> None:
    """Measure all pairs, and print a table for each pair and kind of prompts."""
    arguments = common.parse(_parser())
    torch.set_num_threads(arguments.threads)
    for name in arguments.pairs:
        folders = [arguments.folder / model for model in PAIRS[name]]
        missing = [str(folder) for folder in folders if not folder.is_dir()]
        if missing:
            print(f"{name}: skipped, no folder {' or '.join(missing)}", flush=True)
            continue
        _measure_pair(name, *folders, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = common.make_parser(__doc__, prompts=10, tokens=64, trials=3, threads=os.cpu_count() or 1)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS), metavar="NAME", help=", ".join(PAIRS))
    names = ", ".join(ARMS)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=DEFAULT_ARMS, metavar="NAME", help=names)
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.7], help="0 is greedy")
    parser.add_argument("--humaneval", type=Path, default=PROMPTS / "HumanEval.jsonl.gz")
    parser.add_argument("--spec-bench", type=Path, default=PROMPTS / "spec_bench.jsonl")
    return parser


def _measure_pair(name: str, target: Path, draft: Path, arguments: argparse.Namespace) -> None:
    pair = load_pair(str(target), str(draft), dtype="float32")
    arms = [arm for name in dict.fromkeys(("plain", *arguments.arms)) for arm in _arms(pair, target, draft, name)]
    suites = (("HumanEval", arguments.humaneval), ("Spec-Bench", arguments.spec_bench))
    for (suite, file), temperature in itertools.product(suites, arguments.temperatures):
        if not file.is_file():
            print(f"{suite}: skipped, no file {file}", flush=True)
            continue
        prompts = bench.spread(bench.read_prompts(file), arguments.prompts)
        options = bench.BenchOptions(
            temperature=temperature,
            max_new_tokens=arguments.tokens,
            num_trials=arguments.trials,
            is_chat=suite != "HumanEval" and bool(getattr(pair.target_tokenizer, "chat_template", None)),
        )
        records = list(bench.measure(pair, prompts, options, arms=arms))
        if arguments.output is not None:
            with arguments.output.open("a", encoding="utf-8") as output:
                output.writelines(json.dumps(record.to_dict(pair) | {"suite": suite}) + "\n" for record in records)
        kind = "greedy" if temperature == 0 else f"temperature {temperature:g}"
        form = "chat template" if options.is_chat else "raw"
        title = f"{name}, {suite} ({form}), {kind}: {len(prompts)} prompts x {arguments.tokens} tokens"
        common.report(bench.summary_table(bench.summarize(records), title), dtype=pair.target.dtype)


def _arms(pair: Pair, target: Path, draft: Path, name: str) -> list[bench.Arm]:
    """Return an arm; if it cannot run here, print why and return an empty list."""
    try:
        if name == "uag-gguf":
            gguf = load_draft(f"{draft}.gguf")
            return [bench.assisted(name, Assistant(gguf, tokenizer=pair.target_tokenizer), pair.target)]
        if name == "llama.cpp" and not Path(f"{target}.gguf").is_file():
            raise FileNotFoundError(f"no file {target}.gguf")
        if name in baselines.NAMES:
            return [baselines.build_baseline(pair.target, name, f"{target}.gguf")]
        return bench.build_arms(pair, bench.BenchOptions(arm_names=(name,)))
    except (UagError, OSError, ImportError) as error:
        print(f"{name}: skipped: {' '.join(str(error).split())}", flush=True)
        return []


if __name__ == "__main__":
    main()
