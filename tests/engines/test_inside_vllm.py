"""Inside a real vLLM, the ids are the same with and without uag, regardless of scheduling. Run by `.ci/engines`."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.conftest import find_shared
from tests.engines.vllm_runs import DEMO, GREEDY, HARD, TIGHT, drafting, plain, run

pytestmark = pytest.mark.engines
pytest.importorskip("vllm", reason="vLLM is not installed", exc_type=ImportError)

NUM_SAMPLES = 2000


def python_pairs() -> list[Any]:
    """The demo pair and, if the shared data has it, the pair trained on Python code, alone and crossed with it."""
    shared = find_shared()
    pairs = [pytest.param(DEMO, id="demo")]
    if shared is not None and (shared / "models" / "py-target").is_dir():
        target, draft = (str((shared / "models" / name).resolve()) for name in ("py-target", "py-draft"))
        pairs += [
            pytest.param((target, draft), id="py", marks=pytest.mark.slow),
            pytest.param((target, DEMO[1]), id="py-demo", marks=pytest.mark.slow),
            pytest.param((DEMO[0], draft), id="demo-py", marks=pytest.mark.slow),
        ]
    return pairs


def assert_same(result: dict[str, Any], expected: dict[str, Any]) -> None:
    for mine, theirs in zip(result["runs"], expected["runs"], strict=True):
        assert [row["ids"] for row in mine] == [row["ids"] for row in theirs]
        for row, other in zip(mine, theirs, strict=True):
            assert row["logprobs"] == pytest.approx(other["logprobs"], abs=1e-3)


def accepted(result: dict[str, Any]) -> tuple[int, int]:
    counts = result["counts"]
    names = ("vllm:spec_decode_num_accepted_tokens", "vllm:spec_decode_num_drafts")
    return counts[names[0]], counts[names[1]]


@pytest.mark.parametrize("pair", python_pairs())
def test_the_same_ids_under_preemption_and_chunked_prefill(pair: tuple[str, str], tmp_path: Path) -> None:
    target, draft = pair
    expected = plain(tmp_path, target)
    result = run(tmp_path, target, HARD, **drafting(draft), **TIGHT)
    assert_same(result, expected)
    assert result["counts"]["vllm:num_preemptions"] >= 3
    num_accepted, num_drafts = accepted(result)
    assert num_accepted > 0.2 * num_drafts
    assert "uag drafts with" in result["log"]
    assert "uag could not draft" not in result["log"]


def test_the_same_ids_where_the_engines_speed_decides_how_far_to_draft(tmp_path: Path) -> None:
    """With default settings."""
    result = run(tmp_path, DEMO[0], HARD, **drafting(DEMO[1], min_confidence=None), **TIGHT)
    assert_same(result, plain(tmp_path, DEMO[0]))
    assert accepted(result)[1] > 0
    assert "uag could not draft" not in result["log"]


@pytest.mark.parametrize("pair", python_pairs())
def test_the_same_ids_with_two_tensor_parallel_ranks(pair: tuple[str, str], tmp_path: Path) -> None:
    """Sums over two ranks round differently than on one rank, so the plain run has two ranks as well."""
    target, draft = pair
    expected = run(tmp_path, target, HARD[:1], tensor_parallel_size=2)
    result = run(tmp_path, target, HARD[:1], tensor_parallel_size=2, **drafting(draft))
    assert_same(result, expected)
    assert accepted(result)[0] > 0
    assert result["log"].count("uag drafts with") == 1


def test_wrong_settings_end_the_start_with_a_clear_message(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="unknown settings: 'drafts'"):
        run(tmp_path, DEMO[0], [GREEDY], **drafting(DEMO[1], drafts=2))


@pytest.mark.slow
def test_errors_while_drafting_do_not_end_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a draft fails at every pass, vLLM continues without it."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    tmp_path.joinpath("sitecustomize.py").write_text(
        "import uag.drafting\n"
        "def fails(*arguments, **options): raise RuntimeError('made to fail')\n"
        "uag.drafting.TorchPasses.feed = fails\n"
    )
    result = run(tmp_path, DEMO[0], HARD, **drafting(DEMO[1]))
    monkeypatch.delenv("PYTHONPATH")
    assert_same(result, plain(tmp_path, DEMO[0]))
    assert result["log"].count("uag could not draft") == 1


@pytest.mark.slow
def test_sampling_keeps_the_targets_distribution(tmp_path: Path) -> None:
    """Many samples of one prompt with and without uag differ no more than random splits of the same samples."""
    options = {"temperature": 1.0, "max_tokens": 4, "n": NUM_SAMPLES, "ignore_eos": True}
    samples = []
    # vLLM's sample i has the seed `seed + i`, so the two runs share no seed.
    for engine, seed in (({}, 0), (drafting(DEMO[1], min_confidence=0.0), NUM_SAMPLES)):
        result = run(tmp_path, DEMO[0], [options | {"seed": seed}], fix_sampling=True, num=1, max_num_seqs=64, **engine)
        samples.append([row["ids"] for row in result["runs"][0]])
    num_accepted, num_drafts = accepted(result)
    assert 0.1 * num_drafts < num_accepted < result["counts"]["vllm:spec_decode_num_draft_tokens"]
    for start, end in ((0, 1), (1, 2), (2, 3), (3, 4), (0, 2), (1, 3), (2, 4)):
        plain_spans, our_spans = ([tuple(ids[start:end]) for ids in rows] for rows in samples)
        distance = _variation(plain_spans, our_spans)
        assert distance <= _most_by_chance(plain_spans + our_spans), (start, end, distance)


def _variation(first: list[tuple[int, ...]], second: list[tuple[int, ...]]) -> float:
    one, other = Counter(first), Counter(second)
    return sum(abs(one[i] / one.total() - other[i] / other.total()) for i in {*one, *other}) / 2


def _most_by_chance(spans: list[tuple[int, ...]], num_deals: int = 1000) -> float:
    """Return the largest distance between halves of the same samples, over many random halves."""
    deal, half = Random(0), len(spans) // 2
    spans = list(spans)
    most = 0.0
    for _ in range(num_deals):
        deal.shuffle(spans)
        most = max(most, _variation(spans[:half], spans[half:]))
    return most
