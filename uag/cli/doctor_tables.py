"""Print the results of `uag doctor`. Names may be long paths, so they are printed outside tables and not wrapped."""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from uag.cli.doctor import Report
from uag.cli.measured import Measured
from uag.cli.ranking import Ranking


def show_measured(console: Console, measured: Measured) -> None:
    """Print the measurements of one draft."""
    greedy, forecast = measured.acceptance[0], measured.forecast
    rows = {}
    for acceptance in measured.acceptance:
        tokens_per_pass = f"tokens per pass at {acceptance.num_candidate_tokens} candidates"
        rows[f"agreement, {acceptance.mode}"] = f"{acceptance.agreement:.0%}"
        rows[f"{tokens_per_pass}, {acceptance.mode}"] = f"{acceptance.tokens_per_pass:.2f}"
    rows |= {
        "expected speed relative to plain decoding, greedy": f"{forecast.speed_up:.2f}",
        "output tokens per target pass": f"{forecast.tokens_per_pass:.2f}",
        "candidates per round": f"{forecast.num_candidates:.1f}",
        "draft passes per candidate": f"{forecast.passes_per_candidate:.2f}",
        "share of the time spent drafting": f"{forecast.draft_share:.0%}",
        "share of drafting in draft passes": f"{forecast.forward_share:.0%}",
    }
    has_interval = forecast.speed_up.low is not None
    intervals = "with 95 % intervals" if has_interval else "too few for intervals"
    console.print(_table(f"measured on {greedy.num_texts} texts of the target, {intervals}", rows))


def show_ranking(console: Console, ranking: Ranking) -> None:
    """Print a ranking, the verdict first; `passes` are draft passes per candidate."""
    console.print(ranking.verdict, style="bold", highlight=False, markup=False, soft_wrap=True)
    lines = [f"{'speed-up':<21}{'agrees':>7}{'tok/pass':>10}{'passes':>8}{'memory':>10}  draft"]
    for ranked in ranking.drafts:
        if ranked.measured is None:
            lines.append(f"{'refused':<56}  {ranked.name}: {ranked.refusal}")
            continue
        forecast, agreement = ranked.measured.forecast, ranked.measured.acceptance[0].agreement
        lines.append(
            f"{f'{forecast.speed_up:.2f}':<21}{agreement.value:>7.0%}{forecast.tokens_per_pass:>10.2f}"
            f"{forecast.passes_per_candidate:>8.2f}{f'{(ranked.num_bytes or 0) / 1e6:.0f} MB':>10}  {ranked.name}"
        )
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def show_report(console: Console, report: Report) -> None:
    """Print the overlap of a pair's tokenizers and the cost of its passes."""
    sides = (report.target, report.draft)
    for role, side in zip(("target", "draft"), sides, strict=True):
        console.print(f"{role}: {side.name}", highlight=False, markup=False, soft_wrap=True)
    models = Table(title="the pair", title_justify="left")
    for heading in ("", "target", "draft"):
        models.add_column(heading)
    models.add_row("class", *(side.architecture for side in sides))
    models.add_row("parameters", *(f"{side.num_parameters:,}" for side in sides))
    models.add_row("tokenizer", *(side.family for side in sides))
    models.add_row("tokens, head", *(f"{side.num_tokens:,}, {side.head_size:,}" for side in sides))
    models.add_row("represents every text", *("yes" if side.is_exact else f"no: {side.loss}" for side in sides))
    models.add_row("plain pass", *(f"{seconds * 1e3:.2f} ms" for seconds in (report.plain_pass_s, report.draft_step_s)))
    for width, seconds in report.target_pass_s.items():
        models.add_row(f"pass over {width} tokens", f"{seconds * 1e3:.2f} ms ({seconds / report.plain_pass_s:.2f}x)")
    console.print(models)
    shared = {
        "vocabularies": "identical" if report.is_identity else "different",
        "draft tokens with a target token of the same bytes": f"{report.vocabulary_share:.1%}",
        "draft tokens that begin with a target token": f"{report.reachable_share:.1%}",
        "draft tokens per target token of Python": f"{report.draft_tokens_per_target_token:.2f}",
    }
    console.print(_table("overlap of the tokenizers", shared))


def _table(title: str, rows: Mapping[str, str]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for row in rows.items():
        table.add_row(*row)
    return table
