"""What the records of a benchmark say: figures of each arm, a table, and conclusions in words."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.markup import escape
from rich.table import Table

from uag.bench.options import LOOKUP, USELESS, WITHOUT_DRAFT
from uag.bench.record import Record

Arms = Mapping[str, list[Record]]

_FEWEST_PROMPTS = 4
"""Minimum number of prompts for a verdict on a draft."""


def by_arm(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records of each arm, in order of appearance; with several drafts, the names of arms include theirs."""
    drafts: dict[str, set[str]] = defaultdict(set)
    for record in records:
        drafts[record.arm].add(record.draft)
    arms: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        arms[f"{record.arm} {record.draft}" if len(drafts[record.arm]) > 1 else record.arm].append(record)
    return dict(arms)


def refusal(records: Sequence[Record]) -> str | None:
    """Return why an arm is not reported; None if it is."""
    refused = [record for record in records if record.refusal is not None]
    if not refused or len(records) == 1:
        return refused[0].refusal if refused else None
    return f"on {len(refused)} of {len(records)}, first {', '.join(refused[0].prompt_ids)}: {refused[0].refusal}"


def speed(records: Sequence[Record], base: Sequence[Record] | None = None) -> float | None:
    """Return an arm's tokens per second over all prompts, or the ratio to another arm's; None if one has no figures."""
    if base is not None:
        ours, theirs = speed(records), speed(base)
        return ours / theirs if ours and theirs else None
    if not records or refusal(records):
        return None
    return sum(record.num_output_tokens for record in records) / sum(record.seconds or 0.0 for record in records)


def quartiles(records: Sequence[Record], base: Sequence[Record]) -> tuple[float, float] | None:
    """Return the quartiles over batches of an arm's speed relative to another's; None if one has no figures."""
    if speed(records, base) is None:
        return None
    ratios = [speed([of], [to]) or 0.0 for of, to in zip(records, base, strict=True)]
    low, high = np.percentile(ratios, (25, 75)).tolist()
    return low, high


def figures(arms: Arms) -> list[dict[str, Any]]:
    """Return a row of figures for each arm, ready for JSON; speeds are relative to plain decoding's and other arms'."""
    return [{"arm": name} | _figures(records, arms) for name, records in arms.items()]


def _figures(records: Sequence[Record], arms: Arms) -> dict[str, Any]:
    num_candidates = sum(record.num_candidate_tokens for record in records)
    num_passes = sum(record.num_target_forwards * len(record.prompt_ids) for record in records)  # of single rows
    num_tokens = sum(record.num_output_tokens for record in records)
    return {
        "draft": records[0].draft,
        "num_records": len(records),
        "num_differences": sum(record.difference is not None for record in records),
        "num_dependent": sum(record.dependence is not None for record in records),
        "tokens_per_s": speed(records),
        "speed_up": speed(records, arms["plain"]),
        "quartiles": quartiles(records, arms["plain"]),
        "over_no_draft": speed(records, arms.get(WITHOUT_DRAFT, [])),
        "over_lookup": speed(records, arms.get(LOOKUP, [])),
        "tokens_per_pass": num_tokens / num_passes if num_passes else None,
        "acceptance_rate": sum(record.num_accepted_tokens for record in records) / (num_candidates or 1)
        if num_candidates
        else None,
        "refusal": refusal(records),
    }


def summary_table(records: Sequence[Record], title: str | None = None) -> Table:
    """Return a table of the arms for a terminal of 80 columns, with notes below."""
    arms = by_arm(records)
    table = Table(
        title=title, caption=escape("\n".join(notes(arms))) or None, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0),
        pad_edge=False, title_justify="left", caption_justify="left",
    )  # fmt: skip
    table.add_column("arm", overflow="fold")  # a draft's name may be a long path
    for heading in ("tokens/s", "speed-up", "quartiles", "tok/pass", "accepted", "equal"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in figures(arms):
        table.add_row(escape(row["arm"]), *_cells(row), style="bold" if row["arm"] == "uag" else None)
    return table


def _cells(row: dict[str, Any]) -> list[str]:
    num_equal = row["num_records"] - row["num_differences"]
    equal = f"{num_equal}/{row['num_records']}" if row["num_differences"] else "yes"
    if row["speed_up"] is None:
        return ["refused", *[""] * 4, "no" if row["num_differences"] else "-"]
    low, high = row["quartiles"]
    accepted = "-" if row["acceptance_rate"] is None else f"{row['acceptance_rate']:.0%}"
    speeds = f"{row['tokens_per_s']:.1f}", f"{row['speed_up']:.2f}x", f"{low:.2f}-{high:.2f}"
    return [*speeds, f"{row['tokens_per_pass']:.2f}", accepted, equal]


def notes(arms: Arms) -> Iterator[str]:
    """Yield why arms have no figures, how many outputs differ and why, and why little was drafted."""
    for name, records in arms.items():
        num_differences = sum(record.difference is not None for record in records)
        if why := refusal(records):
            yield f"{name} is excluded: {why}"
        elif num_differences:
            reason = f"since it is {records[0].note}" if records[0].note else "by rounding in half precision"
            yield f"{name}: {num_differences} of {len(records)} outputs differ from plain decoding's, {reason}"
        not_drafting = (records[-1].stats or {}).get("not_drafting")
        if not_drafting and not why:
            yield f"{name}, last call: not drafting: {not_drafting}"


def is_equal(records: Sequence[Record]) -> bool:
    """Whether no output of uag's differs that must be equal."""
    return not any(record.refusal and (record.difference or record.dependence) for record in records if _is_uag(record))


def _is_uag(record: Record) -> bool:
    return record.arm.startswith("uag")


def equality(records: Sequence[Record]) -> str:
    """Return how many of uag's outputs differ from plain decoding's, and from uag's without a draft."""
    if not is_equal(records):
        return "OUTPUTS DIFFER that must be equal: see the table"
    ours = [record for record in records if _is_uag(record) and record.prompt_ids]
    num_differences = sum(record.difference is not None for record in ours)
    with_draft = [record for record in ours if record.arm != WITHOUT_DRAFT]
    num_dependent = sum(record.dependence is not None for record in with_draft)
    text = f"{num_differences} of {len(ours)} outputs of uag differ from plain decoding's"
    if len(with_draft) < len(ours):
        text += f", {num_dependent} of {len(with_draft)} from those of uag without a draft"
    return text


def advice(arms: Arms) -> str:
    """Return whether the draft, or the best of several, is worth using; empty if no arm uag was measured.

    It is if it is faster on three of four prompts, than plain decoding and than uag without a draft.
    """
    drafts = [records for records in arms.values() if records[0].arm == "uag"]
    if not drafts:
        return ""
    best = max(drafts, key=lambda records: speed(records, arms["plain"]) or 0.0)
    name, has_several, no_draft = best[0].draft, len(drafts) > 1, arms.get(WITHOUT_DRAFT, [])
    over_plain, of_plain = speed(best, arms["plain"]), quartiles(best, arms["plain"])
    if of_plain is None:
        return f"{'none of these can' if has_several else f'{name} cannot'} draft for this target"
    low, high = map(min, of_plain, quartiles(best, no_draft) or of_plain)
    if sum(len(record.prompt_ids) for record in best) < _FEWEST_PROMPTS:
        answer = "too few prompts to tell"
    elif low > 1.0:
        answer = "worth using"
    else:
        answer = "not worth using" if high < 1.0 else "inconclusive"
    over = {"uag without a draft": speed(best, no_draft), "prompt lookup alone": speed(best, arms.get(LOOKUP, []))}
    drafting = "".join(f", {ratio:.2f} times that of {what}" for what, ratio in over.items() if ratio)
    prefix = f"best draft: {name}, " if has_several else ""
    return f"{prefix}{answer}: {over_plain:.2f} times the speed of plain decoding{drafting}"


def tax(arms: Arms) -> dict[str, float] | None:
    """Return what uag costs when nothing is accepted, against uag without a draft; None if that was not measured."""
    useless, base = arms.get(USELESS, []), arms.get(WITHOUT_DRAFT, [])
    ratio, over_plain = speed(base, useless), speed(useless, arms["plain"])
    if ratio is None or over_plain is None:
        return None
    seconds = [sum(record.seconds or 0.0 for record in records) for records in (useless, base)]
    num_rounds = sum(record.num_rounds for record in useless)
    per_round_ms = 1000 * (seconds[0] - seconds[1]) / max(num_rounds, 1)
    return {"percent": 100 * (ratio - 1), "ms_per_round": per_round_ms, "speed_up": over_plain}


def conclusions(records: Sequence[Record]) -> dict[str, Any]:
    """Return verdict, equality, tax and arms, ready for JSON."""
    arms = by_arm(records)
    return {
        "verdict": advice(arms), "is_equal": is_equal(records), "equality": equality(records), "tax": tax(arms),
        "arms": figures(arms),
    }  # fmt: skip


def lines(found: dict[str, Any]) -> list[str]:
    """Return conclusions in words, the verdict first."""
    costs = found["tax"]
    of_tax = costs and (
        f"when nothing is accepted ({USELESS}), uag takes {costs['percent']:.1f} % more time than without a draft, "
        f"{costs['ms_per_round']:.2f} ms a round; {costs['speed_up']:.2f} times the speed of plain decoding"
    )
    return [line for line in (found["verdict"], found["equality"], of_tax) if line]
