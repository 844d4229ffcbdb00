"""Target, text by the target, draft: each stage continues from its last checkpoint in the work folder."""

import json
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaForCausalLM

from training.fit import SEED, bits_per_byte, fit, trapezoid, windows
from training.library import split_library
from training.models import doubled, draft_config, target_config, write_on
from training.vocabularies import DRAFT_EOS, TARGET_EOS, encode_modules

logger = logging.getLogger(__name__)

WINDOW, BATCH = 256, 16
NUM_LAYERS = 9  # of the target before it grows
TARGET_STEPS = (540, 20, 12)
DRAFT_STEPS = (600, 900)
NUM_TEXTS, NUM_PROMPT, NUM_WRITTEN = 9472, 48, 112  # texts by the target: its tokens of prompt and of its own


def _library_in(tokenizer: Tokenizer, eos: str) -> tuple[Tensor, Callable[[LlamaForCausalLM], float]]:
    """Return the text to train on, [num_tokens], and a function: a model's bits per byte of the held-out text."""
    ids, held_out_ids = (encode_modules(tokenizer, eos, part) for part in split_library())
    num_bytes = sum(len(module.text.encode()) for module in split_library()[1])
    logger.info(f"{len(ids):,} tokens to train on, {len(held_out_ids):,} held out")
    return ids, lambda model: bits_per_byte(model, held_out_ids, num_bytes)


def target_stage(work: Path, scale: float) -> None:
    """Train the target: shallow first, then doubled and trained on, twice."""
    tokenizer = Tokenizer.from_file(str(work / "target-tokenizer.json"))
    ids, judge = _library_in(tokenizer, TARGET_EOS)

    num_steps = [math.ceil(scale * steps) for steps in TARGET_STEPS]
    rate_at = trapezoid(sum(num_steps), decay_share=0.313)

    def batch_at(step: int) -> Tensor:
        is_long = step >= num_steps[0] and step % 8 == 7  # a few long windows for far positions
        return windows(ids, step, BATCH // 4, 4 * WINDOW) if is_long else windows(ids, step, BATCH, WINDOW)

    torch.manual_seed(SEED)
    model = LlamaForCausalLM(target_config(NUM_LAYERS))
    done = 0
    for index, steps in enumerate(num_steps):
        if index:
            model = doubled(model)
        fit(model, batch_at, rate_at, range(done, done + steps), work / f"target-{model.config.num_hidden_layers}.pt")
        done += steps
        logger.info(f"{model.config.num_hidden_layers} layers: {judge(model):.3f} bits/byte")
    model.save_pretrained(work / "target")


def text_stage(work: Path, scale: float) -> None:
    """Let the target go on from random places of the library, greedily and at several temperatures."""
    tokenizer = Tokenizer.from_file(str(work / "target-tokenizer.json"))
    train, _ = split_library()
    ids = encode_modules(tokenizer, TARGET_EOS, train)
    model = LlamaForCausalLM.from_pretrained(work / "target").eval()
    folder = work / "texts"
    folder.mkdir(exist_ok=True)
    rows = 256
    temperatures = torch.tensor([0.0, 0.0, 0.0, 0.3, 0.7, 1.0, 1.0, 1.0]).repeat(rows // 8)
    for part in range(max(1, round(scale * NUM_TEXTS / rows))):
        path = folder / f"{part:03}.json"
        if path.exists():
            continue
        began = time.perf_counter()
        prompts = windows(ids, 1_000_000 + part, rows, NUM_PROMPT - 1)
        written = write_on(model, prompts, NUM_WRITTEN, temperatures, seed=SEED + part)
        texts = [tokenizer.decode(row, skip_special_tokens=False) for row in written.tolist()]
        path.write_text(json.dumps(texts))
        logger.info(f"part {part}: {rows * NUM_WRITTEN / (time.perf_counter() - began):.0f} tokens/s")


def draft_rows(work: Path, tokenizer: Tokenizer) -> Tensor:
    """Return the target's texts in the draft's ids, one a row, -1 behind its end: [num_texts, row_length + 1]."""
    texts = [text for path in sorted((work / "texts").glob("*.json")) for text in json.loads(path.read_text())]
    rows = torch.full((len(texts), NUM_PROMPT + NUM_WRITTEN + 1), -1)
    for row, text in zip(rows, texts, strict=True):
        ids = torch.tensor(tokenizer.encode(text.replace(TARGET_EOS, DRAFT_EOS)).ids[: rows.shape[1]])
        row[: len(ids)] = ids
    return rows


def draft_stage(work: Path, scale: float) -> None:
    """Train the draft on the library, then on the target's own texts with one row in eight from the library."""
    tokenizer = Tokenizer.from_file(str(work / "draft-tokenizer.json"))
    ids, judge = _library_in(tokenizer, DRAFT_EOS)
    written = draft_rows(work, tokenizer)
    logger.info(f"{(written >= 0).sum():,} draft tokens written by the target")

    first, second = (math.ceil(scale * steps) for steps in DRAFT_STEPS)

    def batch_at(step: int) -> Tensor:
        if step < first:
            return windows(ids, step, BATCH, WINDOW)
        at = (step - first) * (2 * BATCH - 4)
        order = torch.randperm(len(written), generator=torch.Generator().manual_seed(SEED + at // len(written)))
        picked = order[(at + torch.arange(2 * BATCH - 4)) % len(written)]
        return torch.cat([written[picked], windows(ids, step, 4, written.shape[1] - 1)])

    torch.manual_seed(SEED)
    model = LlamaForCausalLM(draft_config())
    rate_at = trapezoid(first + second, decay_share=0.5)
    fit(model, batch_at, rate_at, range(first + second), work / "draft.pt")
    logger.info(f"draft: {judge(model):.3f} bits/byte")
    model.save_pretrained(work / "draft")
