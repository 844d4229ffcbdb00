"""Target, draft, distillation: each stage continues from its last checkpoint in the work folder."""

import logging
import math
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaForCausalLM

from benchmarks.demo_pair.fit import SEED, Batch, bits_per_byte, fit, learned, trapezoid, windows
from benchmarks.demo_pair.library import split_library
from benchmarks.demo_pair.models import doubled, draft_config, target_config
from benchmarks.demo_pair.refine import Lines, OwnTexts
from benchmarks.demo_pair.vocabularies import DRAFT_EOS, TARGET_EOS, encode_modules, wrapped
from examples.distill import distill
from uag.bench import Prompt, read_prompts

logger = logging.getLogger(__name__)

WINDOW, BATCH = 256, 16
NUM_LAYERS = 9  # of the target before it grows
TARGET_STEPS = 1500  # on the library, before it grows
REFINE_STEPS = 1000  # on its own texts
GROWTH_STEPS = (20, 12)
DRAFT_STEPS = 600  # on the library, before distillation
NUM_PROMPTS, NUM_HELD_OUT, NUM_PROMPT, NUM_WRITTEN = (
    3200,
    32,
    48,
    112,
)  # texts: the target's tokens of prompt and its own
_REFINE_RATE, _GROWTH_RATE = 0.1, 0.02
"""Shares of the first rates: higher forget more of the library, lower need more steps."""

TEMPERATURES, NUM_EPOCHS, NUM_WRITTEN_AT_ONCE = (0.0, 0.7, 1.0), 3, 256


def _library_in(tokenizer: Tokenizer, eos: str) -> tuple[Tensor, Callable[[LlamaForCausalLM], float]]:
    """Return the text to train on, [num_tokens], and a function: a model's bits per byte of the held-out text."""
    ids, held_out_ids = (encode_modules(tokenizer, eos, part) for part in split_library())
    num_bytes = sum(len(module.text.encode()) for module in split_library()[1])
    logger.info(f"{len(ids):,} tokens to train on, {len(held_out_ids):,} held out")
    return ids, lambda model: bits_per_byte(model, held_out_ids, num_bytes)


def target_stage(work: Path, scale: float) -> None:
    """Train the target: shallow first, on the library, then on its own texts too; then doubled twice."""
    tokenizer = Tokenizer.from_file(str(work / "target-tokenizer.json"))
    ids, judge = _library_in(tokenizer, TARGET_EOS)
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(target_config(NUM_LAYERS))

    def train(name: str, num_steps: int, batch_at: Callable[[int], Batch], rate_at: Callable[[int], float]) -> None:
        num_steps = math.ceil(scale * num_steps)
        fit(model, batch_at, rate_at, range(num_steps), work / f"{name}.pt")
        logger.info(f"{name}: {judge(model):.3f} bits/byte")

    def batch_at(step: int) -> Batch:
        is_long = step % 16 == 15  # a few long windows for far positions
        return learned(windows(ids, step, BATCH // 4, 4 * WINDOW) if is_long else windows(ids, step, BATCH, WINDOW))

    train("target", TARGET_STEPS, batch_at, trapezoid(math.ceil(scale * TARGET_STEPS), decay_share=0.4))
    own = OwnTexts(model, ids, Lines(tokenizer), BATCH, WINDOW)
    falling = trapezoid(math.ceil(scale * REFINE_STEPS), decay_share=0.25)
    train("refined", REFINE_STEPS, own.batch_at, lambda step: _REFINE_RATE * falling(step))
    for steps in GROWTH_STEPS:
        model = doubled(model)
        train(f"grown-{model.config.num_hidden_layers}", steps, own.batch_with_last, lambda _: _GROWTH_RATE)
    model.save_pretrained(work / "target")


def draft_stage(work: Path, scale: float) -> None:
    """Train a draft on the library: what distillation begins with."""
    tokenizer = Tokenizer.from_file(str(work / "draft-tokenizer.json"))
    ids, judge = _library_in(tokenizer, DRAFT_EOS)
    num_steps = math.ceil(scale * DRAFT_STEPS)
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(draft_config())
    rate_at = trapezoid(num_steps, decay_share=0.3)
    fit(model, lambda step: learned(windows(ids, step, BATCH, WINDOW)), rate_at, range(num_steps), work / "draft.pt")
    logger.info(f"draft: {judge(model):.3f} bits/byte")
    model.save_pretrained(work / "draft")
    wrapped(tokenizer, DRAFT_EOS).save_pretrained(work / "draft")


def distill_stage(work: Path, scale: float) -> None:
    """Let the target go on from random places of the library, greedily and at temperatures; the draft learns that."""
    tokenizer = Tokenizer.from_file(str(work / "target-tokenizer.json"))
    wrapped(tokenizer, TARGET_EOS).save_pretrained(work / "target")
    train, held_out = (encode_modules(tokenizer, TARGET_EOS, part) for part in split_library())
    num_prompts = math.ceil(scale * NUM_PROMPTS)
    before, after = distill(
        str(work / "target"),
        str(work / "draft"),
        work / "distilled",
        _texts(tokenizer, windows(train, 1_000_000, num_prompts, NUM_PROMPT - 1)),
        _texts(tokenizer, windows(held_out, 0, NUM_HELD_OUT, NUM_PROMPT - 1)),
        TEMPERATURES,
        NUM_WRITTEN,
        NUM_WRITTEN_AT_ONCE,
        {"num_train_epochs": NUM_EPOCHS, "per_device_train_batch_size": 2 * BATCH, "seed": SEED},
    )
    logger.info(f"accepted: {before:.1%} of the candidates before, {after:.1%} after")


def _texts(tokenizer: Tokenizer, ids: Tensor) -> list[Prompt]:
    return read_prompts([tokenizer.decode(row, skip_special_tokens=False) for row in ids.tolist()])
