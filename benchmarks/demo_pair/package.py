"""What goes into `uag/demo`: both models in bfloat16, their tokenizers and prompts from the held-out modules."""

import hashlib
import json
import logging
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from benchmarks.demo_pair.fit import SEED
from benchmarks.demo_pair.library import Module, split_library
from benchmarks.demo_pair.vocabularies import DRAFT_EOS, TARGET_EOS, wrapped

logger = logging.getLogger(__name__)


def heldout_prompts(tokenizer: Tokenizer, modules: list[Module]) -> Iterator[dict[str, str | int]]:
    """Cut prompts at line ends: three short ones from each module, and a long one from the largest."""
    longest = sorted(modules, key=lambda module: -len(module.lines))[:8]
    for module in modules:
        rng = random.Random(f"{SEED} {module.name}")
        lines = module.text.splitlines()
        sizes = [(20, 60), (60, 100), (100, 150)] + ([(300, 400)] if module in longest else [])
        for low, high in sizes:
            for _ in range(200):
                start = rng.randrange(len(lines))
                if not lines[start].lstrip().startswith(("def ", "class ", "for ", "if ", "import ", "from ", "try:")):
                    continue
                ends = range(start + 1, min(start + 80, len(lines)))
                texts = {end: "\n".join(lines[start:end]) for end in ends if lines[end - 1]}
                fits = [end for end, text in texts.items() if low <= len(tokenizer.encode(text).ids) <= high]
                if fits:
                    yield {"prompt": texts[rng.choice(fits)], "module": module.name, "line": module.lines[start]}
                    break


def package_stage(work: Path, out: Path) -> None:
    """Write both models (bfloat16 weights, to be loaded as float32), their tokenizers and the held-out prompts."""
    train, held_out = split_library()
    for name, folder, eos in (("target", "target", TARGET_EOS), ("draft", "distilled", DRAFT_EOS)):
        model = LlamaForCausalLM.from_pretrained(work / folder, dtype=torch.bfloat16)
        model.generation_config.pad_token_id = model.config.eos_token_id
        model.save_pretrained(out / name)
        model.config.dtype = torch.float32  # outputs are equal on GPUs, too, where this type is used by default
        model.config.save_pretrained(out / name)
        (out / name / "model.safetensors").chmod(0o644)
        tokenizer = Tokenizer.from_file(str(work / f"{name}-tokenizer.json"))
        wrapped(tokenizer, eos).save_pretrained(out / name)
    prompts = list(heldout_prompts(Tokenizer.from_file(str(work / "target-tokenizer.json")), held_out))
    (out / "heldout.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    digest = hashlib.sha256("\0".join(module.text for module in train).encode()).hexdigest()
    logger.info(f"{len(prompts)} prompts; training text sha256 {digest}")
