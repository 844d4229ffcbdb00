"""Run vLLM in separate processes: the same engine with and without uag, on held-out code."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from uag.bench import heldout_prompts, spread
from uag.loading import demo_folder, load_tokenizer

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}  # fmt: skip
TIMEOUT_S = 400
GREEDY = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True}
HARD: list[dict[str, Any]] = [GREEDY, GREEDY | {"repetition_penalty": 1.2}, GREEDY | {"logprobs": 1}]
TIGHT: dict[str, Any] = {"num_gpu_blocks_override": 20, "max_num_batched_tokens": 64, "enable_chunked_prefill": True}
"""A cache for about half of the requests, and prompts that take several steps to read."""

DEMO = (demo_folder("target"), demo_folder("draft"))


@cache
def prompts(target: str, num: int = 8) -> tuple[tuple[int, ...], ...]:
    """Held-out code; two prompts begin with the same text, so that prefix caching is used."""
    tokenizer = load_tokenizer(target)
    rows = [tokenizer(prompt.text)["input_ids"][:150] for prompt in spread(heldout_prompts(), num - 1)]
    rows.append(rows[0][:100] + rows[1][:20])
    return tuple(map(tuple, rows))


def drafting(draft: str, num_candidates: int = 5, **settings: Any) -> dict[str, Any]:
    """The engine options that enable uag, with a number of candidates that does not depend on the clock."""
    return {
        "speculative_config": {
            "method": "custom_class", "model": "uag.vllm.Proposer", "num_speculative_tokens": num_candidates,
        },
        "additional_config": {"uag": {"draft": draft, "min_confidence": 0.2, **settings}},
    }  # fmt: skip


def run(
    folder: Path, target: str, runs: list[dict[str, Any]], fix_sampling: bool = False, num: int = 8, **engine: Any
) -> dict[str, Any]:
    request, result = folder / "request.json", folder / "result.json"
    options = {
        "model": target, "dtype": "float32", "max_model_len": 512, "max_num_seqs": 8, "block_size": 32,
        "enforce_eager": True, "seed": 0, **engine,
    }  # fmt: skip
    request.write_text(
        json.dumps({"engine": options, "prompts": prompts(target)[:num], "runs": runs, "fix_sampling": fix_sampling})
    )
    command = [sys.executable, "-m", "tests.engines.vllm_worker", str(request), str(result)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    outcome: dict[str, Any] = json.loads(result.read_text())
    outcome["log"] = done.stdout + done.stderr
    return outcome


_plain: dict[str, dict[str, Any]] = {}


def plain(folder: Path, target: str) -> dict[str, Any]:
    """The output of vLLM without uag, with a large enough cache."""
    if target not in _plain:
        _plain[target] = run(folder, target, HARD)
    return _plain[target]
