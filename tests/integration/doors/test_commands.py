"""The command line on the bundled pair, from argument to output."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.kernels import needs_kernels
from tests.support.served import plain_text
from tests.support.served import run_cli as run
from tests.support.trained import demo, small
from uag.bench import BenchOptions, heldout_prompts, measure, spread
from uag.drafting.pairing import Pairing
from uag.errors import OptionError
from uag.loading import demo_folder

SMALL = ("--target", demo_folder("draft"), "--draft", demo_folder("draft"))
"""A target of two layers."""


def test_demo_ends_with_equal_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "demo", "--num-prompts", "1", "--max-new-tokens", "16", "--trials", "1", "--json")
    shown = json.loads(out)
    assert code == 0
    assert err.startswith("loading the demo target, the demo draft\nmeasuring: 0% after 0 s (plain, warm-up)\n")
    assert shown["is_equal"]
    assert shown["verdict"].startswith("too few prompts to tell: ")
    assert shown["equality"].startswith("0 of 2 outputs of uag differ from plain decoding's, 0 of 1 from ")
    assert [record["arm"] for record in shown["records"]] == ["plain", "uag-no-draft", "uag", "transformers"]
    showcase = shown["showcase"]
    assert len(showcase["output_ids"]) == len(showcase["sources"]) == 16
    assert len({*showcase["sources"]}) > 1


def test_generate_streams(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prompt = heldout_prompts()[0].text
    expected = plain_text(demo().target, demo().target_tokenizer, prompt, max_new_tokens=24, do_sample=False)
    monkeypatch.setattr("sys.stdin", io.StringIO(prompt))
    prediction = tmp_path / "prediction"
    prediction.write_text(expected, encoding="utf-8")
    code, out, err = run(capsys, "generate", "-p", "-", "--max-new-tokens", "24", "--prediction", str(prediction))
    assert (code, out) == (0, expected + "\n")
    assert err.startswith("loading the demo target, the demo draft\n")
    assert " from prediction\n" in err
    assert err.endswith("fall-backs: none\n")


def test_generate_samples_from_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*SMALL, "-p", "def f(", "--temperature", "1", "--json", "--max-new-tokens", "12"]
    texts = [json.loads(run(capsys, "generate", *flags, "--seed", seed)[1])["text"] for seed in ("1", "2", "1")]
    assert texts[0] == texts[2] != texts[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-p", ""], "uag: The prompt is empty, and the target"),
        (
            ["-p", "x", "--chat"],
            "uag: The target's tokenizer has no chat template. Pass a text (uag generate -p TEXT) without",
        ),
    ],
)
def test_an_unusable_prompt_is_one_line(capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    code, out, err = run(capsys, "generate", "--json", *flags)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(message)


def test_bench_records_each_arm_and_batch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("def one(\ndef two(\ndef three(\n", encoding="utf-8")
    flags = "--num-prompts 3 --max-new-tokens 16 --trials 1 --batch-size 2 --arm uag --arm prompt-lookup"
    code, out, _ = run(capsys, "bench", *SMALL[1::2], *flags.split(), "--prompts", str(prompts), "--json")
    assert code == 0
    records = json.loads(out)["records"]
    assert [(record["arm"], len(record["prompt_ids"])) for record in records] == [
        (arm, num) for num in (2, 1) for arm in ("plain", "uag", "prompt-lookup")
    ]
    lookup_of_a_batch = records[2]
    assert lookup_of_a_batch["refusal"].startswith("ValueError: assisted generate is only supported for batch_size = 1")


def test_sampling_bench_refuses_only_what_differs() -> None:
    names = ("transformers", "uag-no-draft", "uag")
    options = BenchOptions(arm_names=names, temperature=1.0, max_new_tokens=12, num_trials=1)
    records = {record.arm: record for record in measure(small(), spread(heldout_prompts(), 1), options)}
    assert all(records[name].refusal is None for name in ("plain", "uag-no-draft", "uag"))
    # Rejection sampling draws other tokens than plain sampling with the same seed.
    assert (records["transformers"].refusal or "").startswith("differs from plain decoding at row 0")


@needs_kernels
def test_draft_independent_bench_compares_with_uag_without_a_draft(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--draft-independent --dtype bfloat16 --num-prompts 2 --max-new-tokens 16 --trials 1 --arm uag --json"
    code, out, _ = run(capsys, "bench", *SMALL[1::2], *flags.split())
    records = json.loads(out)["records"]
    assert code == 0
    assert [record["arm"] for record in records] == ["plain", "uag-no-draft", "uag"] * 2
    for _, reference, assisted in zip(*[iter(records)] * 3, strict=True):
        assert reference["note"] == "run by uag's own passes"
        assert reference["num_target_forwards"] == reference["num_output_tokens"]
        assert (assisted["dependence"], assisted["refusal"]) == (None, None)
        assert assisted["num_target_forwards"] < reference["num_target_forwards"]


@pytest.mark.parametrize(
    ("command", "places"),
    [
        ("generate --prompt x", SMALL),
        ("bench", SMALL[1::2]),
        ("doctor", SMALL[1::2]),
        ("serve --port 54321", SMALL[1:]),
    ],
)
def test_compile_draft_reaches_the_assistant(
    command: str, places: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **options: Any) -> None:
        raise OptionError(f"compile_draft is {options.get('compile_draft')}")

    monkeypatch.setattr(Pairing, "__init__", refuse)
    for flags in ([], ["--compile-draft"]):
        code, _, errors = run(capsys, *command.split(), *places, *flags)
        assert (code, f"compile_draft is {bool(flags)}" in errors) == (2, True)
