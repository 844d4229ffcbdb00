"""Load one target and the drafts that are compared for it."""

from collections.abc import Sequence
from dataclasses import replace

from uag import forks
from uag.adapters import from_tokenizer
from uag.assistant import Assistant
from uag.bench.options import BenchOptions
from uag.bench.record import Record
from uag.errors import PairError, UagError
from uag.hf.decoder import COPY
from uag.loading import Pair, demo_folder, load_draft, load_model, load_tokenizer


def load_pairs(
    target: str | None,
    drafts: Sequence[str],
    options: BenchOptions,
    *,
    dtype: str | None = None,
    device: str | None = None,
) -> tuple[list[Pair], list[Record]]:
    """Return a pair for each draft, all with the same target, and records of the drafts that cannot be used.

    Names, `dtype` and `device` are those of `uag.load_pair`; no drafts are the demo's. All tokenizers are loaded first.
    """
    folders = {name: name for name in drafts} or {"demo draft": demo_folder("draft")}
    folder = target or demo_folder("target")
    tokenizer = load_tokenizer(folder, role="target")
    tokenizers = [tokenizer if name == COPY else load_tokenizer(name, role="draft") for name in folders.values()]
    model = load_model(folder, dtype=dtype, device=device, role="target")
    pairs, refused = [], []
    for (name, draft), draft_tokenizer in zip(folders.items(), tokenizers, strict=True):
        pair = Pair(model, tokenizer, target or "demo target", None, draft_tokenizer, name)
        try:
            pair = replace(pair, draft=load_draft(draft, dtype=dtype, device=device))
            Assistant(pair.draft, draft_tokenizer, tokenizer, options=options).check(model)
            pairs.append(pair)
        except (UagError, OSError, ImportError) as error:
            forks.let_pass(error)
            if len(folders) == 1:
                raise
            why = " ".join(str(error).split())
            refused.append(Record("uag", (), options.batch_size, options.temperature, 0, name, refusal=why))
    if not pairs:
        raise PairError("none of the drafts can be used: " + "; ".join(f"{r.draft}: {r.refusal}" for r in refused))
    return pairs, refused


def losses(pairs: Sequence[Pair]) -> list[str]:
    """Return why tokenizers of drafts cannot represent every text, a line for each that cannot."""
    of_drafts = [(pair.draft_name, from_tokenizer(pair.draft_tokenizer).loss) for pair in pairs]
    return [f"{name}: {loss}" for name, loss in of_drafts if loss]
