"""Measuring with stub models: equal outputs have figures; arms that differ or are refused have none."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.support.stubs import StubTokenizer, plain_arm, shown, stub_pair, writer
from uag.bench import BenchOptions, Prompt, Record, conclusions, measure, measuring, summary_table
from uag.bench.arms import Arm
from uag.bench.equality import Difference, first_difference
from uag.errors import OptionError
from uag.loading import Pair
from uag.stats import Stats

Measured = Callable[..., list[Record]]


@pytest.fixture
def pair() -> Pair:
    return stub_pair()


@pytest.fixture
def measured(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Measured:
    def run(*arms: Arm, prompts: Sequence[str] = ("xyz",), **options: Any) -> list[Record]:
        monkeypatch.setattr(measuring, "build_arms", lambda *_, **__: list(arms))
        numbered = [Prompt(str(number), text) for number, text in enumerate(prompts)]
        return list(measure(pair, numbered, BenchOptions(**{"num_trials": 2, **options})))

    return run


def test_equal_arms_are_reported_with_counts(pair: Pair, measured: Measured) -> None:
    plain, record = measured(plain_arm(pair), writer(pair, "abcd", seconds=0.002))
    assert record.refusal is None
    assert len(record.trial_seconds) == 2
    assert record.seconds is not None
    assert record.seconds >= 0.002
    assert (record.num_output_tokens, record.num_target_forwards, record.num_accepted_tokens) == (4, 1, 3)
    assert record.difference is None
    assert plain.num_candidate_tokens == 0
    entry = json.loads(json.dumps(record.to_dict(pair)))
    assert {"seconds", "versions", "hardware", "dtype", "target", "draft"} <= set(entry)


@pytest.mark.parametrize("outputs", [["abXd"] * 3, ["abcd", "abcd", "abXd"]], ids=["at once", "later"])
def test_an_arm_that_differs_has_no_figures(outputs: list[str], pair: Pair, measured: Measured) -> None:
    texts = iter(outputs)
    _, record = measured(plain_arm(pair), Arm("uag", lambda **given: writer(pair, next(texts)).generate(**given)))
    assert record.refusal == "differs from plain decoding at row 0, output token 2: 'X' where plain decoding has 'c'"
    assert (record.seconds, record.num_output_tokens) == (None, 0)


def test_in_half_precision_a_difference_is_counted_and_shown(pair: Pair, measured: Measured) -> None:
    pair.target.dtype = torch.bfloat16
    records = measured(plain_arm(pair), writer(pair, "abXd"))
    assert records[1].difference == "row 0, output token 2: 'X' where plain decoding has 'c'"
    assert records[1].refusal is None
    table = " ".join(shown(summary_table(records)).split())
    assert "uag: 1 of 1 outputs differ from plain decoding's, by rounding in half precision" in table


@pytest.mark.parametrize("is_promised", [True, False])
def test_a_difference_from_no_draft_is_refused_if_promised(pair: Pair, measured: Measured, is_promised: bool) -> None:
    pair.target.dtype = torch.bfloat16
    stats = Stats(is_draft_independent=is_promised)
    ours = Arm("uag", writer(pair, "abYd").generate, lambda: stats)
    records = measured(plain_arm(pair), writer(pair, "abXd", name="uag-no-draft"), ours)
    assert records[1].dependence is None
    assert records[2].dependence == "row 0, output token 2: 'Y' where uag-no-draft has 'X'"
    assert (records[2].refusal == f"differs from uag-no-draft at {records[2].dependence}") is is_promised
    assert conclusions(records)["is_equal"] is not is_promised


@pytest.mark.parametrize(
    ("arm", "error"),
    [
        ("transformers", ValueError("assisted generate is only supported\nfor batch_size = 1")),
        ("uag", torch.OutOfMemoryError("out of memory")),
    ],
)
def test_refusals_and_arms_without_memory_are_noted(arm: str, error: Exception, pair: Pair, measured: Measured) -> None:
    def refuse(**_: Any) -> torch.Tensor:
        raise error

    records = measured(plain_arm(pair), Arm(arm, refuse))
    assert records[1].refusal == f"{type(error).__name__}: {error}".replace("\n", " ")
    assert conclusions(records)["is_equal"]
    if arm == "transformers":
        with pytest.raises(ValueError, match="only supported"):  # an error of uag's own is never hidden
            measured(plain_arm(pair), Arm("uag", refuse))


def test_arms_warm_up_and_take_turns(pair: Pair, measured: Measured) -> None:
    calls: list[tuple[str, int]] = []

    def logged(name: str) -> Arm:
        def generate(**kwargs: Any) -> Any:
            calls.append((name, kwargs["max_new_tokens"]))
            assert kwargs.get("cache_implementation") is None
            return writer(pair, "abcd").generate(**kwargs)

        return Arm(name, generate)

    records = measured(logged("plain"), logged("uag"), prompts=("x", "y"), max_new_tokens=64)
    assert calls == [("plain", 16), ("uag", 16), *[("plain", 64), ("uag", 64)] * 4]
    assert [len(record.trial_seconds) for record in records] == [2] * 4


def test_compiled_arms_warm_up_with_the_longest_call(pair: Pair, measured: Measured) -> None:
    """A longer static cache would be compiled again."""
    calls: list[tuple[int, int]] = []

    def generate(**kwargs: Any) -> Any:
        calls.append((kwargs["input_ids"].shape[1], kwargs["max_new_tokens"]))
        assert kwargs["compile_config"]._compile_all_devices
        assert kwargs["cache_implementation"] == "static"
        return writer(pair, "abcd").generate(**kwargs)

    measured(Arm("plain", generate), prompts=("x", "xyz"), num_trials=1, cache="static", is_compiled=True)
    assert calls == [(3, 64), (1, 64), (3, 64)]


def test_a_baseline_may_differ_and_the_table_says_how_often(pair: Pair, measured: Measured) -> None:
    rounded = Arm("plain-bfloat16", writer(pair, "abXd").generate, note="bfloat16")
    records = measured(plain_arm(pair), rounded, prompts=("x", "y"), num_trials=1)
    assert records[1].refusal is None
    assert records[1].difference == "row 0, output token 2: 'X' where plain decoding has 'c'"
    table = " ".join(shown(summary_table(records)).split())
    assert "0/2" in table
    assert "plain-bfloat16: 2 of 2 outputs differ from plain decoding's, since it is bfloat16" in table


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_trials": 0}, "must be at least 1"),
        ({"batch_size": 0}, "must be at least 1"),
        ({"is_compiled": True}, "compiled passes need a static cache: pass --cache static"),
        ({"temperature": -1.0}, r"temperature=-1.0 and minutes=0.0 must be 0 or more"),
        ({"minutes": -1.0}, r"temperature=0.0 and minutes=-1.0 must be 0 or more"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        BenchOptions(**options)


@pytest.fixture
def slow(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Arm]:
    """Return a function that makes arms whose calls take ten seconds each, those of a token 2.5, by their own clock."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def make(name: str) -> Arm:
        def generate(**kwargs: Any) -> Any:
            now[0] += 10.0 if kwargs["max_new_tokens"] > 1 else 2.5
            return writer(pair, "abcd").generate(**kwargs)

        return Arm(name, generate)

    return make


def test_no_call_begins_after_the_bound(measured: Measured, slow: Callable[[str], Arm]) -> None:
    arms = slow("plain"), slow("uag")
    records = measured(*arms, prompts="abcdefgh", num_trials=1, minutes=75 / 60)  # three warm-ups, then up to six calls
    assert [(record.arm, record.prompt_ids) for record in records] == [
        (arm, (str(number),)) for number in range(3) for arm in ("plain", "uag")
    ]
    assert all(record.trial_seconds for record in records)


def test_what_the_first_batch_had_no_time_for_is_said(measured: Measured, slow: Callable[[str], Arm]) -> None:
    arms = [slow(name) for name in ("plain", "uag", "transformers")]
    plain, ours, theirs = measured(*arms, prompts="ab", num_trials=1, minutes=0.5)  # one warm-up of three is skipped
    assert plain.trial_seconds
    assert ours.trial_seconds
    assert theirs.refusal == "not measured within 0.5 minutes"
    assert "transformers is excluded: not measured within 0.5 minutes" in shown(summary_table([plain, ours, theirs]))


def test_a_slow_target_writes_less_so_that_all_is_measured(measured: Measured, slow: Callable[[str], Arm]) -> None:
    arms = slow("plain"), slow("uag")  # 0.5 s per token
    records = measured(*arms, num_trials=1, minutes=59.5 / 60)  # 37 s are left after the warm-ups, 5 s for two prompts
    assert [record.max_new_tokens for record in records] == [32, 32]
    assert all(record.trial_seconds for record in records)
    assert measured(*arms, num_trials=1, minutes=0.5)[0].max_new_tokens == 16
    assert measured(*arms, num_trials=1, minutes=0.5, max_new_tokens=8)[0].max_new_tokens == 8
    assert measured(*arms, num_trials=1, minutes=2.0)[0].max_new_tokens == 64
    assert measured(*arms, num_trials=1)[0].max_new_tokens == 64  # without a bound


def test_progress_names_the_arm_and_grows_to_the_end(pair: Pair) -> None:
    seen: list[tuple[float, str]] = []
    arms = [plain_arm(pair), writer(pair, "abcd")]
    options = BenchOptions(num_trials=2, max_new_tokens=16)
    list(measure(pair, [Prompt("0", "x")], options, arms=arms, progress=lambda *shown: seen.append(shown)))
    assert [name for _, name in seen] == ["plain, warm-up", "uag, warm-up", "plain", "uag", "plain", "uag"]
    assert [share for share, _ in seen] == pytest.approx([number / 6 for number in range(6)])


def test_first_difference_is_the_earliest_step_of_any_row() -> None:
    plain = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    arm = torch.tensor([[1, 2, 3, 9], [5, 0, 7, 8]])
    assert first_difference(plain, plain.clone()) is None
    assert first_difference(plain, arm) == Difference(row=1, step=1, plain_id=6, arm_id=0)
    difference = first_difference(torch.tensor([[1]]), torch.tensor([[1, 65]]))  # the arm's output goes on
    assert difference == Difference(row=0, step=1, plain_id=None, arm_id=65)
    assert difference.describe(StubTokenizer()) == "row 0, output token 1: 'A' where plain decoding has the end"
