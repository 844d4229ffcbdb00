"""`uag doctor` with one draft and with several, on the demo target."""

import json
from pathlib import Path

import pytest
import torch

from uag import cli
from uag.cli.measured import Measuring
from uag.loading import demo_folder, load_model, load_tokenizer


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        cli.main(["doctor", *arguments])
    assert not caught.value.code
    return capsys.readouterr().out


SHORT = ("--num-prompts", "2", "--max-new-tokens", "12")


def test_drafts_are_ranked_and_those_that_cannot_draft_come_last(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A draft with random weights agrees least. The order matches the measured speeds, even on a busy machine."""
    noise, nothing = tmp_path / "noise", str(tmp_path / "a tokenizer alone")
    draft = load_model(demo_folder("draft"))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.normal_(0.0, 0.02)
    draft.save_pretrained(noise)
    load_tokenizer(demo_folder("draft")).save_pretrained(noise)
    load_tokenizer(demo_folder("draft")).save_pretrained(nothing)
    flags = (*SHORT, "--temperature", "0", "--json")
    ranking = json.loads(run(capsys, demo_folder("target"), nothing, str(noise), demo_folder("draft"), *flags))
    best, second, last = ranking["drafts"]
    assert {best["name"], second["name"]} == {demo_folder("draft"), str(noise)}
    assert last["name"] == nothing
    speeds = [ranked["measured"]["forecast"]["speed_up"]["value"] for ranked in (best, second)]
    assert speeds[0] >= speeds[1] > 0
    assert ranking["verdict"].startswith(f"best draft: {best['name']}, too few prompts to tell: ")
    agreement = {ranked["name"]: ranked["measured"]["acceptance"][0]["agreement"]["value"] for ranked in (best, second)}
    assert agreement[demo_folder("draft")] > 0.2 > 0.1 > agreement[str(noise)]
    assert best["num_bytes"] == second["num_bytes"] > 1_000_000
    assert last["measured"] is None
    assert nothing in last["refusal"]


def test_all_names_are_checked_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Measuring, "measure", lambda *_: pytest.fail("measured"))
    with pytest.raises(SystemExit) as caught:
        cli.main(["doctor", demo_folder("target"), demo_folder("draft"), "./no-such-draft"])
    error = capsys.readouterr().err.splitlines()[-1]
    assert caught.value.code == 2
    assert error.startswith("uag: The tokenizer of the draft './no-such-draft' cannot be loaded: no model folder")


def test_one_pair_is_measured_and_examined(capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(run(capsys, *SHORT, "--num-prompts", "4", "--json"))
    (draft,) = report["drafts"]
    assert list(report["target_pass_s"]) == ["1", "2", "4", "8", "17"]
    assert min(report["target_pass_s"].values()) > 0
    assert 0 < draft["shared_vocabulary"] < 1
    assert draft["loss"] is None
    assert report["verdict"].endswith(" times that of plain decoding, greedy, on 4 prompts")
    assert "too few" not in report["verdict"]
    greedy, sampled = draft["measured"]["acceptance"]
    assert (greedy["temperature"], sampled["temperature"]) == (0.0, 1.0)
    for acceptance in (greedy, sampled):
        agreement = acceptance["agreement"]
        assert 0 <= agreement["low"] <= agreement["value"] <= agreement["high"] <= 1
    forecast = draft["measured"]["forecast"]
    assert forecast["speed_up"]["value"] > 0
    assert forecast["tokens_per_pass"] >= 1


def test_the_verdict_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, *SHORT).splitlines()
    assert lines[0].startswith("too few prompts to tell: ")
    assert any("agreement" in line for line in lines)
