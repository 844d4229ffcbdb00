"""The programs in examples/: minimal.py, distill.py, custom_generate/ and lm_eval_harness.py."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import uag
from tests.conftest import ROOT
from tests.support.calls import pair, seeded
from tests.support.grids import covering
from tests.support.served import ENVIRONMENT
from tests.support.trained import demo
from uag.bench import heldout_prompts, spread
from uag.loading import demo_folder

MINIMAL = runpy.run_path(str(ROOT / "examples" / "minimal.py"))
NUM_TOKENS = 14
SAMPLED = {"do_sample": True, "temperature": 0.7, "top_k": 0}


@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_minimal_equals_plain_decoding_and_uag(options: dict[str, Any]) -> None:
    pair = demo()
    draft = MINIMAL["Draft"](pair.draft, pair.draft_tokenizer, pair.target_tokenizer)
    assistant = uag.Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer, prompt_lookup=False)
    inputs = pair.target_tokenizer(heldout_prompts()[0].text[:200], return_tensors="pt")
    prompt_ids, arguments = inputs["input_ids"][0].tolist(), {**inputs, **options, "max_new_tokens": NUM_TOKENS}
    plain = seeded(0, pair.target.generate, **arguments)
    state = torch.get_rng_state()
    size = MINIMAL["NUM_CANDIDATES"]
    assert seeded(0, assistant.generate, pair.target, **arguments, num_assistant_tokens=size).equal(plain)
    num_uag_passes = assistant.stats.num_target_forwards - 1  # its pass over the prompt has no candidates
    own = pair.target, draft, prompt_ids, NUM_TOKENS, options.get("temperature", 0.0)
    output, num_passes = seeded(0, MINIMAL["generate"], *own)
    assert prompt_ids + output == plain[0].tolist()
    assert torch.equal(torch.get_rng_state(), state)
    assert num_passes < 2 * NUM_TOKENS * 0.75, "the draft helps"
    assert abs(num_passes - num_uag_passes) <= 0.2 * num_uag_passes, "its projection is as good as uag's"


def test_minimal_ends_at_eos_as_plain_decoding_does(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = demo()
    inputs = pair.target_tokenizer(MINIMAL["PROMPT"], return_tensors="pt")
    prompt_ids = inputs["input_ids"][0].tolist()
    free = pair.target.generate(**inputs, max_new_tokens=NUM_TOKENS)[0, len(prompt_ids) :].tolist()
    eos_id = free[NUM_TOKENS // 2]
    monkeypatch.setattr(pair.target.generation_config, "eos_token_id", eos_id)
    plain = pair.target.generate(**inputs, max_new_tokens=NUM_TOKENS)[0, len(prompt_ids) :].tolist()
    draft = MINIMAL["Draft"](pair.draft, pair.draft_tokenizer, pair.target_tokenizer)
    output, _ = MINIMAL["generate"](pair.target, draft, prompt_ids, NUM_TOKENS)
    assert output == plain
    assert output[-1] == eos_id
    assert len(output) < NUM_TOKENS


DISTILL = str(ROOT / "examples" / "distill.py")


def test_distilled_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("accelerate")
    draft, output, prompts = tmp_path / "draft", tmp_path / "output", tmp_path / "prompts.txt"
    tokenizer = AutoTokenizer.from_pretrained(demo_folder("draft"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        bos_token_id=1, eos_token_id=1, max_position_embeddings=512, dtype="bfloat16",
    )  # fmt: skip
    LlamaForCausalLM(config).bfloat16().save_pretrained(draft)
    tokenizer.save_pretrained(draft)
    texts = sorted((prompt.text.split("\n")[0] for prompt in heldout_prompts()), key=len)[-10:]
    prompts.write_text("\n".join(texts), encoding="utf-8")
    flags = "--tokens 16 --temperatures 0 1 --epochs 6 --batch-size 5"
    command = ["distill.py", demo_folder("target"), *map(str, (draft, prompts, output)), *flags.split()]
    monkeypatch.setattr("sys.argv", command)
    runpy.run_path(DISTILL, run_name="__main__")
    shown = capsys.readouterr().out
    figures = re.search(r"after 1 held-out prompts: ([\d.]+)% of the candidates before, ([\d.]+)% after", shown)
    assert figures is not None
    assert float(figures[1]) < float(figures[2]) < 100
    model = AutoModelForCausalLM.from_pretrained(output)
    assert model.dtype == torch.bfloat16  # as before
    assert model.config.use_cache
    assert AutoTokenizer.from_pretrained(output).get_vocab() == tokenizer.get_vocab()


def test_rows_are_draft_ids_with_a_loss_after_the_prompt() -> None:
    _, tokenizer, draft, draft_tokenizer = pair()
    prompt, output = (tokenizer(text)["input_ids"] for text in ("one two three four", " five six seven one two"))
    encode_rows = runpy.run_path(DISTILL)["encode_rows"]
    (row,) = encode_rows([(prompt, output), (prompt, [])], draft, draft_tokenizer, tokenizer)
    assert draft_tokenizer.decode(row["input_ids"]) == tokenizer.decode([*prompt, *output])
    start = row["labels"].count(-100)
    assert 0 < start < len(row["input_ids"])
    assert tokenizer.decode(prompt).startswith(draft_tokenizer.decode(row["input_ids"][:start]))
    assert row["labels"][start:] == row["input_ids"][start:]


FOLDER = str(ROOT / "examples" / "custom_generate")


def test_beams_through_the_folder_equal_those_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    pair = uag.load_pair()
    inputs = pair.target_tokenizer(["def read_lines(path):\n"], return_tensors="pt")
    given: dict[str, Any] = {**inputs, "max_new_tokens": 8, "num_beams": 2, "do_sample": False}
    options = {"custom_generate": FOLDER, "trust_remote_code": True, "assistant_model": pair.draft}
    found = pair.target.generate(**given, **options)
    assert found.tolist() == pair.target.generate(**given).tolist()


@covering("has_draft, do_sample", (False, True), (False, True), strength=1)
def test_the_folder_is_plain(has_draft: bool, do_sample: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    pair = demo()
    inputs = pair.target_tokenizer(["def read_lines(path):\n"], return_tensors="pt")
    given: dict[str, Any] = {**inputs, "max_new_tokens": 16, "do_sample": do_sample}
    expected = seeded(3, pair.target.generate, **given)
    state = torch.get_rng_state()
    models = {"assistant_model": pair.draft, "assistant_tokenizer": pair.draft_tokenizer} if has_draft else {}
    options = {"custom_generate": FOLDER, "trust_remote_code": True, "tokenizer": pair.target_tokenizer}
    found = seeded(3, pair.target.generate, **given, **options, **models)
    assert found.tolist() == expected.tolist()
    assert torch.equal(torch.get_rng_state(), state)
    stats = uag.last_stats(pair.target)
    assert stats is not None
    assert stats.strategy == ("cross-tokenizer" if has_draft else "prompt-lookup")


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
    pytest.importorskip("lm_eval", reason="uag[eval] is not installed")
    prompts = tmp_path / "prompts.jsonl"
    rows = [json.dumps({"prompt": prompt.text}) for prompt in spread(heldout_prompts(), 4)]
    prompts.write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "continue_code.yaml").write_text(TASK.format(file=prompts))
    target = f"pretrained={demo_folder('target')},dtype=float32"
    expected = evaluate(tmp_path, "hf", target)
    assert len(expected) == 4
    assert evaluate(tmp_path, "hf-uag", f"{target},draft={demo_folder('draft')}") == expected
