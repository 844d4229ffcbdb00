"""Text sources as drafts, including those of examples/text_source.py."""

import runpy
import socket
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import uag
from tests.support.calls import GREEDY, PROMPTS, SAMPLED, compare, left_padded, pair
from tests.support.engine import Clock
from tests.support.trained import small
from uag.bench import heldout_prompts, spread
from uag.drafting import TextDrafter
from uag.errors import OptionError, PairError
from uag.loading import demo_folder, encode
from uag.lookahead import clock

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "text_source.py"
NEW = 32
LONG: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False}


@cache
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE), run_name="example")


@cache
def written(num_rows: int = 1) -> tuple[dict[str, torch.Tensor], torch.Tensor, tuple[str, ...]]:
    inputs = encode(small(), [prompt.text for prompt in spread(heldout_prompts(), 3)[:num_rows]])
    ids = small().target.generate(**inputs, **LONG)
    return inputs, ids, tuple(small().target_tokenizer.batch_decode(ids, skip_special_tokens=True))


def generate(source: Any, num_rows: int = 1, length: int | None = 4) -> uag.Stats:
    """Draft with a source on the small target, and assert that the output is plain decoding's."""
    tokenizer = small().target_tokenizer
    assistant = uag.Assistant(None, None, tokenizer, drafter=TextDrafter(source), num_candidate_tokens=length)
    stats = compare(small().target, written(num_rows)[0] | LONG, assistant)
    assert stats.strategy == "text"
    return stats


@pytest.mark.parametrize(("num_rows", "length"), [(1, 4), (3, 4), (1, None)])
def test_what_a_source_says_is_drafted(num_rows: int, length: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", Clock().perf_counter)  # every pass takes as long, and so does asking the source
    _, _, texts = written(num_rows)
    seen: list[str] = []

    def source(text: str) -> str | None:
        seen.append(text)
        (whole,) = (whole for whole in texts if whole.startswith(text))
        return whole[len(text) : len(text) + 40]

    stats = generate(source, num_rows, length)
    assert stats.accepted_by_source["source"] == stats.num_accepted_tokens > NEW // 2
    assert stats.num_draft_forwards == len(seen)
    assert len(seen) < stats.num_rounds * num_rows  # the rest of an answer is not requested again


def test_after_a_wrong_answer_the_source_is_asked_anew() -> None:
    (whole,) = written()[2]
    seen: list[str] = []

    def source(text: str) -> str:
        seen.append(text)
        return whole[len(text) :][:6] + " and then something else entirely"

    stats = generate(source)
    assert len(seen) > 3
    assert all(whole.startswith(text) for text in seen)
    assert 0 < stats.num_accepted_tokens < stats.num_candidate_tokens


def test_a_source_with_nothing_to_say_is_asked_ever_more_rarely() -> None:
    seen: list[str] = []
    stats = generate(lambda text: seen.append(text))
    assert stats.num_candidate_tokens == 0
    assert 2 <= len(seen) <= 6  # of 31 rounds


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("answer", ["\udcff broken", "日本語 " * 30, "a", "\x00\n\t"])
def test_whatever_it_says_the_output_is_the_targets(options: dict[str, Any], answer: str) -> None:
    target, tokenizer, *_ = pair(eos=True)
    assistant = uag.Assistant(None, drafter=TextDrafter(lambda _: answer, tokenizer), num_candidate_tokens=3)
    compare(target, left_padded(PROMPTS) | options, assistant)


def test_a_prediction_goes_before_a_source() -> None:
    inputs, _, (whole,) = written()
    tokenizer = small().target_tokenizer
    drafter = TextDrafter(lambda text: whole[len(text) :] if len(text) < len(whole) else "")
    prediction = whole[len(tokenizer.decode(inputs["input_ids"][0])) :][:30]
    assistant = uag.Assistant(None, None, tokenizer, drafter=drafter, prediction=prediction, num_candidate_tokens=3)
    for _ in range(2):
        stats = compare(small().target, inputs | LONG, assistant)
        assert set(stats.accepted_by_source) == {"prediction", "source"}


def test_what_is_no_source_is_refused() -> None:
    with pytest.raises(OptionError, match="source='text' must be a function"):
        TextDrafter("text")  # type: ignore[arg-type]
    with pytest.raises(PairError, match=r"TextDrafter needs the target's tokenizer"):
        uag.Assistant(None, drafter=TextDrafter(str))
    with pytest.raises(OptionError, match=r"returned \[3\]\. Return text"):
        generate(lambda _: [3])
    with pytest.raises(ZeroDivisionError):  # its own errors reach the caller
        generate(lambda _: str(1 // 0))


def test_a_folder_of_documents(tmp_path: Path) -> None:
    (whole,) = written()[2]
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "known.py").write_text(f"import os\n\n\n{whole}\n\n", encoding="utf-8")
    (tmp_path / "other.txt").write_text("Nothing of the kind.\n" * 50, encoding="utf-8")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    source = example()["FolderSource"](tmp_path)
    assert whole[40:].startswith(source(whole[:40]).partition("\n\n\n")[0][:30])
    assert source("zzzzzz qqqq") == source("") == ""
    assert example()["FolderSource"](tmp_path / "inner" / "none")("text") == ""
    stats = generate(source)
    assert stats.accepted_by_source["source"] > NEW // 2


@pytest.mark.parametrize("is_slow", [False, True])
def test_without_a_server_that_answers_in_time_the_target_writes_alone(is_slow: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and never responds
        port = silent.getsockname()[1] if is_slow else 9
        source = example()["ServerSource"](f"http://127.0.0.1:{port}/v1", timeout_s=0.05)
        assert generate(source).num_candidate_tokens == 0
    assert 2 <= source.num_failures <= 6


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text(written()[2][0], encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["text_source.py", "folder", str(tmp_path)])
    monkeypatch.setattr("uag.loading.demo_folder", lambda _: demo_folder("draft"))  # a target of two layers
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "equal to plain decoding: True" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["text_source.py"])
    with pytest.raises(SystemExit, match="Two sources of text"):
        runpy.run_path(str(EXAMPLE), run_name="__main__")


def test_one_source_serves_several_assistants_at_once() -> None:
    inputs, expected, (whole,) = written()
    inner: list[list[list[int]]] = []

    def source(text: str) -> str:
        if not inner:  # a complete call inside another one
            inner.append([])
            ids = assistants[1].generate(small().target, **inputs, **LONG)
            inner[0] = ids.tolist()
        return whole[len(text) :]

    drafter, tokenizer = TextDrafter(source), small().target_tokenizer
    assistants = [uag.Assistant(None, None, tokenizer, drafter=drafter, num_candidate_tokens=3) for _ in range(2)]
    ids = assistants[0].generate(small().target, **inputs, **LONG)
    assert ids.tolist() == inner[0] == expected.tolist()
    assert all(assistant.stats.num_accepted_tokens > NEW // 2 for assistant in assistants)
