"""Draw docs/pictures/demo.svg: what `uag demo` prints, its text cut short.

OMP_NUM_THREADS=1 python docs/pictures/demo.py

The demo is measured anew, so the figures in the picture are those of this one run.
"""

import io
import re
from pathlib import Path

import torch
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text
from transformers.utils import logging

from uag import Assistant, bench
from uag.loading import load_pair

PICTURE = Path(__file__).with_suffix(".svg")

NUM_LINES_SHOWN = 10  # of legend, prompt and completion

CHARACTER_WIDTH = 12.2  # in rich's SVG


def main() -> None:
    """Run the demo and write the picture."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    options = bench.BenchOptions(arm_names=("plain", "uag-no-draft", "uag", "transformers"), num_trials=3)
    pair, prompts = load_pair(), bench.spread(bench.heldout_prompts(), 3)
    records = list(bench.measure(pair, prompts, options))
    found = bench.conclusions(records)
    verdict = "\n".join(bench.lines(found))
    if not found["is_equal"]:
        raise SystemExit(verdict)
    assistant = Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer)
    showcase = bench.complete(pair, assistant, prompts[0].text, max_new_tokens=options.max_new_tokens)

    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print("$ uag demo", style="bold")
    console.print(cut(bench.colored(showcase)))
    console.print()
    console.print(bench.summary_table(records, title=f"{options.max_new_tokens} new tokens, greedy, arms in turns"))
    console.print(verdict, highlight=False, style="bold")
    PICTURE.write_text(portable(console.export_svg(title="", theme=MONOKAI, unique_id="demo")), encoding="utf-8")
    print(f"{PICTURE}: {verdict}")


def cut(text: Text) -> Text:
    """Keep the first lines, and say how many are left out."""
    lines = text.split("\n")
    num_left_out = len(lines) - NUM_LINES_SHOWN
    kept = Text("\n").join(lines[:NUM_LINES_SHOWN])
    return kept.append(f"\n        ... {num_left_out} more lines", style="dim") if num_left_out > 0 else kept


def portable(svg: str) -> str:
    """Use the reader's own fixed-width font, and place text by coordinates instead of leading spaces.

    rich would load a font over the network, and not every program that draws an SVG keeps leading spaces.
    """
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code,", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono,")
    svg = re.sub(r'x="([\d.]+)" y="([\d.]+)" textLength="([\d.]+)"([^>]*)>((?:&#160;)+)', without_indent, svg)
    return re.sub(r"<text [^>]*>\n</text>", "", svg)


def without_indent(match: re.Match[str]) -> str:
    """Turn the spaces that a piece of text begins with into a place farther to the right."""
    x, y, length, rest, spaces = match.groups()
    indent = spaces.count(";") * CHARACTER_WIDTH
    return f'x="{float(x) + indent:g}" y="{y}" textLength="{float(length) - indent:g}"{rest}>'


if __name__ == "__main__":
    main()
