"""The report: totals over all prompts in a table of 80 columns; an arm that differed once has no figures."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.stubs import shown
from uag.bench import Record, summarize, summary_table


def record(arm: str, seconds: float | None, prompt_id: str = "p", **values: Any) -> Record:
    counts = {"num_output_tokens": 10, "num_target_forwards": 5, **values}
    return Record(arm, (prompt_id,), 1, 0.0, 3, seconds=seconds, **counts)


def test_summary_is_over_all_prompts_together() -> None:
    records = [
        record("plain", 1.0, "a"),
        record("uag", 0.5, "a", num_candidate_tokens=8, num_accepted_tokens=6),
        record("plain", 3.0, "b"),
        record("uag", 0.5, "b", num_candidate_tokens=8, num_accepted_tokens=2),
    ]
    plain, ours = summarize(records)
    assert plain.speed_up == 1.0
    assert plain.acceptance_rate is None
    assert ours.tokens_per_s == 20.0
    assert ours.speed_up == pytest.approx(4.0)
    assert ours.speed_up_quartiles == pytest.approx((3.0, 5.0))
    assert ours.acceptance_rate == 0.5
    assert ours.tokens_per_target_pass == 2.0
    batch = replace(records[0], prompt_ids=("a", "b"), batch_size=2)
    assert summarize([batch])[0].tokens_per_target_pass == 1.0  # per row


def test_summary_refuses_an_arm_that_differed_once() -> None:
    records = [
        record("plain", 1.0),
        record("uag", 0.5),
        record("plain", 1.0, "q"),
        record("uag", None, "q", refusal="no", difference="row 0"),
    ]
    ours = summarize(records)[1]
    assert ours.speed_up is None
    assert ours.refusal == "on 1 of 2, first q: no"
    assert "refused" in shown(summary_table(summarize(records)))


def test_table_fits_eighty_columns_and_escapes_markup() -> None:
    records = [record("plain", 1.0), record("prompt-lookup", None, refusal="wrote '[/b]'"), record("uag", 0.5)]
    lines = shown(summary_table(summarize(records))).splitlines()
    assert any("tokens/s" in line and "accepted" in line for line in lines)
    assert any("prompt-lookup is excluded: wrote '[/b]'" in line for line in lines)
    assert not any("…" in line for line in lines)


def test_the_speed_up_is_split_into_products_and_drafting() -> None:
    records = [record("plain", 3.0), record("uag-no-draft", 2.0), record("uag", 1.0)]
    table = shown(summary_table(summarize(records)))
    assert "uag 3.00x: 1.50 from uag's own passes, 2.00 from drafting" in table
    assert "uag-no-draft 1.50x" not in table
    _, no_draft, uag = summarize(records)
    assert (no_draft.gain, uag.gain, uag.gain_quartiles) == (1.0, 2.0, (2.0, 2.0))


def test_why_the_last_call_did_not_draft_is_shown() -> None:
    slow = replace(record("uag", 1.0), stats={"not_drafting": "a candidate costs 9.00 ms"})
    table = shown(summary_table(summarize([record("plain", 1.0), slow])))
    assert "uag, last call: not drafting: a candidate costs 9.00 ms" in " ".join(table.split())


def test_long_names_are_folded_and_brackets_in_them_are_no_markup() -> None:
    name = "/a/folder[/v2]/" + "with-a-long-name/" * 4
    table = shown(summary_table(summarize([record("plain", 1.0), record(name, 0.5)])))
    assert name in "".join(line.split()[0] for line in table.splitlines() if line.strip())
    assert max(map(len, table.splitlines())) <= 80
