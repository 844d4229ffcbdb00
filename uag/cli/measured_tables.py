"""What the doctor measured, for a terminal."""

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from uag.cli.measured import Measured, said_speed
from uag.cli.ranking import Ranking
from uag.distill import Estimate


def render_measured(measured: Measured) -> Group:
    """Lay one pair's measurements out, the verdict last."""
    size = measured.acceptance[0].num_candidate_tokens
    table = Table(title="measured on what the target writes, with intervals of 95 %", title_justify="left")
    for heading in ("", "first choice is the target's", f"tokens per pass at {size} candidates"):
        table.add_column(heading)
    for found in measured.acceptance:
        how = f"temperature {found.temperature:g}" if found.temperature else "greedy"
        table.add_row(how, _shown(found.agreement, percent=True), _shown(found.tokens_per_pass))
    expected = Table(title="uag's own rounds on these costs, greedy", title_justify="left", show_header=False)
    forecast = measured.forecast
    expected.add_row("speed beside plain decoding", said_speed(forecast.speed_up))
    expected.add_row("output tokens per target pass", f"{forecast.tokens_per_pass:.2f}")
    expected.add_row("candidates of a round", f"{forecast.num_candidates:.1f}")
    expected.add_row("draft passes per candidate", f"{forecast.passes_per_candidate:.2f}")
    expected.add_row("drafting's share of the time", f"{forecast.draft_share:.0%}")
    expected.add_row("of that, inside draft passes", f"{forecast.forward_share:.0%}")
    return Group(table, expected, Text(measured.verdict, style="bold"))


def render_ranking(ranking: Ranking) -> Group:
    """Lay several drafts out, the best first, and below them why one cannot draft; `passes` are a candidate's."""
    table = Table(title=f"drafts for {escape(ranking.target)}, the fastest first", title_justify="left")
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
            said_speed(forecast.speed_up, "-"),
            f"{greedy.agreement.value:.0%}",
            f"{forecast.tokens_per_pass:.2f}",
            f"{forecast.passes_per_candidate:.2f}",
            f"{(ranked.num_bytes or 0) / 1e6:.0f} MB",
        )
    refusals = [Text(f"{ranked.name}: {ranked.refusal}") for ranked in ranking.drafts if ranked.refusal]
    return Group(table, *refusals, Text(ranking.verdict, style="bold"))


def _shown(estimate: Estimate, *, percent: bool = False) -> str:
    form = "{:.0%}" if percent else "{:.2f}"
    value = form.format(estimate.value)
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} ({form.format(estimate.low)} to {form.format(estimate.high)})"
