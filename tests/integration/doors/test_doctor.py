"""`uag doctor` with one draft and with several, on the demo target."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.models import tiny_model
from tests.support.served import run_cli
from uag import Assistant
from uag.bench import Arm, ranking
from uag.kernels import kernel
from uag.loading import demo_folder, load_model, load_tokenizer

TARGET = DRAFT = demo_folder("draft")  # of two layers


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code, out, _ = run_cli(capsys, "doctor", *arguments, "--max-new-tokens", "12")
    assert code == 0
    return out


def test_drafts_are_ranked_and_those_that_cannot_draft_come_last(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    noise, nothing = str(tmp_path / "noise"), str(tmp_path / "a tokenizer alone")
    draft = load_model(DRAFT)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.normal_(0.0, 0.02)
    draft.save_pretrained(noise)
    for folder in (noise, nothing):
        load_tokenizer(DRAFT).save_pretrained(folder)
    report = json.loads(run(capsys, TARGET, nothing, noise, DRAFT, "--num-prompts", "2", "--json"))
    best, second, last = report["drafts"]
    assert {best["arm"], second["arm"]} == {DRAFT, noise}
    assert best["speed_up"] >= second["speed_up"] > 0
    assert report["verdict"].startswith(f"best draft: {best['arm']}, too few prompts to tell: ")
    assert report["products"] == kernel.describe()
    assert last["arm"] == nothing
    assert last["speed_up"] is None
    assert nothing in last["refusal"]


@pytest.fixture
def names_of_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Folders of a draft, called like arms of `uag bench`, in the working directory."""
    monkeypatch.chdir(tmp_path)
    names = ["plain", "uag"]
    for name in names:
        Path(name).symlink_to(DRAFT)
    return names


def test_drafts_can_have_the_names_of_arms(capsys: pytest.CaptureFixture[str], names_of_arms: list[str]) -> None:
    report = json.loads(run(capsys, TARGET, *names_of_arms, "--num-prompts", "1", "--json"))
    assert sorted(draft["arm"] for draft in report["drafts"]) == names_of_arms
    assert all(draft["num_records"] == 1 and draft["speed_up"] > 0 for draft in report["drafts"])


def test_an_error_in_a_call_refuses_this_draft_only(
    capsys: pytest.CaptureFixture[str], names_of_arms: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = Assistant.generate

    def out_of_memory(self: Assistant, *arguments: Any, **options: Any) -> Any:
        if self.draft is not None:
            raise torch.OutOfMemoryError("out of memory")
        return generate(self, *arguments, **options)

    monkeypatch.setattr(Assistant, "generate", out_of_memory)
    shown = run(capsys, TARGET, *names_of_arms, "--num-prompts", "1")
    assert shown.startswith("none of these can draft for this target\n")
    for name in names_of_arms:
        assert f"{name} is excluded: OutOfMemoryError: out of memory" in shown


def test_a_pair_that_cannot_work_is_refused_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tiny_model("t5", 300, decoder_start_token_id=0).save_pretrained(tmp_path)
    load_tokenizer(DRAFT).save_pretrained(tmp_path)
    code, _, err = run_cli(capsys, "doctor", TARGET, str(tmp_path))
    assert code == 2
    assert "encoder" in err


def test_one_draft_is_measured_on_the_prompts_of_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("def one(\nimport os\nclass Two:\nfor i in\n", encoding="utf-8")
    flags = ("--prompts", str(prompts), "--temperature", "1")
    verdict, *table, products = run(capsys, TARGET, DRAFT, *flags).splitlines()
    assert re.search(r": [\d.]+ times the speed of plain decoding, [\d.]+ times that of uag without a draft$", verdict)
    assert any(line.strip().startswith("uag-no-draft") for line in table)
    assert "too few" not in verdict
    assert products == f"matrix products on a CPU: {kernel.describe()}"
    assert DRAFT in "".join(line.split()[0] for line in table if line.strip())  # a long name is folded


def test_all_names_are_checked_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "measure", lambda *_, **__: pytest.fail("measured"))
    code, _, err = run_cli(capsys, "doctor", TARGET, DRAFT, "./no-such-draft")
    assert code == 2
    assert err.splitlines()[-1].startswith(
        "uag: The tokenizer of the draft './no-such-draft' cannot be loaded: no model folder"
    )


def test_draft_independent_drafts_are_compared_with_uag_without_a_draft(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--num-prompts", "1", "--json", "--dtype", "bfloat16", "--draft-independent")
    (draft,) = json.loads(run(capsys, TARGET, DRAFT, *flags))["drafts"]
    assert draft["refusal"] is None
    assert draft["num_differences"] == 0
    assert draft["tokens_per_target_pass"] > 1

    def changed(*_: object) -> Arm:  # the reference of another text
        return Arm("uag-no-draft", lambda **kwargs: kwargs["input_ids"].repeat(1, 2), note="run by uag's own passes")

    monkeypatch.setattr(ranking, "without_draft", changed)
    (draft,) = json.loads(run(capsys, TARGET, DRAFT, *flags))["drafts"]
    assert draft["refusal"].startswith("differs from uag-no-draft at row 0, output token 0: ")
