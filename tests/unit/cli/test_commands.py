"""The command line: parsing, output formats and errors. The library is stubbed; no model is loaded."""

import io
import json
import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import uag
from tests.support.served import run_cli
from uag import assistant, bench, cli, loading
from uag.bench import Completion, Record
from uag.errors import PairError
from uag.loading import Pair
from uag.stats import Stats

Run = Callable[..., tuple[int, str, str]]

PACKAGE = str(Path(uag.__file__).parent)  # a folder without a model


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return partial(run_cli, capsys)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = SimpleNamespace(dtype="torch.float32", device="cpu")
    pair = Pair(model, None, "t", model, None, "d")
    monkeypatch.setattr(loading, "load_pair", lambda *_, **__: pair)
    monkeypatch.setattr(bench, "load_pairs", lambda *_, **__: ([pair], []))
    monkeypatch.setattr(bench, "build_arms", lambda *_, **__: [])
    monkeypatch.setattr(bench, "losses", lambda _: [])
    monkeypatch.setattr(assistant, "Assistant", lambda *_, **__: None)


def test_help_names_every_command_and_every_arm(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert all(f"  {name} " in out for name in ("demo", "generate", "doctor", "bench", "serve"))
    assert "uag doctor TARGET DRAFT" in out
    assert "..." not in out.partition("Commands:")[2]  # no summary is cut off
    code, out, _ = run("bench", "--help")
    assert all(name in out for name in bench.ARM_NAMES)
    assert "--json  " in out
    assert "<bool>" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["doctor", "/no/such/model"], "The tokenizer of the target '/no/such/model' cannot be loaded: no model "),
        (
            ["doctor", PACKAGE],
            f"The tokenizer of the target {PACKAGE!r} cannot be loaded: the folder {PACKAGE!r} has no tokenizer "
            "(tokenizer.json or tokenizer.model) and no config.json, so it is not a model's.",
        ),
        (["generate", "def f("], "This command takes the prompt with -p: uag generate -p TEXT"),
        (["doctor", "--draft", "d"], "This command takes models without --target and --draft: TARGET DRAFT"),
        (["serve", "--target", "t"], "This command takes the target without --target: uag serve TARGET"),
        (["generate", "--draft", "./none", "-p", "x"], "The tokenizer of the draft './none' cannot be loaded: no "),
        (["generate", "-p", "x", "--draft", "no-such/draft"], "The tokenizer of the draft 'no-such/draft' cannot be "),
        (["generate"], "Standard input is not a terminal. Pass --prompt TEXT, or --prompt - to read it from "),
        (["generate", "-p", "x", "--dtype", "int3"], "dtype is 'int3', it must be one of auto, float32"),
        (["generate", "-p", "x", "--device", "toaster"], "device is 'toaster', which PyTorch cannot use here: "),
        (["generate", "-p", "x", "--draft", "none.gguf"], "There is no GGUF file 'none.gguf'"),
        (["generate", "--json"], "--json and --prediction need --prompt"),
        (["generate", "--prediction", "text"], "--json and --prediction need --prompt"),
        (["bench", "--cache", "fast"], "Invalid `cache_implementation` (fast). Choose one of: "),
        (["bench", "--arm", "fast"], "unknown arm 'fast': the arms are plain"),
        (["bench", "--prompts", "/no/such/file.jsonl"], "The prompts '/no/such/file.jsonl' cannot be read: No"),
        (["bench", "--prompts", "some.json"], "'some.json' is JSON: write JSON lines (.jsonl)"),
        (["generate", "-p", "x", "--temperature", "1e-320"], "--temperature is 1e-320, it must be 0 (greedy) or a "),
        (["generate", "-p", "x", "--temperature", "nan"], "--temperature is nan, it must be 0"),
        (["bench", "--temperature", "inf"], "--temperature is inf, it must be 0"),
        (["doctor", "--temperature", "-1"], "--temperature is -1.0, it must be 0"),
        (["generate", "-p", "a\udcffb"], "The prompt is not a text that UTF-8 can encode: "),
        (["generate", "-p", "x", "--prediction", "/no/such/text"], "The prediction '/no/such/text' cannot be read: No"),
    ],
)
def test_errors_are_one_line(run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    lines = [line for line in err.splitlines() if not line.startswith("loading ")]
    assert len(lines) == 1
    assert lines[0].startswith(f"uag: {message}")


@pytest.mark.parametrize("data", ["x = 'caf\u00e9'".encode("latin-1"), "x = 1".encode("utf-16")])
def test_standard_input_that_is_not_utf_8(run: Run, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
    code, out, err = run("generate", "-p", "-")
    assert (code, out) == (2, "")
    assert err.startswith("uag: Standard input is not a text in utf-8: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(("flags", "message"), [([], "is not a terminal"), (["-p", "-"], "is closed")])
def test_standard_input_that_is_closed(
    run: Run, monkeypatch: pytest.MonkeyPatch, flags: list[str], message: str
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    code, out, err = run("generate", *flags)
    assert (code, out) == (2, "")
    assert err.startswith(f"uag: Standard input {message}. Pass --prompt TEXT, or ")


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "gbk", "utf-8"])
def test_text_and_json_in_other_encodings(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    prompt, outs = "caf\u00e9 \U0001f680 \u4f60", list[str]()

    def complete(*_: Any, streams: bool, **__: Any) -> Completion:
        if streams:
            print(prompt)
        return Completion(prompt, (1,), (prompt,), ("target",), STATS)

    monkeypatch.setattr(bench, "complete", complete)
    for flags in ([], ["--json"]):
        written = io.BytesIO()
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding=encoding, write_through=True))
        with pytest.raises(SystemExit) as caught:
            cli.main(["generate", "-p", prompt, *flags])
        assert caught.value.code == 0
        outs.append(written.getvalue().decode(encoding))
    assert outs[0] == prompt.encode(encoding, "backslashreplace").decode(encoding) + "\n"
    assert json.loads(outs[1])["text"] == prompt
    assert (prompt in outs[1]) is (encoding == "utf-8")


def test_serve_names_the_extra_that_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uag.serving.server.is_serve_available", lambda: False)
    code, _, err = run("serve")
    assert code == 2
    assert err.endswith(
        "uag: uag serve needs transformers' server. Install it: pip install 'uag-transformers[serve]'\n"
    )


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (PairError("the two have no usable\n    bytes in common"), 2, "uag: the two have no usable bytes in common\n"),
        (KeyboardInterrupt(), 130, "\n"),
    ],
)
@pytest.mark.usefixtures("loaded")
def test_errors_while_generating_end_with_their_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(bench, "complete", refuse)
    assert run("generate", "-p", "x", "--json") == (code, "", message)


@pytest.mark.usefixtures("loaded")
def test_an_unexpected_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "complete", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["generate", "-p", "x"])


STATS = Stats(strategy="cross-tokenizer")


def stub_record(arm: str, **values: Any) -> Record:
    counts = {"num_output_tokens": 10, "num_target_forwards": 5, "seconds": 1.0}
    return Record(arm, ("p",), 1, 0.0, 3, **{**counts, **values})


@pytest.mark.usefixtures("loaded")
def test_demo_fails_where_outputs_differ(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    showcase = Completion("def f", (1, 2), ("(x", ")"), ("draft model", "target"), STATS)
    ours = stub_record("uag", refusal="differs at token 3", difference="token 3")
    records = [stub_record("plain"), stub_record("transformers"), ours]
    monkeypatch.setattr(bench, "measure", lambda *_, **__: records)
    monkeypatch.setattr(bench, "complete", lambda *_, **__: showcase)
    code, out, _ = run("demo")
    assert code == 1
    assert "def f(x)" in out
    assert "drafted and accepted   generated by the target" in out
    assert "uag is excluded: differs at token 3" in out
    assert "OUTPUTS DIFFER that must be equal: see the table" in out


def test_demo_colors_each_token_by_its_source() -> None:
    sources = ("draft model", "prompt", "prediction", "a drafter of my own", "target")
    showcase = Completion("def f", (1, 2, 3, 4, 5), ("(x", ",", " y", ")", ":"), sources, STATS)
    text = bench.colored(showcase)
    styles = {text.plain[span.start : span.end]: span.style for span in text.spans}
    assert [styles[part] for part in showcase.texts] == ["green", "cyan", "blue", "yellow", "bold magenta"]
    legend = "drafted and accepted   copied from earlier text   predicted by the user   from a source of text   "
    assert text.plain.splitlines()[0] == f"{legend}generated by the target"


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(("arm", "expected_code"), [("transformers", 0), ("uag", 1)])
def test_bench_fails_where_uag_differs(run: Run, monkeypatch: pytest.MonkeyPatch, arm: str, expected_code: int) -> None:
    records = [stub_record("plain"), stub_record(arm, refusal="differs", difference="row 0")]
    monkeypatch.setattr(bench, "measure", lambda *_, **__: records)
    code, out, err = run("bench", "--json")
    assert code == expected_code
    assert err.startswith("loading ")
    assert [record["arm"] for record in json.loads(out)["records"]] == ["plain", arm]


@pytest.mark.usefixtures("loaded")
def test_progress_has_an_estimate_within_the_bound(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def measure(*_: Any, progress: Callable[[float, str], None], **__: Any) -> list[Record]:
        for share, seconds in ((0.0, 20.0), (0.25, 4.0), (0.5, 46.0), (0.6, 30.0)):
            progress(share, "uag")
            now[0] += seconds
        progress(0.7, "uag-lookup")
        return [stub_record("plain")]

    monkeypatch.setattr(bench, "measure", measure)
    _, out, err = run("doctor", "--minutes", "2", "--json")
    assert json.loads(out)["verdict"] == ""
    assert err.splitlines()[1:] == [
        "measuring: 0% after 0 s, at most 2 min 0 s left (uag)",
        "measuring: 25% after 20 s, about 1 min 0 s left (uag)",
        "measuring: 60% after 1 min 10 s, about 47 s left (uag)",  # nothing at 50 %, four seconds later
        "measuring: 70% after 1 min 40 s, about 20 s left (uag-lookup)",  # 43 s, were it not for the bound
    ]


@pytest.mark.usefixtures("loaded")
def test_loading_and_a_call_that_takes_long_are_not_silent(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    is_loading, is_running = threading.Event(), threading.Event()

    def report(text: str) -> None:
        lines.append(text)
        if text.startswith("loading: "):
            is_loading.set()
        elif "the last" in text:
            is_running.set()

    def load(*_: Any, **__: Any) -> Any:
        assert is_loading.wait(60)
        return [loading.load_pair()], []

    def measure(*_: Any, progress: Callable[[float, str], None], **__: Any) -> list[Record]:
        progress(0.0, "plain")
        assert is_running.wait(60)
        return [stub_record("plain", max_new_tokens=16)]

    monkeypatch.setattr("uag.cli.progress._EVERY_S", 0.01)
    monkeypatch.setattr("uag.cli.progress.common.report", report)
    monkeypatch.setattr(bench, "load_pairs", load)
    monkeypatch.setattr(bench, "measure", measure)
    code, out, _ = run("doctor", "--minutes", "0.01")
    assert code == 0
    assert "16 of 64 new tokens" in out
    assert lines[0].startswith("loading the demo target")
    assert lines[1].startswith("loading: ")
    assert any(re.fullmatch(r"measuring: 0% after 0 s, at most \d s left \(plain\)", line) for line in lines)
    assert re.fullmatch(r"measuring: 0% after \d+ s, this call is the last \(plain\)", lines[-1])


@pytest.mark.parametrize(("name", "minutes", "num_trials"), [("bench", 0.0, 5), ("doctor", 3.0, 1), ("demo", 0.0, 3)])
@pytest.mark.usefixtures("loaded")
def test_three_names(run: Run, monkeypatch: pytest.MonkeyPatch, name: str, minutes: float, num_trials: int) -> None:
    seen: list[bench.BenchOptions] = []

    def measure(_: Any, __: Any, options: bench.BenchOptions, **___: Any) -> list[Record]:
        seen.append(options)
        return [stub_record("plain")]

    showcase = Completion("def f", (1,), ("(x",), ("target",), STATS)
    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "complete", lambda *_, **__: showcase)
    assert run(name, "t", "d", "--seed", "7", "--json")[0] == 0
    (options,) = seen
    assert (options.minutes, options.num_trials, options.seed) == (minutes, num_trials, 7)
    assert set(options.arm_names) <= set(bench.ARM_NAMES)
    assert (len(options.arm_names) == len(bench.ARM_NAMES)) is (name == "bench")
