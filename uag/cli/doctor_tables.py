"""What the doctor found out, for a terminal."""

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from uag.cli.doctor import Report
from uag.cli.measured import Measured
from uag.cli.ranking import Ranking


def render_measured(measured: Measured) -> Group:
    """Lay out what was measured of one draft."""
    size, forecast = measured.acceptance[0].num_candidate_tokens, measured.forecast
    table = Table(title="measured on texts of the target, with 95 % intervals", title_justify="left")
    for heading in ("", "agreement", f"tokens per pass at {size} candidates"):
        table.add_column(heading)
    for acceptance in measured.acceptance:
        table.add_row(acceptance.mode, f"{acceptance.agreement:.0%}", f"{acceptance.tokens_per_pass:.2f}")
    expected = Table(title="expected of uag, greedy", title_justify="left", show_header=False)
    expected.add_row("speed relative to plain decoding", f"{forecast.speed_up:.2f}")
    expected.add_row("output tokens per target pass", f"{forecast.tokens_per_pass:.2f}")
    expected.add_row("candidates per round", f"{forecast.num_candidates:.1f}")
    expected.add_row("draft passes per candidate", f"{forecast.passes_per_candidate:.2f}")
    expected.add_row("share of the time spent drafting", f"{forecast.draft_share:.0%}")
    expected.add_row("share of drafting in draft passes", f"{forecast.forward_share:.0%}")
    return Group(table, expected)


def render_ranking(ranking: Ranking) -> Group:
    """Lay a ranking out, the verdict first; `passes` are draft passes per candidate."""
    table = Table(title=f"drafts for {escape(ranking.target)}, fastest first", title_justify="left")
    table.add_column("draft", overflow="fold")
    for heading in ("speed-up", "agrees", "tok/pass", "passes", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    for ranked in ranking.drafts:
        if ranked.measured is None:
            table.add_row(escape(ranked.name), "refused", "", "", "", "")
            continue
        forecast, greedy = ranked.measured.forecast, ranked.measured.acceptance[0]
        table.add_row(
            escape(ranked.name),
            f"{forecast.speed_up:.2f}",
            f"{greedy.agreement.value:.0%}",
            f"{forecast.tokens_per_pass:.2f}",
            f"{forecast.passes_per_candidate:.2f}",
            f"{(ranked.num_bytes or 0) / 1e6:.0f} MB",
        )
    refusals = [Text(f"{ranked.name}: {ranked.refusal}") for ranked in ranking.drafts if ranked.refusal]
    return Group(Text(ranking.verdict, style="bold"), table, *refusals)


def render_report(report: Report) -> Group:
    """Lay a report out for a terminal."""
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
    common.add_row("draft tokens per target token of running text", f"{report.draft_tokens_per_target_token:.2f}")
    controls = ", ".join(f"{draft} -> {target}" for draft, target in report.draft_to_target_controls)
    common.add_row("control tokens, draft to target", escape(controls) or "none")

    return Group(halves, common, _passes(report))


def _passes(report: Report) -> Table:
    """Return the cost of the target's passes by their width."""
    table = Table(title="passes of the target", title_justify="left")
    for heading in ("positions", "ms", "relative to plain decoding"):
        table.add_column(heading, justify="right")
    for width, seconds in report.target_pass_s.items():
        table.add_row(str(width), f"{seconds * 1e3:.2f}", f"{seconds / report.plain_pass_s:.2f}")
    return table
