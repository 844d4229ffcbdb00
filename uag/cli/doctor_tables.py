"""Print the result of `uag doctor`. Names may be long paths, so they are printed outside tables and not wrapped."""

from rich.console import Console
from rich.table import Table

from uag.cli.measured import Measured
from uag.cli.ranking import Ranked, Ranking


def show_ranking(console: Console, ranking: Ranking) -> None:
    """Print the verdict, a line for each draft, and the details of a draft that was measured alone."""
    console.print(ranking.verdict, style="bold", highlight=False, markup=False, soft_wrap=True)
    passes = ", ".join(f"{seconds * 1e3:.1f} ms over {width}" for width, seconds in ranking.target_pass_s.items())
    lines = [f"target: {ranking.target}, passes: {passes} tokens"]
    lines.append(f"{'speed-up':<21}{'agrees':>7}{'tok/pass':>10}{'passes':>8}{'memory':>10}{'shared':>8}  draft")
    lines += map(_line, ranking.drafts)
    lines += [f"{ranked.name}: {ranked.loss}" for ranked in ranking.drafts if ranked.loss]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    if len(ranking.drafts) == 1 and ranking.drafts[0].measured is not None:
        console.print(_details(ranking.drafts[0].measured))


def _line(ranked: Ranked) -> str:
    """Return the figures of a draft: `passes` are draft passes per candidate, `shared` the share of its vocabulary."""
    if ranked.measured is None:
        return f"{'refused':<64}  {ranked.name}: {ranked.refusal}"
    forecast, agreement = ranked.measured.forecast, ranked.measured.acceptance[0].agreement
    return (
        f"{f'{forecast.speed_up:.2f}':<21}{agreement.value:>7.0%}{forecast.tokens_per_pass:>10.2f}"
        f"{forecast.passes_per_candidate:>8.2f}{f'{(ranked.num_bytes or 0) / 1e6:.0f} MB':>10}"
        f"{ranked.shared_vocabulary:>8.0%}  {ranked.name}"
    )


def _details(measured: Measured) -> Table:
    greedy, forecast = measured.acceptance[0], measured.forecast
    intervals = "with 95 % intervals" if forecast.speed_up.low is not None else "too few for intervals"
    title = f"measured on {greedy.num_texts} texts of the target, {intervals}"
    table = Table(title=title, title_justify="left", show_header=False)
    for acceptance in measured.acceptance:
        table.add_row(f"agreement, {acceptance.mode}", f"{acceptance.agreement:.0%}")
    table.add_row("candidates per round", f"{forecast.num_candidates:.1f}")
    table.add_row("share of the time spent drafting", f"{forecast.draft_share:.0%}")
    table.add_row("share of drafting in draft passes", f"{forecast.forward_share:.0%}")
    return table
