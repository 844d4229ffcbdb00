"""The model card of a distilled draft: its purpose, its training, and its acceptance."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from uag._version import __version__

_TEMPLATE = """---
library_name: transformers
pipeline_tag: text-generation
tags: [speculative-decoding, assisted-generation, uag]
---

# {name}

A draft for `{target}` in assisted generation, made from `{draft}` with `uag distill`. It is not meant to be used alone.

    uag.Assistant(draft, draft_tokenizer, tokenizer).generate(target, **inputs)

## Acceptance

{verdict}

On {num_held_out} held-out texts, with 95 % intervals over prompts. *Agreement*: how often the draft's
first choice is the target's token. *Tokens per pass*: output of a target pass over {num_candidates} candidates.

| | agreement before | after | tokens per pass before | after |
|---|---|---|---|---|
{figures}

## Training

transformers' `Trainer`, on {num_texts} texts of the target; the loss covers the target's output, not the prompts.

| setting | value |
|---|---|
{settings}

uag {uag}, transformers {transformers}, PyTorch {torch}.
"""


def write_card(folder: Path, target: str, draft: str, settings: Mapping[str, Any], result: Any) -> None:
    """Write README.md into the folder of a draft; `result` is that of `uag.distill.distill`."""
    pairs = zip(result.before, result.after, strict=True)
    text = _TEMPLATE.format(
        name=folder.name,
        target=target,
        draft=draft,
        verdict=result.verdict,
        num_held_out=result.after[0].num_texts,
        num_candidates=result.after[0].num_candidate_tokens,
        figures="\n".join(
            f"| {new.mode} | {old.agreement} | {new.agreement} | {old.tokens_per_pass} | {new.tokens_per_pass} |"
            for old, new in pairs
        ),
        num_texts=result.num_texts,
        settings="\n".join(f"| `{name}` | {value} |" for name, value in settings.items()),
        uag=__version__,
        transformers=version("transformers"),
        torch=version("torch"),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
