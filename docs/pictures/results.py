"""Draw the plot of docs/results.md from its tables: speed.svg.

python docs/pictures/results.py
"""

import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

PICTURES = Path(__file__).parent

RESULTS = PICTURES.parent / "results.md"

INK = "#6e7781"  # readable on white and on black

COLORS = {"uag": "#d9822b", "peer": "#5b8db8"}

Table = list[dict[str, str]]


def main() -> None:
    """Read the tables and draw the plot."""
    mpl.rcParams |= {
        "svg.hashsalt": "uag",  # the same tables give the same file
        "svg.fonttype": "none",  # text stays text
        "font.size": 10,
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    }
    text = RESULTS.read_text(encoding="utf-8")
    save(speeds(text), "speed.svg")


def table(text: str, heading: str) -> Table:
    """Return the first table under a heading as dictionaries by column; the first column is called "name"."""
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = re.search(r"(?:^\|.*\n)+", section, flags=re.MULTILINE)
    if lines is None:
        raise SystemExit(f"no table under {heading!r} in {RESULTS}")
    names, _, *rows = (
        [re.sub("[*`]", "", cell).strip() for cell in line.strip("|").split("|")] for line in lines[0].splitlines()
    )
    return [dict(zip(["name", *names[1:]], row, strict=True)) for row in rows]


def speeds(text: str) -> Figure:
    """Draw a bar for each way to generate, from plain decoding's speed to its own."""
    greedy = table(text, "Greedy, one prompt at a time")
    groups = {
        "greedy": [(row["name"], row["speed"]) for row in greedy if not row["name"].startswith("plain")],
        "drafts that cannot pay off, prompt lookup off": [
            (f"uag, {row['name']}", row["uag, prompt lookup off"]) for row in table(text, "Where drafting cannot pay")
        ],
    }
    figure = Figure(figsize=(8.0, 4.2), layout="constrained")
    axes = figure.subplots(len(groups), 1, sharex=True, height_ratios=[len(bars) + 0.6 for bars in groups.values()])
    for plot, (title, bars) in zip(axes, groups.items(), strict=True):
        plot.set_title(title, loc="left", fontsize=10, fontweight="bold")
        for place, (name, figure_text) in enumerate(bars):
            draw_bar(plot, place, name, float(figure_text))
        plot.set_yticks(range(len(bars)), [name for name, _ in bars])
        plot.set_ylim(len(bars) - 0.4, -0.6)
        plain_line(plot)
    drawn = [float(speed) for bars in groups.values() for _, speed in bars]
    axes[-1].set(
        xlim=(min(drawn) - 0.2, max(drawn) + 0.2),
        xlabel="speed relative to plain decoding (one CPU core); below 1 is slower",
    )
    return figure


def draw_bar(plot: Any, place: int, name: str, speed: float) -> None:
    """Draw one bar from 1 to its speed, with the figure at its end."""
    color = COLORS["uag" if name.startswith("uag") else "peer"]
    plot.barh(place, speed - 1, left=1, color=color, height=0.62)
    side = 1 if speed >= 1 else -1
    plot.annotate(
        f"{speed:.2f}", (speed, place), xytext=(4 * side, 0), textcoords="offset points",
        ha="left" if side > 0 else "right", va="center",
    )  # fmt: skip


def plain_line(plot: Any) -> None:
    """Mark plain decoding's speed and remove the frame."""
    plot.axvline(1.0, color=INK, linewidth=1)
    plot.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, name: str) -> None:
    """Write an SVG with a transparent background."""
    figure.savefig(PICTURES / name, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
