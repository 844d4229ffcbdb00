"""What the records of a benchmark say: figures of each arm, a table, and conclusions in words."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from rich import box
from rich.markup import escape
from rich.table import Table

from uag.bench.options import LOOKUP, USELESS, WITHOUT_DRAFT
from uag.bench.record import Record

Row = dict[str, Any]
Records = Sequence[Record]

_FEWEST_PASSES = 3  # of a width, for a figure: one may have been slowed by something else
_FEWEST_PROMPTS = 4  # minimum number of prompts for a verdict on a draft


def by_arm(records: Records) -> dict[str, list[Record]]:
    """Return the records of each arm, in order of appearance; with several drafts, the names of arms include theirs."""
    drafts: dict[str, set[str]] = defaultdict(set)
    for record in records:
        drafts[record.arm].add(record.draft)
    arms: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        arms[f"{record.arm} {record.draft}" if len(drafts[record.arm]) > 1 else record.arm].append(record)
    return dict(arms)


def speed(records: Records, base: Records | None = None) -> float | None:
    """Return an arm's tokens per second over all prompts, or the ratio to another arm's; None if one has no figures."""
    if base is not None:
        ours, theirs = speed(records), speed(base)
        return ours / theirs if ours and theirs else None
    if not records or _refusal(records):
        return None
    return sum(record.num_output_tokens for record in records) / sum(record.seconds or 0.0 for record in records)


def _quartiles(records: Records, base: Records) -> tuple[float, float] | None:
    """Return the quartiles over batches of an arm's speed relative to another's; None if one has no figures."""
    if speed(records, base) is None:
        return None
    ratios = [speed([of], [to]) or 0.0 for of, to in zip(records, base, strict=True)]
    low, high = np.percentile(ratios, (25, 75)).tolist()
    return low, high


def _refusal(records: Records) -> str | None:
    refused = [record for record in records if record.refusal is not None]
    if not refused or len(records) == 1:
        return refused[0].refusal if refused else None
    return f"on {len(refused)} of {len(records)}, first {', '.join(refused[0].prompt_ids)}: {refused[0].refusal}"


def figures(records: Records) -> list[Row]:
    """Return a row of figures for each arm, ready for JSON; "over" another arm is the speed relative to it."""
    arms = by_arm(records)
    bases = {name: arms.get(name, []) for name in ("plain", WITHOUT_DRAFT, LOOKUP)}
    return [{"arm": name, "draft": of[0].draft} | _figures(of, *bases.values()) for name, of in arms.items()]


def _figures(records: Records, plain: Records, no_draft: Records, lookup: Records) -> Row:
    num_candidates = sum(record.num_candidate_tokens for record in records)
    num_accepted = sum(record.num_accepted_tokens for record in records)
    num_passes = sum(record.num_target_forwards * len(record.prompt_ids) for record in records)  # of single rows
    num_tokens = sum(record.num_output_tokens for record in records)
    return {
        "num_records": len(records),
        "num_prompts": sum(len(record.prompt_ids) for record in records),
        "num_differences": sum(record.difference is not None for record in records),
        "num_dependent": sum(record.dependence is not None for record in records),
        "tokens_per_s": speed(records),
        "speed_up": speed(records, plain),
        "quartiles": _quartiles(records, plain),
        "over_no_draft": speed(records, no_draft),
        "quartiles_over_no_draft": _quartiles(records, no_draft),
        "over_lookup": speed(records, lookup),
        "tokens_per_pass": num_tokens / num_passes if num_passes else None,
        "acceptance_rate": num_accepted / num_candidates if num_candidates else None,
        "note": records[0].note,
        "not_drafting": (records[-1].stats or {}).get("not_drafting", ""),
        "refusal": _refusal(records),
    }


def summary_table(records: Records, title: str | None = None) -> Table:
    """Return a table of the arms for a terminal of 80 columns, with notes below."""
    rows = figures(records)
    table = Table(
        title=title, caption=escape("\n".join(_notes(rows))) or None, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0),
        pad_edge=False, title_justify="left", caption_justify="left",
    )  # fmt: skip
    table.add_column("arm", overflow="fold")  # a draft's name may be a long path
    for heading in ("tokens/s", "speed-up", "quartiles", "tok/pass", "accepted", "equal"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(escape(row["arm"]), *_cells(row), style="bold" if row["arm"] == "uag" else None)
    return table


def _cells(row: Row) -> list[str]:
    if row["speed_up"] is None:
        return ["refused", *[""] * 4, "no" if row["num_differences"] else "-"]
    return [
        f"{row['tokens_per_s']:.1f}",
        f"{row['speed_up']:.2f}x",
        "{:.2f}-{:.2f}".format(*row["quartiles"]),
        f"{row['tokens_per_pass']:.2f}",
        "-" if row["acceptance_rate"] is None else f"{row['acceptance_rate']:.0%}",
        f"{row['num_records'] - row['num_differences']}/{row['num_records']}" if row["num_differences"] else "yes",
    ]


def _notes(rows: Sequence[Row]) -> Iterator[str]:
    """Yield why arms have no figures, how many outputs differ and why, and why little was drafted."""
    for row in rows:
        if row["refusal"]:
            yield f"{row['arm']} is excluded: {row['refusal']}"
        elif row["num_differences"]:
            reason = f"since it is {row['note']}" if row["note"] else "by rounding in half precision"
            counts = f"{row['num_differences']} of {row['num_records']}"
            yield f"{row['arm']}: {counts} outputs differ from plain decoding's, {reason}"
        if row["not_drafting"]:
            yield f"{row['arm']}, last call: not drafting: {row['not_drafting']}"


def conclusions(records: Records) -> Row:
    """Return the conclusions, ready for JSON; `tax` is what uag costs when nothing is accepted, if it was measured."""
    rows, arms = figures(records), by_arm(records)
    useless, no_draft = arms.get(USELESS, []), arms.get(WITHOUT_DRAFT, [])
    tax, ratio = None, speed(no_draft, useless)
    if ratio is not None:
        seconds = [sum(record.seconds or 0.0 for record in of) for of in (useless, no_draft)]
        per_round_s = (seconds[0] - seconds[1]) / max(sum(record.num_rounds for record in useless), 1)
        over_plain = speed(useless, arms["plain"])
        tax = {"percent": 100 * (ratio - 1), "ms_per_round": 1000 * per_round_s, "speed_up": over_plain}
    ours = [record for record in records if record.arm.startswith("uag") and record.prompt_ids]
    is_equal = not any(record.refusal and (record.difference or record.dependence) for record in ours)
    equality = _equality(ours) if is_equal else "OUTPUTS DIFFER that must be equal: see the table"
    return {
        "verdict": _advice(rows), "is_equal": is_equal, "equality": equality, "tax": tax,
        "pass_s": _pass_seconds(ours), "arms": rows,
    }  # fmt: skip


def _pass_seconds(ours: Records) -> dict[int, float]:
    """Return the median seconds of the target's passes after prompts, by tokens per row."""
    seconds: dict[int, list[float]] = defaultdict(list)
    for record in ours:
        for width, times in (record.stats or {}).get("pass_seconds", {}).items():
            seconds[int(width)] += times
    return {width: median(times) for width, times in sorted(seconds.items()) if len(times) >= _FEWEST_PASSES}


def _equality(ours: Records) -> str:
    with_draft = [record for record in ours if record.arm != WITHOUT_DRAFT]
    num_differences = sum(record.difference is not None for record in ours)
    text = f"{num_differences} of {len(ours)} outputs of uag differ from plain decoding's"
    if len(with_draft) < len(ours):
        num_dependent = sum(record.dependence is not None for record in with_draft)
        text += f", {num_dependent} of {len(with_draft)} from those of uag without a draft"
    return text


def _advice(rows: Sequence[Row]) -> str:
    """Return whether the draft, or the best of several, is worth using: it must be faster on three of four prompts."""
    drafts = [row for row in rows if row["arm"].split(" ")[0] == "uag"]
    if not drafts:
        return ""
    best, has_several = max(drafts, key=lambda row: row["speed_up"] or 0.0), len(drafts) > 1
    if best["speed_up"] is None:
        return f"{'none of these can' if has_several else best['draft'] + ' cannot'} draft for this target"
    low, high = map(min, best["quartiles"], best["quartiles_over_no_draft"] or best["quartiles"])
    if best["num_prompts"] < _FEWEST_PROMPTS:
        answer = "too few prompts to tell"
    elif low > 1.0:
        answer = "worth using"
    else:
        answer = "not worth using" if high < 1.0 else "inconclusive"
    text = f"best draft: {best['draft']}, " * has_several + f"{answer}: "
    text += f"{best['speed_up']:.2f} times the speed of plain decoding"
    for key, what in (("over_no_draft", "uag without a draft"), ("over_lookup", "prompt lookup alone")):
        text += f", {best[key]:.2f} times that of {what}" if best[key] else ""
    return text


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return conclusions in words, the verdict first."""
    tax = found["tax"] and (
        "when nothing is accepted ({arm}), uag takes {change:.1f} % {word} time than without a draft, "
        "{ms_per_round:+.2f} ms a round; {speed_up:.2f} times the speed of plain decoding"
    ).format(
        arm=USELESS,
        change=abs(found["tax"]["percent"]),
        word="more" if found["tax"]["percent"] >= 0 else "less",  # within the noise
        **found["tax"],
    )
    widths = " / ".join(map(str, found["pass_s"]))
    times = " / ".join(f"{1000 * seconds:.1f}" for seconds in found["pass_s"].values())
    passes = widths and f"a target pass over {widths} tokens takes {times} ms"
    return [line for line in (found["verdict"], found["equality"], tax, passes) if line]
