"""Inside a real vLLM: the same ids with and without uag, whatever the scheduler does. Run by `.ci/engines`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, find_shared
from uag.bench import heldout_prompts, spread
from uag.loading import demo_folder, load_tokenizer

pytestmark = pytest.mark.engines
pytest.importorskip("vllm", reason="vLLM is not installed", exc_type=ImportError)

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}  # fmt: skip
TIMEOUT_S = 400
GREEDY = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True}
HARD: list[dict[str, Any]] = [GREEDY, GREEDY | {"repetition_penalty": 1.2}, GREEDY | {"logprobs": 1}]
TIGHT: dict[str, Any] = {"num_gpu_blocks_override": 20, "max_num_batched_tokens": 64, "enable_chunked_prefill": True}
"""Room for about half of what the requests need, and prompts that take several steps to read."""

DEMO = (demo_folder("target"), demo_folder("draft"))


def python_pairs() -> list[Any]:
    """The demo pair and, where shared data has it, the pair trained on Python code, alone and crossed with it."""
    shared = find_shared()
    pairs = [pytest.param(DEMO, id="demo")]
    if shared is not None and (shared / "models" / "py-target").is_dir():
        target, draft = (str((shared / "models" / name).resolve()) for name in ("py-target", "py-draft"))
        pairs += [
            pytest.param((target, draft), id="py", marks=pytest.mark.slow),
            pytest.param((target, DEMO[1]), id="py-demo", marks=pytest.mark.slow),
            pytest.param((DEMO[0], draft), id="demo-py", marks=pytest.mark.slow),
        ]
    return pairs


@cache
def prompts(target: str, num: int = 8) -> tuple[tuple[int, ...], ...]:
    """Held-out code; two begin with the same text, so that prefix caching has something to find."""
    tokenizer = load_tokenizer(target)
    rows = [tokenizer(prompt.text)["input_ids"][:150] for prompt in spread(heldout_prompts(), num - 1)]
    rows.append(rows[0][:100] + rows[1][:20])
    return tuple(map(tuple, rows))


def drafting(draft: str, num_candidates: int = 5, **settings: Any) -> dict[str, Any]:
    """The engine options that turn uag on."""
    return {
        "speculative_config": {
            "method": "custom_class", "model": "uag.vllm.Proposer", "num_speculative_tokens": num_candidates,
        },
        "additional_config": {"uag": {"draft": draft, **settings}},
    }  # fmt: skip


def run(
    folder: Path, target: str, runs: list[dict[str, Any]], mend: bool = False, num: int = 8, **engine: Any
) -> dict[str, Any]:
    """Run one engine in a process of its own, on the first `num` prompts."""
    request, result = folder / "request.json", folder / "result.json"
    options = {
        "model": target, "dtype": "float32", "max_model_len": 512, "max_num_seqs": 8, "block_size": 32,
        "enforce_eager": True, "seed": 0, **engine,
    }  # fmt: skip
    request.write_text(json.dumps({"engine": options, "prompts": prompts(target)[:num], "runs": runs, "mend": mend}))
    command = [sys.executable, "-m", "tests.engines.vllm_worker", str(request), str(result)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    found: dict[str, Any] = json.loads(result.read_text())
    found["log"] = done.stdout + done.stderr
    return found


_plain: dict[str, dict[str, Any]] = {}


def plain(folder: Path, target: str) -> dict[str, Any]:
    """What vLLM writes by itself, with all the room it wants."""
    if target not in _plain:
        _plain[target] = run(folder, target, HARD)
    return _plain[target]


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for mine, theirs in zip(found["runs"], expected["runs"], strict=True):
        assert [row["ids"] for row in mine] == [row["ids"] for row in theirs]
        for row, other in zip(mine, theirs, strict=True):
            assert row["logprobs"] == pytest.approx(other["logprobs"], abs=1e-3)


def accepted(found: dict[str, Any]) -> tuple[int, int]:
    counts = found["counts"]
    names = ("vllm:spec_decode_num_accepted_tokens", "vllm:spec_decode_num_drafts")
    return counts[names[0]], counts[names[1]]


@pytest.mark.parametrize("pair", python_pairs())
def test_the_same_ids_under_preemption_and_chunked_prefill(pair: tuple[str, str], tmp_path: Path) -> None:
    target, draft = pair
    expected = plain(tmp_path, target)
    found = run(tmp_path, target, HARD, **drafting(draft), **TIGHT)
    assert_same(found, expected)
    assert found["counts"]["vllm:num_preemptions"] >= 3
    num_accepted, num_drafts = accepted(found)
    assert num_accepted > 0.2 * num_drafts
    assert "uag drafts with" in found["log"]
    assert "uag could not draft" not in found["log"]


@pytest.mark.parametrize("pair", python_pairs())
def test_the_same_ids_with_two_tensor_parallel_ranks(pair: tuple[str, str], tmp_path: Path) -> None:
    """Sums over ranks round otherwise than one rank does: the plain run has two ranks as well."""
    target, draft = pair
    expected = run(tmp_path, target, HARD[:1], tensor_parallel_size=2)
    found = run(tmp_path, target, HARD[:1], tensor_parallel_size=2, **drafting(draft))
    assert_same(found, expected)
    assert accepted(found)[0] > 0
    assert found["log"].count("uag drafts with") == 1


def test_wrong_settings_end_the_start_with_a_clear_message(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="unknown settings: 'drafts'"):
        run(tmp_path, DEMO[0], [GREEDY], **drafting(DEMO[1], drafts=2))


@pytest.mark.slow
def test_errors_while_drafting_do_not_end_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that fails at every pass: vLLM goes on by itself."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    tmp_path.joinpath("sitecustomize.py").write_text(
        "import uag.open_draft\n"
        "def fails(*arguments, **options): raise RuntimeError('made to fail')\n"
        "uag.open_draft.OpenDraft.feed = fails\n"
    )
    found = run(tmp_path, DEMO[0], HARD, **drafting(DEMO[1]))
    monkeypatch.delenv("PYTHONPATH")
    assert_same(found, plain(tmp_path, DEMO[0]))
    assert found["log"].count("uag could not draft") == 1


@pytest.mark.slow
def test_sampling_keeps_the_targets_law(tmp_path: Path) -> None:
    """First tokens of many samples of one prompt, with and without uag: as far apart as two plain runs are."""
    options = {"temperature": 1.0, "max_tokens": 3, "n": 1500, "ignore_eos": True}
    laws = []
    for engine, seed in (({}, 1), ({}, 2), (drafting(DEMO[1], min_confidence=0.0), 3)):
        found = run(tmp_path, DEMO[0], [options | {"seed": seed}], mend=True, num=1, max_num_seqs=64, **engine)
        rows = [row["ids"] for row in found["runs"][0]]
        laws.append([Counter(row[position] for row in rows) for position in range(3)])
    for position in range(3):
        noise, ours = (_variation(laws[0][position], law[position]) for law in laws[1:])
        assert ours < 1.5 * noise + 0.02, (position, ours, noise)


def _variation(first: Counter[int], second: Counter[int]) -> float:
    return sum(abs(first[i] / first.total() - second[i] / second.total()) for i in {*first, *second}) / 2
