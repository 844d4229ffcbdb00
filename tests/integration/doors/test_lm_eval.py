"""examples/lm_eval_harness.py: the answers of the model type `hf`, on a task of local files."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.support.served import ENVIRONMENT
from uag.bench import heldout_prompts, spread
from uag.loading import demo_folder

pytest.importorskip("lm_eval", reason="uag[eval] is not installed")

TASK = """
task: continue_code
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "pass"
generation_kwargs:
  until: ["\\n\\n"]
  max_gen_toks: 24
  do_sample: false
metric_list:
  - metric: exact_match
"""


def evaluate(folder: Path, model: str, model_args: str) -> list[Any]:
    arguments = ["run", "--model", model, "--model_args", model_args, "--tasks", "continue_code", "--device", "cpu"]
    paths = ["--include_path", str(folder), "--output_path", str(folder / model), "--log_samples"]
    script = str(ROOT / "examples" / "lm_eval_harness.py")
    finished = subprocess.run(
        [sys.executable, script, *arguments, *paths],
        env=ENVIRONMENT | {"HF_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert finished.returncode == 0, finished.stderr
    (samples,) = (folder / model).rglob("samples_*.jsonl")
    return [json.loads(line)["resps"] for line in samples.read_text().splitlines()]


def test_the_answers_are_those_of_hf(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    rows = [json.dumps({"prompt": prompt.text}) for prompt in spread(heldout_prompts(), 4)]
    prompts.write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "continue_code.yaml").write_text(TASK.format(file=prompts))
    target = f"pretrained={demo_folder('target')},dtype=float32"
    expected = evaluate(tmp_path, "hf", target)
    assert len(expected) == 4
    assert evaluate(tmp_path, "hf-uag", f"{target},draft={demo_folder('draft')}") == expected
