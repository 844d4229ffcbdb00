"""Draw the plots of docs/results.md from its tables: speed.svg and vllm.svg.

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

PAIRS = {"demo <- demo": "demo pair", "py <- py": "Python pair, trained separately"}

Table = list[dict[str, str]]


def main() -> None:
    """Read the tables, draw both plots."""
    mpl.rcParams |= {
        "svg.hashsalt": "uag",  # the same tables give the same file
        "svg.fonttype": "none",  # text stays text
        "font.size": 10,
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    }
    text = RESULTS.read_text(encoding="utf-8")
    save(speeds(text), "speed.svg")
    save(requests_at_once(text), "vllm.svg")


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
    sampled = table(text, "Sampling, one prompt at a time")
    groups = {
        "greedy": [(row["name"], row["speed"]) for row in greedy if not row["name"].startswith("plain")],
        "sampling, temperature 1": [(row["name"], row["speed"]) for row in sampled],
        "drafts that cannot pay off, prompt lookup off": [
            (f"uag, {row['name']}", row["uag, prompt lookup off"]) for row in table(text, "Where drafting cannot pay")
        ],
    }
    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = figure.subplots(len(groups), 1, sharex=True, height_ratios=[len(bars) + 0.6 for bars in groups.values()])
    for plot, (title, bars) in zip(axes, groups.items(), strict=True):
        plot.set_title(title, loc="left", fontsize=10, fontweight="bold")
        for place, (name, figure_text) in enumerate(bars):
            draw_bar(plot, place, name, float(figure_text))
        plot.set_yticks(range(len(bars)), [name for name, _ in bars])
        plot.set_ylim(len(bars) - 0.4, -0.6)
        plain_line(plot, "vertical")
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


def requests_at_once(text: str) -> Figure:
    """Draw the speeds of uag and of vLLM's own drafting inside vLLM, by pair and number of requests."""
    rows = table(text, "Inside vLLM: speed")
    pairs: dict[str, Table] = {}
    for row in rows:
        pair, _, row["requests"] = row["name"].rpartition(", ")
        pairs.setdefault(pair, []).append(row)
    figure = Figure(figsize=(8.0, 3.2), layout="constrained")
    axes = figure.subplots(1, len(pairs), sharey=True, width_ratios=[len(rows) for rows in pairs.values()])
    bars = {"uag": COLORS["uag"], "vLLM use_heterogeneous_vocab": COLORS["peer"]}
    for plot, (pair, shown) in zip(axes, pairs.items(), strict=True):
        for index, (name, color) in enumerate(bars.items()):
            values = [float(row[name]) for row in shown]
            drawn = plot.bar(
                [place + 0.4 * index for place in range(len(shown))], [value - 1 for value in values], 0.38,
                bottom=1, color=color, label=name.replace("vLLM ", "vLLM's own, "),
            )  # fmt: skip
            plot.bar_label(drawn, [f"{value:.2f}" for value in values], padding=2, fontsize=8)
        plot.set_xticks([place + 0.2 for place in range(len(shown))], [row["requests"] for row in shown])
        plot.set_title(PAIRS.get(pair, pair), loc="left", fontsize=10, fontweight="bold")
        plot.set_xlabel("concurrent requests")
        plot.margins(y=0.12)
        plain_line(plot, "horizontal")
    axes[0].set_ylabel("speed relative to plain vLLM")
    axes[0].legend(frameon=False, loc="upper right")
    return figure


def plain_line(plot: Any, direction: str) -> None:
    """Mark plain decoding's speed and remove the frame."""
    (plot.axvline if direction == "vertical" else plot.axhline)(1.0, color=INK, linewidth=1)
    plot.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, name: str) -> None:
    """Write an SVG with a transparent background."""
    figure.savefig(PICTURES / name, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
