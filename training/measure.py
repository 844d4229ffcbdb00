"""What the model card reports, measured on the packaged pair in float32."""

import itertools
import json
import logging
import math
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from training.fit import bits_per_byte
from training.library import split_library
from training.models import write_on
from training.refine import Lines
from training.stages import WINDOW
from training.vocabularies import DRAFT_EOS, DRAFT_VOCAB, TARGET_EOS, encode_modules

logger = logging.getLogger(__name__)


@torch.inference_mode()
def step_times(models: list[LlamaForCausalLM], rounds: int = 60, context: int = 128) -> list[float]:
    """Return each model's median time for one token behind `context` others, in ms, interleaved, batch 1."""
    caches = [model(torch.full((1, context), 40), use_cache=True).past_key_values for model in models]
    times: list[list[float]] = [[] for _ in models]
    for _ in range(rounds):
        for model, cache, own in zip(models, caches, times, strict=True):
            began = time.perf_counter()
            model(torch.full((1, 1), 41), past_key_values=cache, use_cache=True)
            own.append((time.perf_counter() - began) * 1e3)
    return [sorted(own)[rounds // 2] for own in times]


@torch.inference_mode()
def says(model: LlamaForCausalLM, tokenizer: Tokenizer, pieces: list[str], context: str, wanted: str) -> bool:
    """Tell whether the draft's greedy text behind `context` begins with `wanted`.

    The context's last draft token is predicted anew, among the tokens that begin with it: the context may end within
    a token of the draft. One token of 2 bytes or more that holds half a character counts as not said.
    """
    ids = tokenizer.encode(context).ids[-WINDOW:]
    pending = pieces[ids.pop()]
    said = ""
    while len(said) < len(wanted):
        scores = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        if pending:
            scores[[not piece.startswith(pending) for piece in pieces]] = -math.inf
        best = int(scores.argmax())
        said += pieces[best][len(pending) :]
        ids.append(best)
        pending = ""
    return said.startswith(wanted)


def speed_up(agreed: list[list[bool]], ratio: float, num_candidates: int) -> float:
    """Return the greedy speed that rounds of a fixed length would give, in target passes of `ratio` draft steps."""
    written = rounds = 0
    for row in agreed:
        at = 0
        while at < len(row):
            block = row[at : at + num_candidates]
            accepted = block.index(False) if False in block else len(block)
            at += accepted + 1
            rounds += 1
        written += at
    return written / (rounds * (1 + num_candidates / ratio))


def measure_stage(out: Path, num_prompts: int = 40, num_new: int = 96) -> None:
    """Print what the model card reports, measured on the packaged pair in float32."""
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
    (target, draft), (tokenizer, draft_tokenizer) = models, tokenizers
    target_ms, draft_ms = step_times(models)
    logger.info(f"target pass {target_ms:.2f} ms, draft step {draft_ms:.2f} ms, ratio {target_ms / draft_ms:.1f}")

    pieces = [draft_tokenizer.id_to_token(index) or "" for index in range(DRAFT_VOCAB)]
    prompts = [json.loads(line)["prompt"] for line in (out / "heldout.jsonl").read_text().splitlines()]
    step, lines = max(1, len(prompts) // num_prompts), Lines(tokenizer)
    for label, temperature in (("greedy", 0.0), ("temperature 1.0", 1.0)):
        agreed, samples, num_repeating = [], [], 0
        for index, prompt in enumerate(prompts[::step]):
            ids = torch.tensor([tokenizer.encode(prompt).ids])
            new = write_on(target, ids, num_new, torch.tensor([temperature]), seed=index)[0, ids.shape[1] :].tolist()
            new = new[: new.index(0)] if 0 in new else new
            num_repeating += bool(lines.repeated(new))
            texts = [tokenizer.decode(new[:end]) for end in range(len(new) + 1)]
            samples.append(prompt + "<|>" + texts[-1])
            agreed.append([
                says(draft, draft_tokenizer, pieces, prompt + before, after[len(before) :])
                for before, after in itertools.pairwise(texts)
            ])  # fmt: skip
        flat = [hit for row in agreed for hit in row]
        speeds = {k: speed_up(agreed, target_ms / draft_ms, k) for k in (2, 3, 4, 6, 8, 12, 16)}
        best = max(speeds, key=lambda k: speeds[k])
        logger.info(
            f"{label}: the draft's greedy text has {sum(flat) / len(flat):.3f} of {len(flat)} target tokens; "
            f"{best} candidates a round would give {speeds[best]:.2f}x"
        )
        logger.info(f"{label}: {num_repeating} of {len(samples)} texts have a line three times")
        for sample in samples[3:8:4]:
            logger.info(f"---- {label}\n{sample}")
