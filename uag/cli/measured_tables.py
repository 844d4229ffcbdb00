"""What the doctor measured, for a terminal."""

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

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
