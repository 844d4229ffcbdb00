"""Rank drafts for one target by their measured speed."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from uag.adapters import from_tokenizer
from uag.assistant import Assistant
from uag.bench import Arm, BenchOptions, Prompt, Record, assisted, measure, summarize
from uag.errors import UagError
from uag.gguf import GgufDraft
from uag.loading import Pair, demo_folder, load_draft, load_model, load_tokenizer
from uag.measure import Estimate, ratio


@dataclass(frozen=True)
class Ranked:
    """One draft for a target; a draft that was refused has no figures.

    Attributes:
        name: as passed by the user.
        num_bytes: size of its weights.
        loss: why its tokenizer cannot represent every text; None if it can.
        speed_up: relative to plain decoding, with its interval over prompts.
        tokens_per_pass: output tokens per target pass.
        acceptance_rate: share of the candidates that the target accepted; None if nothing was drafted.
        refusal: why it was refused.
    """

    name: str
    num_bytes: int = 0
    loss: str | None = None
    speed_up: Estimate | None = None
    tokens_per_pass: float = 0.0
    acceptance_rate: float | None = None
    refusal: str | None = None

    @property
    def verdict(self) -> str:
        """Whether the draft is worth using, in one line."""
        if self.speed_up is None:
            return f"{self.name} cannot draft for this target"
        if self.speed_up.low is None or self.speed_up.high is None:
            answer = "too few prompts to tell"
        elif self.speed_up.low > 1.0:
            answer = "worth using"
        else:
            answer = "not worth using" if self.speed_up.high < 1.0 else "may or may not be worth using"
        return f"{answer}: {self.speed_up:.2f} times the speed of plain decoding"

    def line(self) -> str:
        """Return the figures and the name; the name comes last because it may be a long path."""
        if self.speed_up is None:
            return f"{'refused':<50}  {self.name}: {self.refusal}"
        speed, memory = f"{self.speed_up:.2f}", f"{self.num_bytes / 1e6:.0f} MB"
        accepted = "-" if self.acceptance_rate is None else f"{self.acceptance_rate:.0%}"
        return f"{speed:<21}{self.tokens_per_pass:>9.2f}{accepted:>10}{memory:>10}  {self.name}"


@dataclass(frozen=True)
class Ranking:
    """Drafts for one target, fastest first."""

    target: str
    drafts: tuple[Ranked, ...]

    @property
    def verdict(self) -> str:
        """Whether the draft, or the best of several, is worth using."""
        best = self.drafts[0]
        if len(self.drafts) == 1:
            return best.verdict
        if best.speed_up is None:
            return "none of these can draft for this target"
        return f"best draft: {best.name}, {best.verdict}"

    def table(self) -> str:
        """Return a line for each draft, and why tokenizers cannot represent every text."""
        lines = [f"{'speed':<21}{'tok/pass':>9}{'accepted':>10}{'memory':>10}  draft"]
        lines += [draft.line() for draft in self.drafts]
        lines += [f"{draft.name}: {draft.loss}" for draft in self.drafts if draft.loss]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the ranking as plain data for JSON."""
        return asdict(self) | {"verdict": self.verdict}


def rank(
    target: str | None,
    drafts: Sequence[str],
    prompts: Sequence[Prompt],
    options: BenchOptions,
    *,
    dtype: str | None = None,
    device: str | None = None,
) -> Ranking:
    """Generate with each draft and plainly, in turns, and order the drafts by speed.

    Names, `dtype` and `device` are those of `uag.load_pair`.

    Raises:
        UagError: a tokenizer or the target cannot be loaded, raised before anything is measured; or the only draft
            cannot draft for the target.
    """
    drafts = tuple(dict.fromkeys(drafts))
    folder = target or demo_folder("target")
    tokenizers = {name: load_tokenizer(name, role="draft") for name in drafts}
    tokenizer = load_tokenizer(folder, role="target")
    model = load_model(folder, dtype=dtype, device=device, role="target")
    arms = [Arm("plain", model.generate)]
    num_bytes: dict[str, int] = {}
    refused: list[Ranked] = []
    for name in drafts:
        try:
            draft = load_draft(name, dtype=dtype, device=device)
            assistant = Assistant(draft, tokenizers[name], tokenizer)
            assistant._find_drafter(model)  # refuses a pair that cannot work, before anything is measured
            arms.append(assisted(name, assistant, model))
            num_bytes[name] = _num_bytes(draft)
        except (UagError, OSError, ImportError) as error:
            if len(drafts) == 1:
                raise
            refused.append(Ranked(name, refusal=" ".join(str(error).split())))
    pair = Pair(model, tokenizer, folder, None, tokenizer, "each draft")
    records = list(measure(pair, prompts, options, arms=arms)) if num_bytes else []
    ranked = [_rank_one(name, num_bytes[name], tokenizers[name], records) for name in num_bytes]
    ranked.sort(key=lambda draft: 0.0 if draft.speed_up is None else -draft.speed_up.value)
    return Ranking(target or "demo target", (*ranked, *refused))


def _rank_one(name: str, num_bytes: int, tokenizer: Any, records: Sequence[Record]) -> Ranked:
    _, summary = summarize([record for record in records if record.arm in ("plain", name)])
    loss = from_tokenizer(tokenizer).loss
    if summary.tokens_per_target_pass is None:
        return Ranked(name, num_bytes, loss, refusal=summary.refusal)
    plain_s, draft_s = ([r.seconds or 0.0 for r in records if r.arm == arm] for arm in ("plain", name))
    return Ranked(
        name, num_bytes, loss, ratio(plain_s, draft_s), summary.tokens_per_target_pass, summary.acceptance_rate
    )


def _num_bytes(draft: Any) -> int:
    if isinstance(draft, GgufDraft):
        return draft.file.path.stat().st_size
    return sum(tensor.nbytes for tensor in (*draft.parameters(), *draft.buffers()))
