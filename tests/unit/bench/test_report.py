"""The report: totals over all prompts in a table of 80 columns; an arm that differed once has no figures."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.stubs import shown
from uag.bench import Record, by_arm, conclusions, lines, summary_table


def record(arm: str, seconds: float | None, prompt_id: str = "p", **values: Any) -> Record:
    counts = {"num_output_tokens": 10, "num_target_forwards": 5, **values}
    return Record(arm, (prompt_id,), 1, 0.0, 3, seconds=seconds, **counts)


def figures(records: list[Record]) -> list[dict[str, Any]]:
    arms: list[dict[str, Any]] = conclusions(records)["arms"]
    return arms


def test_figures_are_over_all_prompts_together() -> None:
    records = [
        record("plain", 1.0, "a"),
        record("uag", 0.5, "a", num_candidate_tokens=8, num_accepted_tokens=6),
        record("plain", 3.0, "b"),
        record("uag", 0.5, "b", num_candidate_tokens=8, num_accepted_tokens=2),
    ]
    plain, ours = figures(records)
    assert plain["speed_up"] == 1.0
    assert plain["acceptance_rate"] is None
    assert ours["tokens_per_s"] == 20.0
    assert ours["speed_up"] == pytest.approx(4.0)
    assert ours["quartiles"] == pytest.approx((3.0, 5.0))
    assert ours["acceptance_rate"] == 0.5
    assert ours["tokens_per_pass"] == 2.0
    batch = replace(records[0], prompt_ids=("a", "b"), batch_size=2)
    assert figures([batch])[0]["tokens_per_pass"] == 1.0  # per row


def test_an_arm_that_differed_once_has_no_figures() -> None:
    records = [
        record("plain", 1.0),
        record("uag", 0.5),
        record("plain", 1.0, "q"),
        record("uag", None, "q", refusal="no", difference="row 0"),
    ]
    ours = figures(records)[1]
    assert ours["speed_up"] is None
    assert ours["refusal"] == "on 1 of 2, first q: no"
    assert "refused" in shown(summary_table(records))
    assert lines(conclusions(records))[1] == "OUTPUTS DIFFER that must be equal: see the table"


def test_table_fits_eighty_columns_and_escapes_markup() -> None:
    records = [record("plain", 1.0), record("prompt-lookup", None, refusal="wrote '[/b]'"), record("uag", 0.5)]
    table = shown(summary_table(records)).splitlines()
    assert any("tokens/s" in line and "accepted" in line for line in table)
    assert any("prompt-lookup is excluded: wrote '[/b]'" in line for line in table)
    assert not any("…" in line for line in table)


def test_what_drafting_itself_gives_and_costs_is_said() -> None:
    records = [
        record("plain", 3.0),
        record("uag-no-draft", 2.0),
        record("uag", 1.0),
        record("uag-lookup", 1.6),
        record("uag-useless", 2.1, num_rounds=10),
    ]
    found = conclusions(records)
    assert found["verdict"].endswith(
        ": 3.00 times the speed of plain decoding, 2.00 times that of uag without a draft, "
        "1.60 times that of prompt lookup alone"
    )
    assert found["tax"] == pytest.approx({"percent": 5.0, "ms_per_round": 10.0, "speed_up": 3.0 / 2.1})
    assert lines(found)[2] == (
        "when nothing is accepted (uag-useless), uag takes 5.0 % more time than without a draft, +10.00 ms a round; "
        "1.43 times the speed of plain decoding"
    )
    assert conclusions(records[:-1])["tax"] is None
    faster = [*records[:-1], record("uag-useless", 1.9, num_rounds=10)]
    assert "uag takes 5.0 % less time than without a draft, -10.00 ms a round" in lines(conclusions(faster))[2]


def test_what_passes_cost_by_their_tokens_is_said() -> None:
    of_calls = [{8: [0.04] * 2, 1: [0.03, 0.031, 9.0]}, {8: [0.5], 5: [1.0, 1.0]}]
    records = [replace(record("uag", 1.0), stats={"pass_seconds": seconds}) for seconds in of_calls]
    found = conclusions([*[record("plain", 1.0)] * 2, *records])
    assert found["pass_s"] == {1: 0.031, 8: 0.04}
    assert lines(found)[-1] == "a target pass over 1 / 8 tokens takes 31.0 / 40.0 ms"


def test_how_many_outputs_differ_is_said() -> None:
    records = [record("plain", 1.0), record("uag-no-draft", 1.0, difference="a"), record("uag", 1.0, difference="a")]
    expected = "2 of 2 outputs of uag differ from plain decoding's, 0 of 1 from those of uag without a draft"
    assert conclusions(records)["equality"] == expected
    assert conclusions(records[::2])["equality"] == "1 of 1 outputs of uag differ from plain decoding's"


def test_why_the_last_call_did_not_draft_is_shown() -> None:
    slow = replace(record("uag", 1.0), stats={"not_drafting": "a candidate costs 9.00 ms"})
    table = shown(summary_table([record("plain", 1.0), slow]))
    assert "uag, last call: not drafting: a candidate costs 9.00 ms" in " ".join(table.split())


def test_arms_of_several_drafts_are_named_by_them_and_long_names_are_folded() -> None:
    name = "/a/folder[/v2]/" + "with-a-long-name/" * 4
    records = [record("plain", 1.0), record("uag", 0.5, draft=name), record("uag", 0.5, draft="b")]
    assert list(by_arm(records)) == ["plain", f"uag {name}", "uag b"]
    assert list(by_arm(records[:2])) == ["plain", "uag"]
    table = shown(summary_table(records))
    assert name in "".join(line.split("  ")[0].strip() for line in table.splitlines() if line.strip())
    assert max(map(len, table.splitlines())) <= 80


def drafted(draft: str, *seconds: float) -> list[Record]:
    return [record("uag", each, str(number), draft=draft) for number, each in enumerate(seconds)]


def base(arm: str, num: int, seconds: float = 1.0) -> list[Record]:
    return [record(arm, seconds, str(number)) for number in range(num)]


REFUSED = [Record("uag", (), 1, 0.0, 0, "bad", refusal="no model folder 'bad'")]


@pytest.mark.parametrize(
    ("records", "verdict"),
    [
        (drafted("d", 0.8, 0.8, 0.9, 0.9), "worth using: 1.18 times the speed of plain decoding"),
        (drafted("d", 0.8, 0.8, 1.1, 1.1), "inconclusive: "),
        (drafted("d", 1.2, 1.2, 1.1, 1.1), "not worth using: "),
        (drafted("d", 0.9, 0.9, 0.9), "too few prompts to tell: 1.11 times the speed of plain"),
        (
            [*base("uag-no-draft", 4, 0.5), *drafted("d", 0.6, 0.6, 0.6, 0.6)],  # the kernels alone are faster
            "not worth using: 1.67 times the speed of plain decoding, 0.83 times that of uag without a draft",
        ),
        ([*base("uag-no-draft", 4, 2.0), *drafted("d", 0.9, 0.9, 1.1, 1.1)], "inconclusive: "),
        ([*drafted("good", 0.8, 0.8, 0.8, 0.8), *REFUSED], "best draft: good, worth using: "),
        ([replace(drafted("d", 0.8)[0], refusal="no")], "d cannot draft for this target"),
        ([*REFUSED, replace(REFUSED[0], draft="worse")], "none of these can draft for this target"),
        (base("uag-no-draft", 4), ""),
    ],
)
def test_the_verdict_goes_by_the_quartiles(records: list[Record], verdict: str) -> None:
    num = sum(each.arm == "uag" and bool(each.prompt_ids) for each in records)
    found = conclusions([*base("plain", num or 4), *records])["verdict"]
    assert found.startswith(verdict) if verdict else found == ""
