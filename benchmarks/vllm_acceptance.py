"""Accepted tokens per target step inside vLLM: uag beside vLLM's own drafting and beside re-tokenized text.

    python benchmarks/vllm_acceptance.py [--prompts 8] [--tokens 48] [--candidates 5] [--temperature 0] [--output FILE]

Arms, each in a process of its own, in one setting: plain vLLM; uag drafting to the limit (`uag`) and while a request's
candidates are all accepted with a probability of 0.2 (`uag-0.2`); vLLM's own drafting between vocabularies, by shared
vocabulary strings (`shared-strings`); a proposer that hands the draft the decoded text and re-encodes what it writes
(`text`). Greedy outputs are compared with plain vLLM's before anything is counted. Counts are vLLM's own metrics.

The pairs are the demo pair and, where UAG_SHARED (default ../shared) has the pair trained on Python code, that pair and
both of its halves crossed with the demo pair's. Needs vLLM (docs/vllm.md says which builds were tried).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from uag.bench import heldout_prompts, spread
from uag.loading import Pair, demo_folder, load_model, load_tokenizer

ARMS = ("plain", "uag", "uag-0.2", "shared-strings", "text")
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
MAX_LENGTH = 1024


class TextProposer:
    """Drafts by way of text: decode the context, let the draft continue it, encode the whole, propose what is new.

    A proposer for vLLM's `custom_class` method; the draft is read from `additional_config["text"]`.
    """

    def __init__(self, vllm_config: Any) -> None:
        self.num_candidates = vllm_config.speculative_config.num_speculative_tokens
        self.target_tokenizer = load_tokenizer(vllm_config.model_config.tokenizer)
        self.draft_name = vllm_config.additional_config["text"]["draft"]

    def load_model(self, _target_model: Any) -> None:
        """Load the draft."""
        self.draft = load_model(self.draft_name, dtype="float32", device="cpu")
        self.draft_tokenizer = load_tokenizer(self.draft_name)

    def propose(self, sampled_token_ids: Any, num_tokens: Any, token_ids: Any, slot_mappings: Any = None) -> Any:
        """Return candidates for every request."""
        del slot_mappings
        return [
            self.candidates(token_ids[row, : num_tokens[row]]) if sampled else []
            for row, sampled in enumerate(sampled_token_ids)
        ]

    @classmethod
    def of(cls, pair: Pair, num_candidates: int) -> "TextProposer":
        """Return the same proposer without vLLM."""
        made = cls.__new__(cls)
        made.num_candidates = num_candidates
        made.target_tokenizer, made.draft_tokenizer = pair.target_tokenizer, pair.draft_tokenizer
        made.draft = pair.draft
        return made

    @torch.inference_mode()
    def candidates(self, context: np.ndarray) -> list[int]:
        """Return candidates for one request."""
        text = self.target_tokenizer.decode(context.tolist(), skip_special_tokens=False)
        inputs = self.draft_tokenizer(text, return_tensors="pt")
        width = inputs["input_ids"].shape[1]
        # Draft tokens may be shorter than the target's: twice as many fill the candidates, and the rest is cut off.
        written = self.draft.generate(**inputs, max_new_tokens=2 * self.num_candidates, do_sample=False)[0, width:]
        new = self.draft_tokenizer.decode(written, skip_special_tokens=True)
        encode = self.target_tokenizer.encode
        before, after = (encode(part, add_special_tokens=False) for part in (text, text + new))
        if after[: len(before)] == before:
            return after[len(before) :][: self.num_candidates]
        return encode(new, add_special_tokens=False)[: self.num_candidates]


def main() -> None:
    """Measure all pairs and print one row for each pair and arm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--candidates", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--pairs", nargs="+", help="names of pairs to measure, as printed; default all")
    parser.add_argument("--output", type=Path, help="JSON lines, one per pair and arm")
    parser.add_argument("--arm", nargs=3, metavar=("ARM", "TARGET", "DRAFT"), help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.arm:
        arguments.result.write_text(json.dumps(_measure(*arguments.arm, arguments)), encoding="utf-8")
        return

    table = Table(title="accepted tokens per target step and request", title_justify="left")
    for heading in ("pair", "arm", "drafted", "accepted", "tokens/step", "ratio to shared-strings", "equal"):
        table.add_column(heading, no_wrap=True)
    lines = []
    for name, target, draft in pairs():
        if arguments.pairs and name not in arguments.pairs:
            continue
        results = {arm: _run_arm(arm, target, draft, arguments) for arm in arguments.arms}
        base = results.get("shared-strings", {}).get("accepted_per_step")
        for arm, result in results.items():
            is_equal = None if "plain" not in results else result["ids"] == results["plain"]["ids"]
            if arguments.temperature == 0 and is_equal is False:
                raise SystemExit(f"{name}: the output of {arm} differs from plain vLLM's")
            lines.append({"pair": name, "arm": arm, "temperature": arguments.temperature, "equal": is_equal} | result)
            del lines[-1]["ids"]
            if arm != "plain":
                accepted = result["accepted_per_step"]
                table.add_row(
                    name, arm, f"{result['drafted_per_step']:.2f}", f"{accepted:.2f}", f"{1 + accepted:.2f}",
                    f"{accepted / base:.2f}" if base else "", "" if arguments.temperature else str(is_equal),
                )  # fmt: skip
    Console(width=120).print(table)
    if arguments.output is not None:
        arguments.output.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def pairs() -> list[tuple[str, str, str]]:
    """Return (name, target folder, draft folder) of each pair."""
    models = Path(os.environ.get("UAG_SHARED", "../shared")).resolve() / "models"
    targets = {"demo": demo_folder("target")}
    drafts = {"demo": demo_folder("draft")}
    if (models / "py-target").is_dir():
        targets["py"], drafts["py"] = str(models / "py-target"), str(models / "py-draft")
    return [(f"{t}<-{d}", targets[t], drafts[d]) for t in targets for d in drafts]


def _run_arm(arm: str, target: str, draft: str, arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        options = [
            f"--{name}={getattr(arguments, name)}" for name in ("prompts", "tokens", "candidates", "temperature")
        ]
        command = [sys.executable, __file__, "--arm", arm, target, draft, f"--result={result}", *options]
        path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
        with log.open("w") as output:
            code = subprocess.run(
                command, env=os.environ | ENVIRONMENT | {"PYTHONPATH": path}, stdout=output, stderr=output, check=False
            ).returncode
        if code:
            raise SystemExit(f"{arm} failed on {target}:\n{log.read_text()[-4000:]}")
        measured: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        print(f"{Path(target).name} <- {Path(draft).name} {arm}: {measured['accepted_per_step']:.3f}", flush=True)
        return measured


def _measure(arm: str, target: str, draft: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one arm in this process."""
    import vllm
    from vllm import LLM, SamplingParams

    if arguments.temperature:
        mend_cpu_sampling()
    custom = {"method": "custom_class", "num_speculative_tokens": arguments.candidates}
    options: dict[str, Any] = {
        "plain": {},
        "uag": {
            "speculative_config": custom | {"model": "uag.vllm.Proposer"},
            "additional_config": {"uag": {"draft": draft, "min_confidence": 0.0}},
        },
        "uag-0.2": {
            "speculative_config": custom | {"model": "uag.vllm.Proposer"},
            "additional_config": {"uag": {"draft": draft, "min_confidence": 0.2}},
        },
        "shared-strings": {
            "speculative_config": {
                "method": "draft_model", "model": draft, "use_heterogeneous_vocab": True,
                "num_speculative_tokens": arguments.candidates,
            }
        },
        "text": {
            "speculative_config": custom | {"model": "vllm_acceptance.TextProposer"},
            "additional_config": {"text": {"draft": draft}},
        },
    }[arm]  # fmt: skip
    llm = LLM(
        target, dtype="float32", max_model_len=MAX_LENGTH, max_num_seqs=8, block_size=32, enforce_eager=True,
        disable_log_stats=False, seed=0, **options,
    )  # fmt: skip
    texts = [prompt.text for prompt in spread(heldout_prompts(), arguments.prompts)]
    common = {"temperature": arguments.temperature, "max_tokens": arguments.tokens, "ignore_eos": True}
    # A seed for each, or all would be sampled with the same numbers.
    sampling = [SamplingParams(**common, seed=index) for index in range(len(texts))]
    outputs = llm.generate(texts, sampling, use_tqdm=False)
    counts = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    num_steps = counts.get("vllm:spec_decode_num_drafts", 0)
    num_drafted = counts.get("vllm:spec_decode_num_draft_tokens", 0)
    num_accepted = counts.get("vllm:spec_decode_num_accepted_tokens", 0)
    ids = [list(output.outputs[0].token_ids) for output in outputs]
    # vLLM counts only steps that had candidates; what was written beside accepted tokens tells of the others.
    num_target_steps = max(num_steps, sum(len(row) for row in ids) - num_accepted - len(ids))
    return {
        "ids": ids, "vllm": vllm.__version__, "candidates": arguments.candidates, "drafts": num_steps,
        "draft_tokens": num_drafted, "accepted_tokens": num_accepted, "target_steps": num_target_steps,
        "accepted_per_step": num_accepted / num_target_steps, "drafted_per_step": num_drafted / num_target_steps,
    }  # fmt: skip


def mend_cpu_sampling() -> None:
    """Replace the one function that leaves its result unwritten on CPU builds (vLLM issue 55005), here only."""
    import vllm.platforms
    from vllm.v1.sample import rejection_sampler

    if not vllm.platforms.current_platform.is_cpu():
        return

    def expand(x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
        sizes = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        expanded = torch.repeat_interleave(x, sizes, output_size=num_tokens)
        return expanded.masked_fill(expanded == replace_from, replace_to)

    rejection_sampler.expand_batch_to_tokens = expand


if __name__ == "__main__":
    main()
