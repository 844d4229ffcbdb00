"""Turn benchmark records into a summary, a table and a plot."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich import box
from rich.markup import escape
from rich.table import Table

from uag.bench.record import Record
from uag.errors import OptionError


@dataclass(frozen=True)
class ArmSummary:
    """One arm over all prompts of one batch size and temperature.

    `speed_up` is the arm's tokens per second over plain's, on all prompts together; the quartiles are over prompts.
    Tokens per target pass are those of one row. The figures are None where the arm is not reported.
    """

    arm: str
    batch_size: int
    temperature: float
    num_prompts: int
    tokens_per_s: float | None = None
    speed_up: float | None = None
    speed_up_quartiles: tuple[float, float] | None = None
    tokens_per_target_pass: float | None = None
    acceptance_rate: float | None = None
    num_target_forwards: int = 0
    num_rounding_differences: int = 0
    refusal: str | None = None


def summarize(records: Sequence[Record]) -> list[ArmSummary]:
    """Sum up records by batch size, temperature and arm, in their order."""
    groups: dict[tuple[int, float], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        groups[record.batch_size, record.temperature][record.arm].append(record)
    return [
        _summarize_arm(arm_records, by_arm["plain"]) for by_arm in groups.values() for arm_records in by_arm.values()
    ]


def _summarize_arm(records: list[Record], plain: list[Record]) -> ArmSummary:
    first = records[0]
    num_prompts = sum(len(record.prompt_ids) for record in records)
    summary = ArmSummary(first.arm, first.batch_size, first.temperature, num_prompts)
    refused = [record for record in records if not record.is_reported]
    if refused:
        refusal = refused[0].refusal
        if len(records) > 1:
            refusal = f"on {len(refused)} of {len(records)}, first {', '.join(refused[0].prompt_ids)}: {refusal}"
        return replace(summary, refusal=refusal)
    num_tokens = sum(record.num_output_tokens for record in records)
    num_row_passes = sum(record.num_target_forwards * len(record.prompt_ids) for record in records)
    num_candidates = sum(record.num_candidate_tokens for record in records)
    num_accepted = sum(record.num_accepted_tokens for record in records)
    speed_ups = [_tokens_per_s([record]) / _tokens_per_s([base]) for record, base in zip(records, plain, strict=True)]
    low, high = np.percentile(speed_ups, (25, 75)).tolist()
    return replace(
        summary,
        tokens_per_s=_tokens_per_s(records),
        speed_up=_tokens_per_s(records) / _tokens_per_s(plain),
        speed_up_quartiles=(low, high),
        tokens_per_target_pass=num_tokens / num_row_passes,
        acceptance_rate=num_accepted / num_candidates if num_candidates else None,
        num_target_forwards=sum(record.num_target_forwards for record in records),
        num_rounding_differences=sum(record.rounding is not None for record in records),
    )


def _tokens_per_s(records: Sequence[Record]) -> float:
    return sum(record.num_output_tokens for record in records) / sum(record.seconds or 0.0 for record in records)


def summary_table(summaries: Sequence[ArmSummary], title: str | None = None) -> Table:
    """Lay the summary out for a terminal of 80 columns; below it stands why an arm is not reported."""
    has_groups = len({(summary.batch_size, summary.temperature) for summary in summaries}) > 1
    table = Table(title=title, caption=_caption(summaries), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.title_justify = table.caption_justify = "left"
    table.add_column("arm", no_wrap=True)
    for heading in ("tokens/s", "speed-up", "quartiles", "passes", "tok/pass", "accepted"):
        table.add_column(heading, justify="right", no_wrap=True)
    for summary in summaries:
        if has_groups and summary.arm == "plain":  # plain comes first in each group
            table.add_section()
            table.add_row(f"batch {summary.batch_size}, T={summary.temperature:g}", style="dim")
        table.add_row(summary.arm, *_figures(summary), style="bold" if summary.arm == "uag" else None)
    return table


def _figures(summary: ArmSummary) -> list[str]:
    if summary.speed_up is None or summary.speed_up_quartiles is None:
        return ["refused", "", "", "", "", ""]
    low, high = summary.speed_up_quartiles
    return [
        f"{summary.tokens_per_s:.1f}",
        f"{summary.speed_up:.2f}x",
        f"{low:.2f}-{high:.2f}",
        str(summary.num_target_forwards),
        f"{summary.tokens_per_target_pass:.2f}",
        "-" if summary.acceptance_rate is None else f"{summary.acceptance_rate:.0%}",
    ]


def _caption(summaries: Sequence[ArmSummary]) -> str | None:
    lines = [f"{summary.arm} is not reported: {summary.refusal}" for summary in summaries if summary.refusal]
    lines += [
        f"{summary.arm}: {summary.num_rounding_differences} outputs differ by the target's own rounding, each replayed"
        for summary in summaries
        if summary.num_rounding_differences
    ]
    return escape("\n".join(lines)) or None


def save_plot(records: Sequence[Record], path: Path) -> None:
    """Draw speed-up and acceptance by arm into a PNG file.

    Raises:
        OptionError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise OptionError("a plot needs matplotlib: pip install 'uag[bench]'") from error
    summaries = [summary for summary in summarize(records) if summary.speed_up is not None]
    figure = Figure(figsize=(9.0, 0.6 + 0.4 * len(summaries)), layout="constrained")
    speed_axes, acceptance_axes = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for place, summary in enumerate(summaries):
        color = "#d95f02" if summary.arm.startswith("uag") else "#9aa5b1"
        low, high = summary.speed_up_quartiles or (0.0, 0.0)
        speed_axes.barh(place, summary.speed_up, color=color)
        speed_axes.plot((low, high), (place, place), color="#333333", linewidth=1.5)
        end = (max(summary.speed_up or 0.0, high), place)
        label = f"{summary.speed_up:.2f}x"
        speed_axes.annotate(label, end, xytext=(4, 0), textcoords="offset points", va="center")
        acceptance_axes.barh(place, summary.acceptance_rate or 0.0, color=color)
    labels = [f"{summary.arm}  b={summary.batch_size} T={summary.temperature:g}" for summary in summaries]
    speed_axes.set_yticks(range(len(summaries)), labels)
    speed_axes.invert_yaxis()
    speed_axes.axvline(1.0, color="#333333", linestyle=":", linewidth=1)
    speed_axes.margins(x=0.12)
    speed_axes.set(xlabel="speed-up over plain decoding (line: quartiles over prompts)")
    acceptance_axes.set(xlabel="acceptance rate", xlim=(0, 1))
    for axes in (speed_axes, acceptance_axes):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150, format="png")
