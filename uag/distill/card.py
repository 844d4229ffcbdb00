"""The card beside a distilled draft: what it is for, what it learnt from and how, and its acceptance."""

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from uag._version import __version__
from uag.distill.acceptance import Acceptance

_TEMPLATE = """---
library_name: transformers
pipeline_tag: text-generation
tags: [speculative-decoding, assisted-generation, uag]
---

# {name}

A draft for `{target}`, made from `{draft}` with `uag distill`. It drafts for that target in assisted generation and is
not meant to be used alone.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer
import uag

target, draft = (AutoModelForCausalLM.from_pretrained(name) for name in ({target!r}, {folder!r}))
tokenizer, draft_tokenizer = (AutoTokenizer.from_pretrained(name) for name in ({target!r}, {folder!r}))
assistant = uag.Assistant(draft, draft_tokenizer, tokenizer)
output = assistant.generate(target, **tokenizer("...", return_tensors="pt"), max_new_tokens=64)
```

## Acceptance

On held-out prompts that nothing was trained on, with intervals of 95 % over prompts. *Agreement*: how often the draft's
first choice is the target's own next token. *Tokens per pass*: what a target pass over {num_candidates} candidates
gives.

| | agreement before | after | tokens per pass before | after |
|---|---|---|---|---|
{figures}

## Data

The target wrote {num_texts} texts on from {num_prompts} prompts; {num_held_out} further prompts were held out. The
draft learnt {learnt}.

{data}

## Training

transformers' `Trainer`, on the texts in the draft's own tokens.

{training}

uag {uag}, transformers {transformers}, PyTorch {torch}.
"""


def write_card(
    folder: Path, target: str, draft: str, num_prompts: int, writing: Any, training: Any, result: Any
) -> None:
    """Write README.md beside a result: `writing`, `training` and `result` as in `uag.distill.distill`."""
    pairs = zip(result.before, result.after, strict=True)
    text = _TEMPLATE.format(
        name=folder.name,
        folder=str(folder),
        target=target,
        draft=draft,
        num_candidates=result.after[0].num_candidate_tokens,
        figures="\n".join(_line(before, after) for before, after in pairs),
        num_texts=result.num_texts,
        num_prompts=num_prompts,
        num_held_out=result.after[0].num_texts,
        learnt="prompts and what followed" if training.learns_prompts else "what followed the prompts",
        data=_table(asdict(writing)),
        training=_table(asdict(training)),
        uag=__version__,
        transformers=version("transformers"),
        torch=version("torch"),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def _line(before: Acceptance, after: Acceptance) -> str:
    cells: Sequence[Any] = (
        f"temperature {after.temperature:g}" if after.temperature else "greedy",
        before.agreement,
        after.agreement,
        before.tokens_per_pass,
        after.tokens_per_pass,
    )
    return f"| {' | '.join(map(str, cells))} |"


def _table(values: dict[str, Any]) -> str:
    rows = "\n".join(f"| `{name}` | {value} |" for name, value in values.items())
    return f"| setting | value |\n|---|---|\n{rows}"
