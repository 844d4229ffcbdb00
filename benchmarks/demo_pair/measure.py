"""What the model card reports of the packaged models; the distillation reports acceptance, and `uag demo` speed."""

import json
import logging
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from benchmarks.demo_pair.fit import bits_per_byte
from benchmarks.demo_pair.library import split_library
from benchmarks.demo_pair.models import write_on
from benchmarks.demo_pair.refine import Lines
from benchmarks.demo_pair.vocabularies import DRAFT_EOS, TARGET_EOS, encode_modules

logger = logging.getLogger(__name__)


def measure_stage(out: Path, num_prompts: int = 40, num_new: int = 96) -> None:
    """Print bits per byte of both models on the held-out modules, and how many of the target's texts repeat a line."""
    _, held_out = split_library()
    num_bytes = sum(len(module.text.encode()) for module in held_out)
    models, tokenizers = [], []
    for name, eos in (("target", TARGET_EOS), ("draft", DRAFT_EOS)):
        models.append(LlamaForCausalLM.from_pretrained(out / name, dtype=torch.float32).eval())
        tokenizers.append(Tokenizer.from_file(str(out / name / "tokenizer.json")))
        ids = encode_modules(tokenizers[-1], eos, held_out)
        logger.info(
            f"{name}: {bits_per_byte(models[-1], ids, num_bytes):.3f} bits/byte on held-out modules, "
            f"{num_bytes / len(ids):.2f} bytes/token, {models[-1].num_parameters():,} weights"
        )
    target, tokenizer = models[0], tokenizers[0]
    prompts = [json.loads(line)["prompt"] for line in (out / "heldout.jsonl").read_text().splitlines()]
    prompts, lines = prompts[:: max(1, len(prompts) // num_prompts)], Lines(tokenizer)
    for temperature in (0.0, 1.0):
        num_repeating = 0
        for seed, prompt in enumerate(prompts):
            ids = torch.tensor([tokenizer.encode(prompt).ids])
            new = write_on(target, ids, num_new, torch.tensor([temperature]), seed)[0, ids.shape[1] :].tolist()
            num_repeating += bool(lines.repeated(new[: new.index(0)] if 0 in new else new))
        logger.info(f"temperature {temperature:g}: {num_repeating} of {len(prompts)} texts have a line three times")
