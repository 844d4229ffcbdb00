"""Draw the plot of docs/results.md from README's table of real pairs and the page's own tables: speed.svg.

python docs/pictures/results.py
"""

import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Patch

PICTURES = Path(__file__).parent

RESULTS, README = PICTURES.parent / "results.md", PICTURES.parents[1] / "README.md"

INK = "#6e7781"  # readable on white and on black

COLORS = {"transformers": "#5b8db8", "uag, no draft": "#e8c39e", "uag": "#d9822b"}

Table = list[dict[str, str]]
Bars = list[tuple[str, dict[str, float]]]


def main() -> None:
    """Read the tables and draw the plot."""
    mpl.rcParams |= {
        "svg.hashsalt": "uag",  # the same tables give the same file
        "svg.fonttype": "none",  # text stays text
        "font.size": 10,
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    }
    save(speeds(), "speed.svg")


def table(page: Path, heading: str) -> Table:
    """Return the first table under a heading as dictionaries by column; the first column is called "name"."""
    section = page.read_text(encoding="utf-8").split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = re.search(r"(?:^\|.*\n)+", section, flags=re.MULTILINE)
    if lines is None:
        raise SystemExit(f"no table under {heading!r} in {page}")
    names, _, *rows = (
        [re.sub("[*`]", "", cell).strip() for cell in line.strip("|").split("|")] for line in lines[0].splitlines()
    )
    return [dict(zip(["name", *names[1:]], row, strict=True)) for row in rows]


def speeds() -> Figure:
    """Draw real pairs beside plain decoding, and pairs whose draft is useless beside uag without a draft."""
    pairs: Bars = []
    for row in table(README, "Results"):
        last = {arm: row[arm].split(" / ")[-1] for arm in COLORS}  # the longest calls
        name = f"{row['target <- draft']}, {row['name']}"
        pairs.append((name, {arm: float(figure) for arm, figure in last.items() if figure != "-"}))
    useless: Bars = [
        (row["name"], {"uag": float(row["draft beside no draft"])})
        for row in table(RESULTS, "Where drafting cannot pay")
    ]
    figure = Figure(figsize=(9.0, 6.4), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[3 * len(pairs), 1.4 * len(useless)])
    draw(above, pairs, "real pairs, 256 tokens, beside plain generate")
    above.legend([Patch(color=color) for color in COLORS.values()], COLORS, frameon=False)
    draw(below, useless, "drafts that cannot pay, beside uag without a draft")
    below.set_xlabel("relative speed; below 1 is slower")
    return figure


def draw(plot: Any, groups: Bars, title: str) -> None:
    """Draw a group of bars for each name, each bar from 1 to its speed with the figure at its end."""
    plot.set_title(title, loc="left", fontsize=10, fontweight="bold")
    for place, (_, bars) in enumerate(groups):
        for index, (arm, speed) in enumerate(bars.items()):
            height = 0.8 / len(bars)
            y = place - 0.4 + (index + 0.5) * height
            plot.barh(y, speed - 1, left=1, color=COLORS[arm], height=0.9 * height)
            side = 1 if speed >= 1 else -1
            plot.annotate(
                f"{speed:.2f}", (speed, y), xytext=(4 * side, 0), textcoords="offset points",
                ha="left" if side > 0 else "right", va="center", fontsize=8,
            )  # fmt: skip
    plot.set_yticks(range(len(groups)), [name for name, _ in groups])
    plot.set_ylim(len(groups) - 0.4, -0.6)
    plot.margins(x=0.08)
    plot.axvline(1.0, color=INK, linewidth=1)
    plot.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, name: str) -> None:
    """Write an SVG with a transparent background."""
    figure.savefig(PICTURES / name, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
