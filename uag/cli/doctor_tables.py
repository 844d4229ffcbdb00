"""The doctor's report for a terminal."""

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from uag.cli.doctor import Report
from uag.products import Choice


def render(report: Report, *, is_verbose: bool = False) -> Group:
    """Lay a report out for a terminal, with `is_verbose` the forms of matrix products, too."""
    halves = Table(title="the pair", title_justify="left")
    for heading in ("", "target", "draft"):
        halves.add_column(heading, overflow="fold")
    sides = (report.target, report.draft)
    pass_s = report.target_pass_s[1], report.draft_step_s
    halves.add_row("model", *(escape(side.name) for side in sides))
    halves.add_row("class", *(side.architecture for side in sides))
    halves.add_row("parameters", *(f"{side.num_parameters:,}" for side in sides))
    halves.add_row("tokenizer", *(side.family for side in sides))
    halves.add_row("tokens, head", *(f"{side.num_tokens:,}, {side.head_size:,}" for side in sides))
    halves.add_row("represents every text", *("yes" if side.is_exact else f"no: {side.loss}" for side in sides))
    halves.add_row("one pass", *(f"{seconds * 1e3:.2f} ms" for seconds in pass_s))

    halves.add_row("passes per target pass", "1", f"{pass_s[0] / pass_s[1]:.1f}")

    common = Table(title="what they share", title_justify="left", show_header=False)
    common.add_row("vocabularies", "identical" if report.is_identity else "different")
    common.add_row("draft tokens with a target token of equal bytes", f"{report.vocabulary_share:.1%}")
    common.add_row("draft tokens that the target can start to write", f"{report.reachable_share:.1%}")
    common.add_row("draft tokens of running text equal to one target token", f"{report.text_share:.1%}")
    common.add_row("draft tokens per target token of running text", f"{report.draft_tokens_per_target_token:.2f}")
    controls = ", ".join(f"{draft} -> {target}" for draft, target in report.draft_to_target_controls)
    common.add_row("control tokens, draft to target", escape(controls) or "none")

    parts = [halves, common, _passes(report)]
    if is_verbose and report.products:
        parts.append(_products(report.products))
    return Group(*parts)


def _passes(report: Report) -> Table:
    """Return the cost of the target's passes by their width."""
    table = Table(title="passes of the target", title_justify="left")
    for heading in ("positions", "ms", "relative to plain decoding"):
        table.add_column(heading, justify="right")
    for width, seconds in report.target_pass_s.items():
        table.add_row(str(width), f"{seconds * 1e3:.2f}", f"{seconds / report.plain_pass_s:.2f}")
    return table


def _products(choices: Sequence[Choice]) -> Table:
    """Return the form of every product, and its speed relative to the layer's own."""
    table = Table(title="matrix products over few rows, in the fastest form", title_justify="left")
    for heading in ("weights", "rows: form"):
        table.add_column(heading, overflow="fold")
    for matrix, group in groupby(choices, key=lambda choice: choice.shape[:4]):
        num_out, num_in, _, dtype = matrix
        forms = [
            f"{choice.shape.num_rows}: {choice.name}"
            + (f" {choice.as_is_s / choice.chosen_s:.1f}x" if choice.name != "as is" else "")
            for choice in group
        ]
        table.add_row(f"{num_out} x {num_in}, {str(dtype).removeprefix('torch.')}", "; ".join(forms))
    return table
