"""`uag doctor` with one draft and with several, on the demo target."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.models import tiny_model
from tests.support.served import run_cli
from uag import Assistant, bench
from uag.bench import Arm, arms
from uag.kernels import kernel
from uag.loading import demo_folder, load_model, load_tokenizer

TARGET = DRAFT = demo_folder("draft")  # of two layers


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code, out, _ = run_cli(capsys, "doctor", *arguments, "--max-new-tokens", "12")
    assert code == 0
    return out


def test_the_best_draft_is_named_and_those_that_cannot_draft_come_last(
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
    drafts = {arm["draft"]: arm for arm in report["arms"] if arm["draft"]}
    assert list(drafts) == [noise, DRAFT, nothing]
    best = max((noise, DRAFT), key=lambda draft: drafts[draft]["speed_up"])
    assert report["verdict"].startswith(f"best draft: {best}, too few prompts to tell: ")
    assert report["tax"]["speed_up"] > 0
    assert report["environment"].startswith(f"float32; {kernel.describe()}; ")
    assert drafts[nothing]["speed_up"] is None
    assert nothing in drafts[nothing]["refusal"]


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
    drafts = [arm for arm in report["arms"] if arm["draft"]]
    assert sorted(arm["draft"] for arm in drafts) == names_of_arms
    assert all(arm["num_records"] == 1 and arm["speed_up"] > 0 for arm in drafts)


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
        assert f"uag {name} is excluded: OutOfMemoryError: out of memory" in shown


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
    verdict, equality, tax, *table, environment = run(capsys, TARGET, DRAFT, *flags).splitlines()
    over = r", [\d.]+ times that of uag without a draft, [\d.]+ times that of prompt lookup alone$"
    assert re.search(r": [\d.]+ times the speed of plain decoding" + over, verdict)
    assert equality == (
        "0 of 16 outputs of uag differ from plain decoding's, 0 of 12 from those of uag without a draft"
    )
    assert re.match(r"when nothing is accepted \(uag-useless\), uag takes -?[\d.]+ % more time than without ", tax)
    assert any(line.strip().startswith("uag-no-draft") for line in table)
    assert "too few" not in verdict
    assert environment.startswith(f"float32; {kernel.describe()}; ")


def test_all_names_are_checked_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "measure", lambda *_, **__: pytest.fail("measured"))
    code, _, err = run_cli(capsys, "doctor", TARGET, DRAFT, "./no-such-draft")
    assert code == 2
    assert err.splitlines()[-1].startswith(
        "uag: The tokenizer of the draft './no-such-draft' cannot be loaded: no model folder"
    )


def test_draft_independent_drafts_are_compared_with_uag_without_a_draft(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--num-prompts", "1", "--json", "--dtype", "bfloat16", "--draft-independent")
    records = json.loads(run(capsys, TARGET, DRAFT, *flags))["records"]
    of_uag = {record["arm"]: record for record in records if record["arm"].startswith("uag")}
    assert all(record["refusal"] is record["dependence"] is None for record in of_uag.values())
    assert of_uag["uag"]["num_accepted_tokens"] > 0

    def changed(name: str, *arguments: Any) -> Arm:  # the reference of another text
        arm = build(name, *arguments)
        return replace(arm, generate=lambda input_ids, **_: input_ids.repeat(1, 2)) if name == "uag-no-draft" else arm

    build = arms._build
    monkeypatch.setattr(arms, "_build", changed)
    code, out, _ = run_cli(capsys, "doctor", TARGET, DRAFT, *flags, "--max-new-tokens", "12")
    shown = json.loads(out)
    (record,) = [record for record in shown["records"] if record["arm"] == "uag"]
    assert record["refusal"].startswith("differs from uag-no-draft at row 0, output token 0: ")
    assert (code, shown["is_equal"]) == (1, False)


def test_doctor_ends_within_its_bound_and_reports_what_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--num-prompts", "80", "--trials", "9", "--minutes", "0.1", "--json")
    start_s = time.perf_counter()
    shown = json.loads(run(capsys, TARGET, DRAFT, *flags))
    assert time.perf_counter() - start_s < 60
    assert shown["records"][0]["trial_seconds"]
    assert len(shown["records"]) < 5 * 80
