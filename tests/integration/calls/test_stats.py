"""The statistics are correct for every entry point, per row and in total."""

import copy
import logging
import warnings
from time import perf_counter
from typing import Any

import pytest
import torch

import uag
from tests.support.callers import Looks, Watches, count_calls, count_passes, raises_at
from tests.support.calls import (
    GREEDY,
    NEW,
    PROMPTS,
    ROWS,
    assistant_of,
    compare,
    left_padded,
    num_drafted,
    pair,
    through,
)
from tests.support.grids import covering
from uag.lookahead import clock
from uag.stats import RowStats, Stats


def check_sums(stats: Stats, ids: torch.Tensor, prompt_length: int, eos_ids: list[int], pad_id: int = 0) -> None:
    assert len(stats.rows) == stats.batch_size == ids.shape[0]
    for name in ("num_candidate_tokens", "num_accepted_tokens", "num_output_tokens"):
        assert getattr(stats, name) == sum(getattr(row, name) for row in stats.rows), name
    assert stats.num_candidate_tokens == sum(stats.candidates_by_source.values())
    assert stats.num_accepted_tokens == sum(stats.accepted_by_source.values())
    for row, sources, written in zip(stats.rows, stats.sources, ids[:, prompt_length:].tolist(), strict=True):
        size = next((place + 1 for place, i in enumerate(written) if i in eos_ids), len(written))
        assert row.num_output_tokens == len(sources) == size
        assert row.num_accepted_tokens == num_drafted(sources) <= row.num_candidate_tokens
        assert row.num_rounds <= stats.num_rounds


@covering("door, in_lockstep, num_rows", ("generate", "custom_generate", "install"), (False, True), (1, 3))
def test_every_door(num_rows: int, in_lockstep: bool, door: str) -> None:
    target, _, draft, _ = pair(eos=True)
    given: dict[str, Any] = {**left_padded(PROMPTS[:num_rows]), **GREEDY}
    if in_lockstep:
        given |= {"logits_processor": [Looks()], "stopping_criteria": [Watches()]}
    assistant = assistant_of(eos=True)
    uag.Assistant(None).generate(target, **given | {"max_new_tokens": 2})  # runs the trial, whose passes do not count

    (ids, num_target), num_draft = count_calls(
        draft, lambda: count_passes(target, lambda: through(door, assistant, target)(**given))
    )
    stats = uag.last_stats(target)
    assert door == "install" or stats is assistant.stats
    check_sums(stats, ids, given["input_ids"].shape[1], target.generation_config.eos_token_id)
    assert (stats.num_target_forwards, stats.num_draft_forwards) == (num_target, num_draft)
    assert stats.strategy == "cross-tokenizer"
    assert stats.num_candidate_tokens > 0
    assert 0 < stats.first_token_s < stats.total_s
    assert stats.target_s + stats.draft_s <= stats.total_s
    assert sum(map(len, stats.pass_seconds.values())) == num_target - 1  # without the prompt's
    assert stats.compile_s < sum(map(sum, stats.pass_seconds.values())) < stats.target_s
    assert stats.draft_forward_s <= stats.draft_s


def test_plain_data_and_latencies() -> None:
    stats = Stats(total_s=9.0, first_token_s=1.0, rows=[RowStats(num_output_tokens=5), RowStats(num_output_tokens=3)])
    assert stats.inter_token_s == 2.0
    assert Stats(rows=[RowStats(num_output_tokens=1)]).inter_token_s == 0.0
    assistant = assistant_of()
    assistant.generate(pair()[0], **left_padded(PROMPTS), **GREEDY)
    values = assistant.stats.to_dict()
    assert [row["num_output_tokens"] for row in values["rows"]] == [NEW] * 3
    assert values["acceptance_rate"] == assistant.stats.acceptance_rate
    assert "sources" not in values


def test_waiting_for_a_free_core_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: 0.5 * perf_counter())  # the thread waits half of the time
    stats = compare(pair()[0], left_padded(PROMPTS[:1]) | GREEDY)
    assert 0.4 * stats.total_s < stats.waited_s < 0.6 * stats.total_s


def test_printed_they_are_five_lines() -> None:
    stats = Stats(strategy="cross-tokenizer", num_output_tokens=40, total_s=2.0, target_s=1.5, draft_s=0.3)
    stats.num_candidate_tokens, stats.num_accepted_tokens = 8, 3
    stats.candidates_by_source, stats.accepted_by_source = {"draft model": 6, "prompt": 2}, {"draft model": 3}
    speed, acceptance, time, sources, fallbacks = str(stats).splitlines()
    assert speed.startswith("cross-tokenizer: 40 tokens in 2.000 s (20.0/s)")
    assert acceptance == "acceptance 38%: 3 of 8 candidates"
    assert time == "time: 0 target passes 1.500 s, drafting with 0 draft passes 0.300 s, other 0.200 s"
    assert sources == "accepted: 3 of 6 from draft model, 0 of 2 from prompt"
    assert fallbacks == "fall-backs: none"
    stats.waited_s = 0.1
    waiting = time.replace("other 0.200 s", "other 0.100 s, waiting for a free core 0.100 s")
    assert waiting in str(stats).splitlines()
    plain = Stats(num_target_forwards=8, total_s=2.0)
    assert "time: 8 target passes in transformers' own loop" in str(plain).splitlines()
    stats.fall_back("the reason")
    assert str(stats).endswith("fall-backs: the reason")
    assert repr(stats).startswith("Stats(num_rounds=0, num_candidate_tokens=8")


def test_a_line_shows_dtypes_that_differ() -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    half = copy.deepcopy(draft).bfloat16()
    assistant = uag.Assistant(half, draft_tokenizer, tokenizer)
    assistant.generate(target, **left_padded(PROMPTS[:1]), **GREEDY)
    assert "dtypes: target float32, draft bfloat16" in str(assistant.stats).splitlines()
    assistant.generate(copy.deepcopy(target).bfloat16(), **left_padded(PROMPTS[:1]), **GREEDY)
    assert assistant.stats.dtypes == ""
    assert "dtypes" not in str(assistant.stats)


@ROWS
def test_one_line_per_call(num_rows: int, caplog: pytest.LogCaptureFixture) -> None:
    target, assistant = pair(eos=True)[0], assistant_of(eos=True)
    with caplog.at_level(logging.INFO, logger="uag"):
        for _ in range(2):
            assistant.generate(target, **left_padded(PROMPTS[:num_rows]), **GREEDY)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("uag")]
    assert len(lines) == 2
    assert lines[1] == assistant.stats.summary()
    assert "\n" not in lines[1]
    for part in ("cross-tokenizer", "tokens in", "target passes", "draft passes", "acceptance", "first token", "ms"):
        assert part in lines[1]
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="uag"):
        assistant.generate(target, **left_padded(PROMPTS[:num_rows]), **GREEDY)
    assert not caplog.records


def after_three(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
    return torch.tensor([row == 0 and input_ids.shape[1] >= 7 + 3 for row in range(input_ids.shape[0])])


@pytest.mark.parametrize("is_drafted", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_padding_is_no_output(fails: bool, is_drafted: bool) -> None:
    """Padding after the end of a row is not counted, no matter what ended it; a call that fails is counted, too."""
    assistant = assistant_of() if is_drafted else uag.Assistant(None, None, pair()[1])
    given: dict[str, Any] = {**left_padded(PROMPTS), **GREEDY, "stopping_criteria": [after_three], "eos_token_id": 648}
    if fails:
        with pytest.raises(ValueError, match="the user's own error"):
            assistant.generate(pair()[0], **given, logits_processor=[raises_at(11)])
    else:
        assistant.generate(pair()[0], **given)
    stats = assistant.stats
    lengths = [3, 4, 4] if fails else [3, NEW, NEW]
    assert [row.num_output_tokens for row in stats.rows] == [len(row) for row in stats.sources] == lengths
    assert 0.0 < stats.first_token_s < stats.total_s
    assert (stats.num_candidate_tokens > 0) is is_drafted


def test_a_warning_that_is_an_error_does_not_lose_the_output(caplog: pytest.LogCaptureFixture) -> None:
    target, given = pair()[0], left_padded(PROMPTS) | GREEDY | {"logits_processor": [Looks()]}
    expected = target.generate(**given).tolist()
    assistant = assistant_of()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert assistant.generate(target, **given).tolist() == expected
    assert assistant.stats.fallbacks
    assert assistant.stats.fallbacks[0] in caplog.messages
