"""The records of a benchmark with their environment, and their summary as data and as a table."""

import functools
import os
import platform
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich import box
from rich.markup import escape
from rich.table import Table

from uag._version import __version__
from uag.bench.arms import WITHOUT_DRAFT
from uag.hf.devices import accelerator
from uag.loading import Pair


@dataclass(frozen=True)
class Record:
    """One arm on one batch of prompts; tokens and passes are counted over one call.

    Attributes:
        seconds: median of `trial_seconds`; None if the arm is not reported.
        note: why the arm's output may differ from plain decoding's; empty if it must be equal.
        difference: where an output first differs from plain decoding's, by rounding or for the reason in `note`; None
            if all outputs are equal, id for id.
        refusal: why the arm is not reported: it failed, or its output differs; None for an arm with figures.
    """

    arm: str
    prompt_ids: tuple[str, ...]
    batch_size: int
    temperature: float
    num_prompt_tokens: int
    num_output_tokens: int = 0
    seconds: float | None = None
    trial_seconds: tuple[float, ...] = ()
    num_rounds: int = 0
    num_candidate_tokens: int = 0
    num_accepted_tokens: int = 0
    num_target_forwards: int = 0
    note: str = ""
    difference: str | None = None
    refusal: str | None = None
    stats: dict[str, Any] | None = None

    def to_dict(self, pair: Pair) -> dict[str, Any]:
        """Return the record with pair, commit, versions, hardware and dtype, ready for one line of JSON."""
        names = {"target": pair.target_name, "draft": pair.draft_name}
        dtype = str(pair.target.dtype).removeprefix("torch.")
        return {**asdict(self), **names, "dtype": dtype, **describe_environment()}


@dataclass(frozen=True)
class ArmSummary:
    """One arm over all prompts; figures are None if the arm is not reported.

    Attributes:
        speed_up: the arm's tokens per second divided by plain decoding's, over all prompts together.
        speed_up_quartiles: quartiles over batches.
        gain: the arm's tokens per second divided by uag-no-draft's; None if that arm is not reported.
        gain_quartiles: quartiles over batches.
        tokens_per_target_pass: per row.
        num_records: batches of prompts.
        num_differences: batches in which an output differs from plain decoding's.
        note: why outputs may differ; empty if they must be equal.
        refusal: why the arm is not reported.
        not_drafting: why the last call drafted little or nothing, see `uag.Stats`.
        loss: why the draft's tokenizer cannot represent every text; None if it can.
    """

    arm: str
    num_prompts: int
    num_records: int
    num_differences: int
    note: str = ""
    tokens_per_s: float | None = None
    speed_up: float | None = None
    speed_up_quartiles: tuple[float, float] | None = None
    gain: float | None = None
    gain_quartiles: tuple[float, float] | None = None
    tokens_per_target_pass: float | None = None
    acceptance_rate: float | None = None
    refusal: str | None = None
    not_drafting: str = ""
    loss: str | None = None


def summarize(records: Sequence[Record]) -> list[ArmSummary]:
    """Summarize the records of one benchmark by arm, in order of appearance."""
    by_arm: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_arm[record.arm].append(record)
    no_draft = by_arm.get(WITHOUT_DRAFT, [])
    if any(record.refusal is not None for record in no_draft):
        no_draft = []
    return [_summarize_arm(of_arm, by_arm["plain"], no_draft) for of_arm in by_arm.values()]


def _summarize_arm(records: list[Record], plain: list[Record], no_draft: list[Record]) -> ArmSummary:
    num_prompts = sum(len(record.prompt_ids) for record in records)
    num_differences = sum(record.difference is not None for record in records)
    summary = ArmSummary(records[0].arm, num_prompts, len(records), num_differences, records[0].note)
    if refused := [record for record in records if record.refusal is not None]:
        refusal = refused[0].refusal
        if len(records) > 1:
            refusal = f"on {len(refused)} of {len(records)}, first {', '.join(refused[0].prompt_ids)}: {refusal}"
        return replace(summary, refusal=refusal)
    num_tokens = sum(record.num_output_tokens for record in records)
    num_row_passes = sum(record.num_target_forwards * len(record.prompt_ids) for record in records)
    num_candidates = sum(record.num_candidate_tokens for record in records)
    num_accepted = sum(record.num_accepted_tokens for record in records)
    if no_draft:
        summary = replace(summary, gain=_ratio(records, no_draft), gain_quartiles=_ratio_quartiles(records, no_draft))
    return replace(
        summary,
        tokens_per_s=_tokens_per_s(records),
        speed_up=_ratio(records, plain),
        speed_up_quartiles=_ratio_quartiles(records, plain),
        tokens_per_target_pass=num_tokens / num_row_passes,
        acceptance_rate=num_accepted / num_candidates if num_candidates else None,
        not_drafting=(records[-1].stats or {}).get("not_drafting", ""),
    )


def verdict(summaries: Sequence[ArmSummary]) -> str:
    """Return whether all outputs equal plain decoding's, whose summary comes first, and how fast each arm was."""
    plain, *others = summaries
    prompts = f"{plain.num_prompts} prompt{'s' * (plain.num_prompts > 1)}"
    if any(summary.refusal for summary in summaries):
        return f"OUTPUTS DIFFER on at least one of {prompts}: see the table"
    speed_ups = ", ".join(f"{summary.arm} {summary.speed_up:.2f}x" for summary in others)
    return f"all outputs equal on {prompts}; speed relative to plain decoding: {speed_ups}"


def _tokens_per_s(records: Sequence[Record]) -> float:
    return sum(record.num_output_tokens for record in records) / sum(record.seconds or 0.0 for record in records)


def _ratio(records: Sequence[Record], base: Sequence[Record]) -> float:
    return _tokens_per_s(records) / _tokens_per_s(base)


def _ratio_quartiles(records: list[Record], base: list[Record]) -> tuple[float, float]:
    low, high = np.percentile([_ratio([of], [to]) for of, to in zip(records, base, strict=True)], (25, 75)).tolist()
    return low, high


def summary_table(summaries: Sequence[ArmSummary], title: str | None = None) -> Table:
    """Return the summary as a table for a terminal of 80 columns, with notes below."""
    caption = escape("\n".join(_notes(summaries))) or None
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.title_justify = table.caption_justify = "left"
    table.add_column("arm", overflow="fold")  # a draft's name may be a long path
    for heading in ("tokens/s", "speed-up", "quartiles", "tok/pass", "accepted", "equal"):
        table.add_column(heading, justify="right", no_wrap=True)
    for summary in summaries:
        table.add_row(escape(summary.arm), *_figures(summary), style="bold" if summary.arm == "uag" else None)
    return table


def _figures(summary: ArmSummary) -> list[str]:
    if summary.speed_up is None or summary.speed_up_quartiles is None:
        return ["refused", *[""] * 4, "no" if summary.num_differences else "-"]
    low, high = summary.speed_up_quartiles
    num_equal = summary.num_records - summary.num_differences
    return [
        f"{summary.tokens_per_s:.1f}",
        f"{summary.speed_up:.2f}x",
        f"{low:.2f}-{high:.2f}",
        f"{summary.tokens_per_target_pass:.2f}",
        "-" if summary.acceptance_rate is None else f"{summary.acceptance_rate:.0%}",
        f"{num_equal}/{summary.num_records}" if summary.num_differences else "yes",
    ]


def _notes(summaries: Sequence[ArmSummary]) -> Iterator[str]:
    """Yield why arms have no figures, why outputs differ, and which part of a speed-up comes from drafting."""
    no_draft = next((each for each in summaries if each.arm == WITHOUT_DRAFT), None)
    for summary in summaries:
        if summary.refusal:
            yield f"{summary.arm} is excluded: {summary.refusal}"
        elif summary.num_differences:
            reason = f"since it is {summary.note}" if summary.note else "by the target's own rounding"
            yield f"{summary.arm}: {summary.num_differences} outputs differ {reason}"
        if summary.loss:
            yield f"{summary.arm}: {summary.loss}"
        if summary.not_drafting:
            yield f"{summary.arm}, last call: not drafting: {summary.not_drafting}"
        if no_draft is not None and summary.arm.startswith("uag") and summary is not no_draft and summary.gain:
            yield (
                f"{summary.arm} {summary.speed_up:.2f}x: {no_draft.speed_up:.2f} from uag's own passes, "
                f"{summary.gain:.2f} from drafting"
            )


@functools.cache
def describe_environment() -> dict[str, Any]:
    """Return `commit` (None outside a git checkout of uag), `versions` and `hardware`, ready for JSON."""
    names = ("torch", "transformers", "tokenizers", "numpy")
    cpu_info = Path("/proc/cpuinfo")
    text = cpu_info.read_text(encoding="utf-8", errors="replace") if cpu_info.is_file() else ""
    processor = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    device = accelerator()
    hardware = {
        "processor": processor[1] if processor else platform.processor() or platform.machine(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "num_cores": os.cpu_count(),
        "num_threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else device and device.type,
    }
    versions = {"uag": __version__, "python": platform.python_version()}
    return {
        "commit": _commit(),
        "versions": versions | {name: metadata.version(name) for name in names},
        "hardware": hardware,
    }


def _commit() -> str | None:
    """Return the commit of uag's checkout, with a `+` for uncommitted changes; None if uag is installed."""
    folder = Path(__file__).parents[2]
    command = ["git", "-C", str(folder), "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    if not (folder / ".git").exists():
        return None
    try:
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True).strip()
    except (OSError, subprocess.CalledProcessError):  # git is missing, or refuses another user's checkout
        return None
