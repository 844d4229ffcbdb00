"""Measuring with stub models: equal outputs have figures; arms that differ or are refused have none."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.support.stubs import plain_arm, shown, stub_pair, writer
from uag.bench import BenchOptions, Prompt, Record, measure, measuring, summarize, summary_table
from uag.bench.arms import Arm
from uag.errors import OptionError
from uag.loading import Pair

Measured = Callable[..., list[Record]]


@pytest.fixture
def pair() -> Pair:
    return stub_pair()


@pytest.fixture
def measured(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Measured:
    """Return a function that measures arms on prompts, which are numbered."""

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
    assert {"seconds", "commit", "versions", "hardware", "dtype", "target", "draft"} <= set(entry)


@pytest.mark.parametrize("outputs", [["abXd"] * 3, ["abcd", "abcd", "abXd"]], ids=["at once", "later"])
def test_an_arm_that_differs_has_no_figures(outputs: list[str], pair: Pair, measured: Measured) -> None:
    texts = iter(outputs)
    _, record = measured(plain_arm(pair), Arm("uag", lambda **given: writer(pair, next(texts)).generate(**given)))
    assert record.refusal == "differs from plain decoding at row 0, output token 2: 'X' where plain decoding has 'c'"
    assert (record.seconds, record.num_output_tokens) == (None, 0)


def test_rounding_is_counted_and_shown(pair: Pair, measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "is_rounding", lambda *_, **__: True)
    records = measured(plain_arm(pair), writer(pair, "abXd"))
    assert records[1].difference == "row 0, output token 2: 'X' where plain decoding has 'c'"
    table = shown(summary_table(summarize(records)))
    assert "uag: 1 outputs differ by the target's own rounding" in table


def test_what_transformers_refuses_is_noted(pair: Pair, measured: Measured) -> None:
    def refuse(**_: Any) -> torch.Tensor:
        raise ValueError("assisted generate is only supported\nfor batch_size = 1")

    _, record = measured(plain_arm(pair), Arm("transformers", refuse))
    assert record.refusal == "ValueError: assisted generate is only supported for batch_size = 1"
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
    table = shown(summary_table(summarize(records)))
    assert "0/2" in table
    assert "plain-bfloat16: 2 outputs differ since it is bfloat16" in table


def test_batches_cover_all_prompts(pair: Pair, measured: Measured) -> None:
    records = measured(plain_arm(pair), prompts=("x", "xx", "xxx"), arm_names=("plain",), batch_size=2, num_trials=1)
    assert [record.prompt_ids for record in records] == [("0", "1"), ("2",)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_trials": 0}, "must be at least 1"),
        ({"batch_size": 0}, "must be at least 1"),
        ({"is_compiled": True}, "compiled passes need a static cache: pass --cache static"),
        ({"temperature": -1.0}, r"the temperature must be 0 \(greedy\) or more, not -1.0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        BenchOptions(**options)


def test_in_half_precision_the_refusal_says_what_to_do(pair: Pair, measured: Measured) -> None:
    pair.target.dtype = torch.bfloat16
    _, record = measured(plain_arm(pair), writer(pair, "abXd"))
    assert record.refusal is not None
    assert record.refusal.endswith(", by more than rounding explains (compare in float32, or with a fixed width)")
