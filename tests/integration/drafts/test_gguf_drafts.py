"""Drafts in llama.cpp: the output equals plain decoding's, and acceptance equals that of the PyTorch draft."""

import gc
import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

import uag
from benchmarks.baselines import build_baseline
from tests.support.calls import assert_drafted, compare, left_padded
from tests.support.gguf_files import write_llama
from tests.support.grids import covering
from tests.support.served import run_cli
from tests.support.trained import demo
from uag.bench import BenchOptions, assisted, build_arms, heldout_prompts, measure
from uag.errors import UnsupportedError
from uag.loading import Pair, demo_folder, load_pair

pytestmark = pytest.mark.gguf
pytest.importorskip("gguf", reason="GGUF files are written with the gguf package")
pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (extra gguf)")

GREEDY: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False}
SAMPLED: dict[str, Any] = {"max_new_tokens": 24, "do_sample": True, "temperature": 0.8, "top_k": 0}
IN_LLAMA: dict[str, Any] = {"draft_weights": "model"}
"""The file's own weights are read by llama.cpp."""


@pytest.fixture(scope="module")
def pair() -> Pair:
    return demo()


@pytest.fixture(scope="module")
def draft_path(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the demo draft's file; GGUF does not support its kind of tokenizer, so calls pass it."""
    return write_llama(tmp_path_factory.mktemp("gguf") / "draft.gguf", pair.draft, pair.draft_tokenizer)


@pytest.fixture(scope="module")
def target_path(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of the demo target, with its tokenizer, as its own draft."""
    return write_llama(tmp_path_factory.mktemp("gguf") / "target.gguf", pair.target, pair.target_tokenizer, "gpt-2")


@pytest.fixture
def assistant(pair: Pair, draft_path: Path) -> uag.Assistant:
    return uag.Assistant(draft_path, pair.draft_tokenizer, pair.target_tokenizer, num_candidate_tokens=4, **IN_LLAMA)


def inputs(pair: Pair, num_rows: int = 1, num_characters: int = 120) -> dict[str, torch.Tensor]:
    texts = [prompt.text[: num_characters + 17 * i] for i, prompt in enumerate(heldout_prompts()[:num_rows])]
    return left_padded([pair.target_tokenizer(text)["input_ids"] for text in texts])


@covering("num_rows, options", (1, 3), (GREEDY, SAMPLED), strength=1)
def test_ids_and_generator_are_plain_decodings(
    num_rows: int, options: dict[str, Any], pair: Pair, assistant: uag.Assistant
) -> None:
    stats = compare(pair.target, inputs(pair, num_rows) | options, assistant)
    assert_drafted(stats)
    assert stats.num_draft_tokens > 0 < stats.draft_forward_s
    assert stats.strategy == "cross-tokenizer"
    assert not stats.fallbacks


def test_as_many_are_accepted_as_with_the_same_weights_in_pytorch(pair: Pair, assistant: uag.Assistant) -> None:
    theirs = uag.Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer, num_candidate_tokens=4)
    counts = []
    for each in (assistant, theirs):
        each.generate(pair.target, **inputs(pair, 3), **GREEDY)
        counts.append((each.stats.num_candidate_tokens, each.stats.acceptance_rate))
    assert counts[0][0] > 40
    assert counts[0][1] == pytest.approx(counts[1][1], abs=0.02)


def test_a_shared_vocabulary_is_found_and_its_own_draft_is_always_right(pair: Pair, target_path: Path) -> None:
    assistant = uag.Assistant(str(target_path), tokenizer=pair.target_tokenizer, num_candidate_tokens=4, **IN_LLAMA)
    stats = compare(pair.target, inputs(pair) | GREEDY, assistant)
    assert stats.strategy == "shared-vocabulary"
    assert stats.acceptance_rate == 1.0


def test_a_draft_with_another_tokenizer_needs_only_the_file(pair: Pair, target_path: Path) -> None:
    prompt = torch.tensor([pair.draft_tokenizer("def add(a, b):\n    return")["input_ids"]])
    assistant = uag.Assistant(str(target_path), tokenizer=pair.draft_tokenizer, num_candidate_tokens=4, **IN_LLAMA)
    stats = compare(pair.draft, {"input_ids": prompt} | GREEDY, assistant)
    assert stats.strategy == "cross-tokenizer"
    assert_drafted(stats)


def test_a_context_is_windowed(pair: Pair, draft_path: Path) -> None:
    draft = uag.GgufDraft(draft_path, context=32, threads=1)
    tokenizers = pair.draft_tokenizer, pair.target_tokenizer
    assistant = uag.Assistant(draft, *tokenizers, num_candidate_tokens=4, **IN_LLAMA)
    given = inputs(pair, num_characters=600) | GREEDY | {"max_new_tokens": 60}
    assert given["input_ids"].shape[1] > 32
    assert compare(pair.target, given, assistant).num_accepted_tokens > 0


def test_a_failing_llama_cpp_does_not_change_the_output(
    pair: Pair, assistant: uag.Assistant, monkeypatch: pytest.MonkeyPatch
) -> None:
    import llama_cpp

    decode, calls, given = llama_cpp.llama_decode, count(), inputs(pair, 3) | GREEDY
    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp, "llama_decode", lambda *batch: decode(*batch) if next(calls) < 5 else -3)
        with pytest.warns(UserWarning, match="stopped drafting"):
            stats = compare(pair.target, given, assistant)
    assert any("status -3" in reason for reason in stats.fallbacks)
    stats = compare(pair.target, given, assistant)
    assert stats.num_accepted_tokens > 0
    assert not stats.fallbacks


def test_through_install_by_object_and_by_name(
    pair: Pair, draft_path: Path, target_path: Path, installed: None
) -> None:
    given = inputs(pair)
    plain = pair.target.generate(**given, **GREEDY)
    draft = uag.GgufDraft(draft_path)
    tokenizers = {"tokenizer": pair.target_tokenizer, "assistant_tokenizer": pair.draft_tokenizer}
    assert torch.equal(plain, pair.target.generate(**given, **GREEDY, assistant_model=draft, **tokenizers))
    assert uag.last_stats(pair.target).strategy == "cross-tokenizer"
    name = str(target_path)
    ids = pair.target.generate(**given, **GREEDY, assistant_model=name, tokenizer=pair.target_tokenizer)
    assert torch.equal(plain, ids)
    assert uag.last_stats(pair.target).strategy == "shared-vocabulary"
    with pytest.raises(UnsupportedError, match="can assist greedy decoding and sampling"):
        pair.target.generate(**given, max_new_tokens=4, num_beams=2, do_sample=False, assistant_model=draft)


def test_a_broken_file_is_refused_before_any_work(
    pair: Pair, draft_path: Path, tmp_path: Path, installed: None
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(draft_path.read_bytes()[:500_000])
    with pytest.raises(UnsupportedError, match=r"llama\.cpp cannot read .*not within the file"):
        uag.Assistant(cut, pair.draft_tokenizer, pair.target_tokenizer, **IN_LLAMA)
    with pytest.raises(UnsupportedError, match="compile_draft=True does not work"):
        uag.Assistant(draft_path, pair.draft_tokenizer, pair.target_tokenizer, compile_draft=True)
    # With `install`, the target generates even if the draft cannot draft.
    given = inputs(pair)
    with pytest.warns(UserWarning, match="llama.cpp cannot read"):
        ids = pair.target.generate(
            **given, **GREEDY, assistant_model=uag.GgufDraft(cut), tokenizer=pair.target_tokenizer,
            assistant_tokenizer=pair.draft_tokenizer,
        )  # fmt: skip
    assert torch.equal(ids, pair.target.generate(**given, **GREEDY))


def test_calls_leave_no_memory_behind(pair: Pair, draft_path: Path) -> None:
    """Thirty calls alternate between one row and two, so that each creates a new cache."""
    psutil = pytest.importorskip("psutil", reason="memory is read with psutil")
    assistant = uag.Assistant(
        draft_path, pair.draft_tokenizer, pair.target_tokenizer, num_candidate_tokens=2, **IN_LLAMA
    )
    options = GREEDY | {"max_new_tokens": 3}  # the last two can be drafted
    sizes = []
    for number in range(30):
        assistant.generate(pair.target, **inputs(pair, 1 + number % 2, 40), **options)
        if number in (9, 29):
            gc.collect()
            sizes.append(psutil.Process().memory_info().rss)
    assert assistant.stats.num_draft_forwards > 0
    assert sizes[1] - sizes[0] < 16 << 20, "a cache of the draft is 3 MB, its buffers 10"


def test_the_bench_takes_a_file(pair: Pair, target_path: Path) -> None:
    with_file = load_pair(demo_folder("target"), str(target_path), dtype="float32", device="cpu")
    assistant = uag.Assistant(with_file.draft, tokenizer=with_file.target_tokenizer, num_candidate_tokens=5)
    arms = [
        *build_arms(with_file, BenchOptions(arm_names=("plain", "transformers"))),
        build_baseline(with_file.target, "llama.cpp", str(target_path)),
    ]
    arms.append(assisted("uag", assistant, with_file.target))
    options = BenchOptions(max_new_tokens=8, num_trials=1)
    plain, theirs, engine, ours = measure(with_file, heldout_prompts()[:1], options, arms=arms)
    assert "transformers does not support drafts in GGUF files" in (theirs.refusal or "")
    assert ours.refusal is None
    assert ours.num_accepted_tokens > 0
    assert ours.num_output_tokens == engine.num_output_tokens == plain.num_output_tokens
    assert engine.note == "another engine"


def test_the_command_line_takes_a_file(pair: Pair, target_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", "--draft", str(target_path), "-p", "def add(a, b):", "--max-new-tokens", "8", "--json"]
    code, out, _ = run_cli(capsys, *arguments, "--target", demo_folder("target"), "--device", "cpu")
    assert code == 0
    report = json.loads(out)
    assert report["stats"]["strategy"] == "shared-vocabulary"
    assert report["stats"]["num_output_tokens"] == 8
    code, _, err = run_cli(capsys, "generate", "-p", "x", "--target", str(target_path))
    assert code == 2
    assert "which can be the draft" in err
