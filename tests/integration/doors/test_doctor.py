"""`uag doctor` with one draft and with several, on the demo target."""

import json
import re
from pathlib import Path

import pytest
import torch

from tests.support.served import run_cli
from uag import bench
from uag.kernels import kernel
from uag.loading import demo_folder, load_model, load_tokenizer

TARGET = DRAFT = demo_folder("draft")  # of two layers


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code, out, _ = run_cli(capsys, "doctor", *arguments, "--max-new-tokens", "12")
    assert code == 0
    return out


def test_the_best_draft_is_named_and_refused_ones_come_last(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
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
    drafts = {arm["draft"]: arm for arm in report["arms"] if arm["draft"]}
    assert list(drafts) == [noise, DRAFT, nothing]
    best = max((noise, DRAFT), key=lambda draft: drafts[draft]["speed_up"])
    assert report["verdict"].startswith(f"best draft: {best}, too few prompts to tell: ")
    assert report["tax"]["speed_up"] > 0
    assert report["environment"].startswith(f"float32; {kernel.describe()}; ")
    assert drafts[nothing]["speed_up"] is None
    assert nothing in drafts[nothing]["refusal"]


@pytest.mark.skipif(not kernel.LEVEL, reason="the kernels were not compiled here")
def test_the_targets_own_copy_is_one_of_the_drafts(capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(run(capsys, TARGET, "copy", DRAFT, "--num-prompts", "1", "--json"))
    assert {arm["draft"]: arm["refusal"] for arm in report["arms"] if arm["draft"]} == {"copy": None, DRAFT: None}
    assert report["tax"]["speed_up"] > 0  # of the copy's candidates, each replaced
    (useless,) = [record for record in report["records"] if record["arm"] == "uag-useless"]
    assert useless["num_accepted_tokens"] == 0


def test_drafts_like_arms(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["plain", "uag"]
    for name in names:
        Path(name).symlink_to(DRAFT)
    report = json.loads(run(capsys, TARGET, *names, "--num-prompts", "1", "--json"))
    drafts = [arm for arm in report["arms"] if arm["draft"]]
    assert sorted(arm["draft"] for arm in drafts) == names
    assert all(arm["num_records"] == 1 and arm["speed_up"] > 0 for arm in drafts)


def test_one_draft_is_measured_on_the_prompts_of_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("def one(\nimport os\nclass Two:\nfor i in\n", encoding="utf-8")
    flags = ("--prompts", str(prompts), "--temperature", "1")
    verdict, equality, tax, *table, environment = run(capsys, TARGET, DRAFT, *flags).splitlines()
    over = r", [\d.]+ times that of uag without a draft, [\d.]+ times that of prompt lookup alone$"
    assert re.search(r": [\d.]+ times the speed of plain decoding" + over, verdict)
    assert equality == (
        "0 of 16 outputs of uag differ from plain decoding's, 0 of 12 from those of uag without a draft"
    )
    assert re.match(r"when nothing is accepted \(uag-useless\), uag takes [\d.]+ % (more|less) time than without ", tax)
    assert any(line.strip().startswith("uag-no-draft") for line in table)
    assert "too few" not in verdict
    assert environment.startswith(f"float32; {kernel.describe()}; ")


def test_all_names_are_checked_first(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "measure", lambda *_, **__: pytest.fail("measured"))
    code, _, err = run_cli(capsys, "doctor", TARGET, DRAFT, "./no-such-draft")
    assert code == 2
    assert err.splitlines()[-1].startswith(
        "uag: The tokenizer of the draft './no-such-draft' cannot be loaded: no model folder"
    )
