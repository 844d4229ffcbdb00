"""The demo: complete held-out Python with the bundled pair, plain, with transformers' own path and with uag."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text

from uag.bench import ArmSummary, BenchOptions, Record, heldout_prompts, measure, num_records, spread, summarize
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
"""Where a token comes from: what the legend calls it, and its style."""


@dataclass(frozen=True)
class Demo:
    """What the demo shows: a text, what each way of generating took, and whether all of them wrote the same."""

    showcase: Completion
    records: tuple[Record, ...]
    summaries: tuple[ArmSummary, ...]

    @property
    def is_equal(self) -> bool:
        """Whether every arm wrote what plain decoding wrote, on every prompt."""
        return all(record.is_reported for record in self.records)

    def verdict(self) -> str:
        """Say in one line whether the outputs are equal and who was how fast."""
        num_prompts = self.summaries[0].num_prompts
        if not self.is_equal:
            return f"OUTPUTS DIFFER on at least one of {num_prompts} prompts: see the table"
        speed_ups = [f"{summary.arm} {summary.speed_up:.2f}x" for summary in self.summaries if summary.arm != "plain"]
        return f"all outputs equal on {num_prompts} prompts; speed against plain decoding: {', '.join(speed_ups)}"

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
    track: Callable[[Iterable[Record], int], Iterable[Record]] = lambda records, _: records,
) -> Demo:
    """Measure a pair on bundled prompts and complete the first of them for show.

    `track` hands the records on, given how many will come: for a progress bar.
    """
    prompts = spread(heldout_prompts(), num_prompts)
    records = tuple(track(measure(pair, prompts, options), num_records(len(prompts), options)))
    showcase = complete(pair, prompts[0].text, max_new_tokens=options.max_new_tokens)
    return Demo(showcase, records, tuple(summarize(records)))


def colour(showcase: Completion) -> Text:
    """Return a legend of the origins that occur, the prompt dimmed, then each token in the colour of its origin."""
    known = [source if source in STYLES else "source" for source in showcase.sources]
    parts = [part for name, style in STYLES.items() if name in known or name == TARGET for part in (style, "   ")]
    styles = (STYLES[name][1] for name in known)
    return Text.assemble(*parts[:-1], "\n\n", (showcase.prompt, "dim"), *zip(showcase.texts, styles, strict=True))
