"""Distillation on the demo target and a new draft: improves the draft, reuses texts, and rejects misuse."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import uag
from tests.support.served import run_cli
from uag.bench import heldout_prompts
from uag.distill import Result, distill
from uag.distill.writing import Text, write
from uag.errors import OptionError
from uag.loading import demo_folder, encode, load_pair

pytest.importorskip("accelerate")

TARGET = demo_folder("target")
NUM_PROMPTS = 8
WRITING = {"temperatures": (0.0, 1.0), "max_new_tokens": 16, "texts_at_once": 4}
QUARTERS = {"eval_steps": 0.25, "save_steps": 0.25}
TRAINING = {"num_train_epochs": 4, "per_device_train_batch_size": 4, "learning_rate": 0.01}


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a new one-layer model with the demo draft's tokenizer, in bfloat16."""
    folder = tmp_path_factory.mktemp("draft")
    tokenizer = AutoTokenizer.from_pretrained(demo_folder("draft"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        bos_token_id=1, eos_token_id=1, max_position_embeddings=512, dtype="bfloat16",
    )  # fmt: skip
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    short = sorted((prompt.text for prompt in heldout_prompts()), key=len)[:NUM_PROMPTS]
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in short), encoding="utf-8")
    return path


def distilled(draft: str, prompts: Path, output: Path, **options: Any) -> Result:
    settings: dict[str, Any] = WRITING | {"training": TRAINING | QUARTERS, "patience": 0} | options
    return distill(TARGET, draft, output, prompts=prompts, **settings)


@pytest.fixture(scope="module")
def undisturbed(draft: str, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return distilled(draft, prompts, tmp_path_factory.mktemp("whole"))


def test_a_distilled_draft_is_better_and_ready_to_use(undisturbed: Result, draft: str) -> None:
    folder = Path(undisturbed.folder)
    assert undisturbed.is_better
    assert undisturbed.verdict.startswith("Better: ")
    assert undisturbed.num_texts == 2 * (NUM_PROMPTS - 1)
    assert undisturbed.before < undisturbed.after < 1
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16  # as before
    assert model.config.use_cache
    assert len({path.stat().st_mode for path in folder.iterdir() if path.is_file()}) == 1
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == AutoTokenizer.from_pretrained(draft).get_vocab()
    pair = load_pair(None, str(folder))
    inputs = encode(pair, ["import os\n"])
    assistant = uag.Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer, num_candidate_tokens=3)
    expected = pair.target.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert torch.equal(assistant.generate(pair.target, **inputs, max_new_tokens=12, do_sample=False), expected)
    assert assistant.stats.num_candidate_tokens > 0


def test_texts_are_reused_and_those_that_a_killed_run_left_incomplete_are_not(
    undisturbed: Result, draft: str, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (texts,) = Path(undisturbed.folder).glob("texts-*.jsonl")
    lines = texts.read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / texts.name).write_text("".join(lines[:9]) + lines[9][:20], encoding="utf-8")
    written: list[Text] = []

    def noted(target: Any, due: list[Text], max_new_tokens: int) -> list[Text]:
        written.extend(due)
        return write(target, due, max_new_tokens)

    monkeypatch.setattr("uag.distill.run.write", noted)
    again = distilled(draft, prompts, tmp_path)
    assert len(written) == len(lines) - 9
    lengths = [len(text.prompt_ids) for text in written]
    assert lengths == sorted(lengths, reverse=True)
    assert sorted((tmp_path / texts.name).read_text(encoding="utf-8").splitlines(keepends=True)) == sorted(lines)
    assert (again.before, again.after) == (undisturbed.before, undisturbed.after)


def test_texts_written_elsewhere_are_enough(
    undisturbed: Result, draft: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The target's weights are not needed, only its tokenizer and config."""
    target = tmp_path / "target"
    target.mkdir()
    for path in Path(TARGET).iterdir():
        if path.suffix == ".json" and "index" not in path.name:
            shutil.copy(path, target)
    file = tmp_path / "texts.jsonl"
    (written,) = Path(undisturbed.folder).glob("texts-*.jsonl")
    rows = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
    texts = [row["text"] for row in rows[:3]] * 4  # so that the held-out text was learned
    lines = [{"prompt": "import os\n", "text": text} for text in texts]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    flags = ["--target", str(target), "--draft", draft, "--texts", str(file), "--output", str(tmp_path / "out")]
    flags += ["--epochs", "8", "--batch-size", "4", "--learning-rate", "0.01"]
    code, out, err = run_cli(capsys, "distill", *flags)
    assert code == 0
    assert "Better: " in out
    assert f"trained on {len(texts) - 1} texts" in out
    assert "eval_accuracy" in err
    assert not list((tmp_path / "out").glob("texts-*"))


def test_training_ends_where_acceptance_no_longer_grows_and_the_verdict_says_so(
    undisturbed: Result, draft: str, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (texts,) = Path(undisturbed.folder).glob("texts-*.jsonl")
    shutil.copy(texts, tmp_path)
    training = TRAINING | {"num_train_epochs": 20, "learning_rate": 1e-12, "eval_steps": 0.05, "save_steps": 0.05}
    result = distilled(draft, prompts, tmp_path, training=training, patience=2)
    # The first evaluation of the training is the best, and two more bring no gain; one before it and one after it.
    assert capsys.readouterr().err.count("eval_accuracy") == 5
    assert not result.is_better
    assert result.verdict.startswith("NOT better: ")


@pytest.mark.parametrize(
    ("draft_name", "message"),
    [
        ("some/where/draft.Q4_0.gguf", "distill the float model, then convert it"),
        ("owner/repo:draft.gguf", "is a GGUF file and cannot be trained"),
    ],
)
def test_a_gguf_draft_is_refused_at_once(draft_name: str, message: str, prompts: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        distilled(draft_name, prompts, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_with_gguf_in_its_name_is_not_a_gguf_file(prompts: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no model folder"):
        distilled(str(tmp_path / "my.gguf-source" / "float"), prompts, tmp_path / "out")


def test_texts_and_prompts_that_teach_nothing_are_refused(draft: str, tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(f'{{"prompt": "{prompt}", "text": ""}}\n' for prompt in "abc"), encoding="utf-8")
    with pytest.raises(OptionError, match="there is nothing to learn"):
        distill(TARGET, draft, tmp_path / "out", texts=file)
    with pytest.raises(OptionError, match="pass either prompts"):
        distill(TARGET, draft, tmp_path / "out", texts=file, prompts=["a", "b"])

    with pytest.raises(OptionError, match="every prompt is also held out"):
        distill(TARGET, draft, tmp_path / "out", prompts=["a", "b"], held_out=["b", "a"])
    for options, message in (
        ({"temperatures": (-1.0,)}, "temperatures must be one or more numbers"),
        ({"texts_at_once": 0}, "must be at least 1"),
        ({"seed": -1}, "the seed is -1"),
    ):
        with pytest.raises(OptionError, match=message):
            distilled(draft, file, tmp_path / "out", **options)
