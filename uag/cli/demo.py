"""The demo: complete held-out Python with the bundled pair, plain, with transformers' own path and with uag."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text

from uag.bench import ArmSummary, BenchOptions, Record, heldout_prompts, measure, spread, summarize
from uag.cli.completion import Completion, complete
from uag.loading import Pair
from uag.stats import TARGET

ARM_NAMES = ("plain", "transformers", "uag")
STYLES = {
    "draft model": ("drafted and accepted", "green"),
    "prompt": ("found in the text before", "cyan"),
    "prediction": ("predicted by the user", "blue"),
    "source": ("from a source of text", "yellow"),
    TARGET: ("written by the target", "bold magenta"),
}
"""The sources of tokens: what the legend calls each, and its style."""


@dataclass(frozen=True)
class Demo:
    """One completed text, and the records of every arm on every prompt with their summaries."""

    showcase: Completion
    records: tuple[Record, ...]
    summaries: tuple[ArmSummary, ...]

    @property
    def is_equal(self) -> bool:
        """Whether the output of every arm equals plain decoding's on every prompt."""
        return all(record.is_reported for record in self.records)

    def verdict(self) -> str:
        """Say in one line whether the outputs are equal and how fast each arm was."""
        num_prompts = self.summaries[0].num_prompts
        if not self.is_equal:
            return f"OUTPUTS DIFFER on at least one of {num_prompts} prompts: see the table"
        speed_ups = [f"{summary.arm} {summary.speed_up:.2f}x" for summary in self.summaries if summary.arm != "plain"]
        prompts = f"{num_prompts} prompt{'s' * (num_prompts > 1)}"
        return f"all outputs equal on {prompts}; speed relative to plain decoding: {', '.join(speed_ups)}"

    def to_dict(self, pair: Pair) -> dict[str, Any]:
        """Return everything ready for JSON."""
        return {
            "is_equal": self.is_equal,
            "verdict": self.verdict(),
            "showcase": self.showcase.to_dict(),
            "summaries": [asdict(summary) for summary in self.summaries],
            "records": [record.to_dict(pair) for record in self.records],
        }


def run_demo(
    pair: Pair,
    options: BenchOptions,
    *,
    num_prompts: int = 4,
    on_run: Callable[[int, int], object] = lambda *_: None,
) -> Demo:
    """Measure a pair on bundled prompts and complete the first of them; `on_run` as in `uag.bench.measure`."""
    prompts = spread(heldout_prompts(), num_prompts)
    records = tuple(measure(pair, prompts, options, on_run=on_run))
    showcase = complete(pair, prompts[0].text, max_new_tokens=options.max_new_tokens)
    return Demo(showcase, records, tuple(summarize(records)))


def colour(showcase: Completion) -> Text:
    """Return a legend of the sources that occur, the prompt dimmed, then each token in the color of its source."""
    sources = [source if source in STYLES else "source" for source in showcase.sources]
    legend = [part for name, style in STYLES.items() if name in sources or name == TARGET for part in (style, "   ")]
    styles = (STYLES[name][1] for name in sources)
    return Text.assemble(*legend[:-1], "\n\n", (showcase.prompt, "dim"), *zip(showcase.texts, styles, strict=True))
