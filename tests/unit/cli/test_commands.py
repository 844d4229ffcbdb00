"""The command line: parsing, output forms and errors. The library behind it is stubbed; no model."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from uag import bench, cli, loading
from uag._version import __version__
from uag.bench import Record
from uag.cli import completion, doctor
from uag.cli import demo as demo_run
from uag.errors import PairError


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command line in this process; returns exit code, standard output and standard error."""
    with pytest.raises(SystemExit) as caught:
        cli.main(list(arguments))
    captured = capsys.readouterr()
    return int(caught.value.code or 0), captured.out, captured.err


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stub `load_pair`; holds what it was called with."""
    seen: dict[str, Any] = {}

    def load_pair(target: str | None = None, draft: str | None = None, **options: Any) -> Any:
        seen.update(options, target=target, draft=draft)
        model = SimpleNamespace(dtype="torch.float32", device="cpu")
        return SimpleNamespace(
            target=model, draft=model, target_name="t", draft_name="d", target_tokenizer=None, is_encoder_decoder=False
        )

    monkeypatch.setattr(loading, "load_pair", load_pair)
    return seen


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"uag {__version__}\n", "")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(name in out for name in ("demo", "generate", "doctor", "bench"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["doctor", "/no/such/model"], "uag: no model folder '/no/such/model': name a folder with a config.json"),
        (["generate", "--target", "./none", "-p", "x"], "uag: no model folder 'none'"),
        (["generate", "-p", "x", "--dtype", "int3"], "uag: dtype is 'int3', it must be one of auto, float32"),
        (["generate", "-p", "x", "--device", "toaster"], "uag: device is 'toaster', which torch does not know"),
        (["bench", "--arm", "fast"], "uag: unknown arm 'fast': the arms are plain"),
        (["bench", "--prompts", "/no/such/file.jsonl"], "uag: [Errno 2] No such file or directory"),
        (["doctor", "--text", "/no/such/text"], "uag: [Errno 2] No such file or directory"),
    ],
)
def test_an_expected_error_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_a_folder_without_a_model_is_an_expected_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "doctor", str(tmp_path))
    assert code == 2
    assert err.startswith("uag: ")
    assert str(tmp_path) in err
    assert err.count("\n") == 1


def test_an_error_of_the_library_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, loaded: dict[str, Any]
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PairError("the two have no usable\n    bytes in common")

    monkeypatch.setattr(completion, "complete", refuse)
    assert run(capsys, "generate", "-p", "x") == (2, "", "uag: the two have no usable bytes in common\n")


def test_an_unexpected_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch, loaded: dict[str, Any]) -> None:
    monkeypatch.setattr(completion, "complete", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["generate", "-p", "x"])


class StubStats(SimpleNamespace):
    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


STATS = StubStats(num_output_tokens=3, total_s=0.5, num_target_forwards=2, num_candidate_tokens=4, acceptance_rate=0.25)


@pytest.fixture
def completed(monkeypatch: pytest.MonkeyPatch, loaded: dict[str, Any]) -> dict[str, Any]:
    """Stub `complete`; holds what it was called with."""
    seen = loaded

    def complete(pair: Any, prompt: str, *, on_text: Any, **options: Any) -> completion.Completion:
        seen.update(options, prompt=prompt)
        for piece in ("[b]o", "ne", " two"):
            if on_text is not None:
                on_text(piece)
        sources = ("prediction", "target", "prompt")
        return completion.Completion(prompt, (1, 2, 3), ("[b]o", "ne", " two"), sources, STATS)  # type: ignore[arg-type]

    monkeypatch.setattr(completion, "complete", complete)
    return seen


def test_generate_prints_the_text_as_it_is(capsys: pytest.CaptureFixture[str], completed: dict[str, Any]) -> None:
    code, out, err = run(capsys, "generate", "--target", "T", "--draft", "D", "--prompt", "go", "--temperature", "0.5")
    assert (code, out) == (0, "[b]one two\n")
    assert "3 tokens in 0.50 s, 2 target passes, 25% of 4 candidates accepted" in err
    assert (completed["target"], completed["draft"], completed["prompt"]) == ("T", "D", "go")
    assert (completed["temperature"], completed["max_new_tokens"]) == (0.5, 128)


def test_generate_json_is_one_object(capsys: pytest.CaptureFixture[str], completed: dict[str, Any]) -> None:
    code, out, err = run(capsys, "generate", "-p", "go", "--json")
    assert (code, err) == (0, "")
    parsed = json.loads(out)
    assert (parsed["text"], parsed["is_drafted"]) == ("[b]one two", [True, False, True])
    assert parsed["sources"] == ["prediction", "target", "prompt"]
    assert parsed["stats"]["num_target_forwards"] == 2


def test_generate_takes_a_prediction_from_a_file(
    capsys: pytest.CaptureFixture[str], completed: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "last.py").write_text("naïve = 1\n", encoding="utf-8")
    assert run(capsys, "generate", "-p", "go", "--prediction", str(tmp_path / "last.py"))[0] == 0
    assert completed["prediction"] == "naïve = 1\n"
    code, _, err = run(capsys, "generate", "-p", "go", "--prediction", str(tmp_path / "none.py"))
    assert (code, err.count("\n")) == (2, 1)
    assert "none.py" in err


def test_generate_reads_standard_input(
    capsys: pytest.CaptureFixture[str], completed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(read=lambda: "from a pipe\n"))
    run(capsys, "generate", "-p", "-", "--json")
    assert completed["prompt"] == "from a pipe\n"


def stub_record(arm: str, **values: Any) -> Record:
    counts = {"num_output_tokens": 10, "num_target_forwards": 5, "seconds": 1.0}
    return Record(arm, ("p",), 1, 0.0, 3, **{**counts, **values})


def stub_demo(refusal: str | None = None) -> demo_run.Demo:
    showcase = completion.Completion("def f", (1, 2), ("(x", ")"), ("draft model", "target"), STATS)  # type: ignore[arg-type]
    records = (stub_record("plain"), stub_record("transformers"), stub_record("uag", seconds=0.5, refusal=refusal))
    return demo_run.Demo(showcase, records, tuple(bench.summarize(records)))


def test_demo_shows_text_table_and_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, loaded: dict[str, Any]
) -> None:
    monkeypatch.setattr(demo_run, "run_demo", lambda *_, **__: stub_demo())
    code, out, _ = run(capsys, "demo")
    assert code == 0
    assert "def f(x)" in out
    assert "drafted and accepted   written by the target" in out
    assert out.rstrip().endswith(
        "all outputs equal on 1 prompts; speed against plain decoding: transformers 1.00x, uag 2.00x"
    )


def test_demo_colours_each_token_by_its_origin() -> None:
    drawn = demo_run.colour(stub_demo().showcase)
    styles = {drawn.plain[span.start : span.end]: span.style for span in drawn.spans}
    assert (styles["(x"], styles[")"]) == ("green", "bold magenta")
    sources = ("prompt", "prediction", "a drafter of my own", "target")
    shown = completion.Completion("def f", (1, 2, 3, 4), ("(x", ",", " y", ")"), sources, STATS)  # type: ignore[arg-type]
    drawn = demo_run.colour(shown)
    styles = {drawn.plain[span.start : span.end]: span.style for span in drawn.spans}
    assert [styles[text] for text in shown.texts] == ["cyan", "blue", "yellow", "bold magenta"]
    legend = drawn.plain.splitlines()[0]
    assert legend == "found in the text before   predicted by the user   from a source of text   written by the target"


def test_demo_fails_where_outputs_differ(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, loaded: dict[str, Any]
) -> None:
    monkeypatch.setattr(demo_run, "run_demo", lambda *_, **__: stub_demo(refusal="differs at token 3"))
    code, out, _ = run(capsys, "demo")
    assert code == 1
    assert "OUTPUTS DIFFER" in out
    assert "uag is not reported: differs at token 3" in out


def test_demo_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, loaded: dict[str, Any]) -> None:
    monkeypatch.setattr(demo_run, "run_demo", lambda *_, **__: stub_demo())
    code, out, _ = run(capsys, "demo", "--json")
    parsed = json.loads(out)
    assert code == 0
    assert parsed["is_equal"] is True
    assert [record["arm"] for record in parsed["records"]] == ["plain", "transformers", "uag"]


def test_doctor_passes_text_and_prints_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, loaded: dict[str, Any], tmp_path: Path
) -> None:
    seen = []

    def diagnose(pair: Any, text: str) -> Any:
        seen.append(text)
        return SimpleNamespace(to_dict=lambda: {"is_identity": True})

    monkeypatch.setattr(doctor, "diagnose", diagnose)
    (tmp_path / "text").write_text("Été", encoding="utf-8")
    code, out, _ = run(capsys, "doctor", "T", "D", "--text", str(tmp_path / "text"), "--no-measure", "--json")
    report = {"verdict": "speed not measured (--no-measure)", "is_identity": True}
    assert (code, json.loads(out), seen) == (0, report, ["Été"])
    assert (loaded["target"], loaded["draft"]) == ("T", "D")


def stub_measure(monkeypatch: pytest.MonkeyPatch, *records: Record) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    def measure(pair: Any, prompts: Any, options: Any, journal: Any, on_run: Any) -> Any:
        seen.update(prompts=prompts, options=options, journal=journal)
        yield from records

    monkeypatch.setattr(bench, "measure", measure)
    return seen


def test_bench_passes_its_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, loaded: dict[str, Any], tmp_path: Path
) -> None:
    seen = stub_measure(monkeypatch, stub_record("plain"), stub_record("uag", seconds=0.25))
    prompts, output = tmp_path / "prompts.txt", tmp_path / "records.jsonl"
    prompts.write_text("one\ntwo\nthree\n", encoding="utf-8")
    flags = "--batch-size 1 --batch-size 2 --temperature 0 --temperature 1 --arm uag --trials 7 --num-prompts 2"
    code, out, _ = run(capsys, "bench", "--prompts", str(prompts), "--output", str(output), *flags.split())
    assert code == 0
    assert "4.00x" in out
    options = seen["options"]
    assert (options.batch_sizes, options.temperatures, options.num_trials) == ((1, 2), (0.0, 1.0), 7)
    assert options.arm_names == ("uag",)
    assert [prompt.text for prompt in seen["prompts"]] == ["one", "two"]
    assert seen["journal"].path == output


def test_bench_json_prints_a_line_for_each_record(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, loaded: dict[str, Any]
) -> None:
    stub_measure(monkeypatch, stub_record("plain"), stub_record("uag"))
    code, out, err = run(capsys, "bench", "--json")
    assert (code, err) == (0, "")
    assert [json.loads(line)["arm"] for line in out.splitlines()] == ["plain", "uag"]


def test_bench_fails_only_where_uag_differs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, loaded: dict[str, Any]
) -> None:
    stub_measure(monkeypatch, stub_record("plain"), stub_record("transformers", refusal="differs"), stub_record("uag"))
    assert run(capsys, "bench")[0] == 0
    stub_measure(monkeypatch, stub_record("plain"), stub_record("uag", refusal="differs"))
    assert run(capsys, "bench")[0] == 1
