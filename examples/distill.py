"""Distill a draft for your target: the target continues prompts, and the draft learns its texts.

    python examples/distill.py TARGET DRAFT prompts.txt my-draft [--tokens 128] [--temperatures 0 0.7 1] [--epochs 3]

TARGET and DRAFT are hub names or folders of causal language models, whose tokenizers may differ; the draft needs float
weights. prompts.txt has a prompt per line, or JSON lines with "prompt" or "messages": a few thousand like those that
you will send. A tenth of them, at most 32, is held out, and the share of the draft's candidates that the target accepts
after them is printed. my-draft becomes a folder for `from_pretrained`. Needs: pip install accelerate.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, DataCollatorForSeq2Seq, Trainer, TrainingArguments, set_seed

import uag
from uag.adapters import from_tokenizer
from uag.bench import Prompt, is_output, read_prompts, spread
from uag.drafting import RowMaker
from uag.hf import passes
from uag.loading import encode_prompt, load_model, load_tokenizer, pad_left
from uag.projection import TokenizerPair
from uag.proposal import num_equal

Text = tuple[list[int], list[int]]  # target ids of a prompt and of its continuation
NUM_CANDIDATES = 4  # per round, where acceptance is measured
MAX_LENGTH = 1024  # draft tokens of a training row
IGNORED = -100  # the label of tokens without a loss: those of the prompt


def main() -> None:
    """Distill, and print the acceptance before and after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("target", "draft", "prompts", "output"):
        parser.add_argument(name)
    parser.add_argument("--tokens", type=int, default=128, help="new tokens of a text")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7, 1.0], help="0 is greedy")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--batch-size", type=int, default=32, help="texts written and learned at once")
    args = parser.parse_args()
    prompts = read_prompts(args.prompts)
    held_out = spread(prompts, max(1, min(32, len(prompts) // 10)))
    learned = [prompt for prompt in prompts if prompt not in held_out]
    options = {"num_train_epochs": args.epochs, "per_device_train_batch_size": args.batch_size}
    written = args.temperatures, args.tokens, args.batch_size
    before, after = distill(args.target, args.draft, args.output, learned, held_out, *written, options)
    print(f"accepted after {len(held_out)} held-out prompts: {before:.1%} of the candidates before, {after:.1%} after")


def distill(
    target_name: str,
    draft_name: str,
    output: Path | str,
    prompts: Sequence[Prompt],
    held_out: Sequence[Prompt],
    temperatures: Sequence[float] = (0.0, 0.7, 1.0),
    max_new_tokens: int = 128,
    batch_size: int = 32,
    training: dict[str, Any] | None = None,
) -> tuple[float, float]:
    """Train a draft; return the acceptance after the prompts `held_out` before and after.

    `training` are options of `TrainingArguments`.
    """
    set_seed(0)
    target, tokenizer = load_model(target_name), load_tokenizer(target_name)
    draft, draft_tokenizer = load_model(draft_name, dtype="float32"), load_tokenizer(draft_name)
    before = acceptance(target, tokenizer, draft, draft_tokenizer, held_out, max_new_tokens)
    encoded = sorted((encode_prompt(tokenizer, prompt.content) for prompt in prompts), key=len)
    texts = [
        text
        for temperature in temperatures
        for start in range(0, len(encoded), batch_size)
        for text in write(target, encoded[start : start + batch_size], temperature, max_new_tokens)
    ]
    train(draft, draft_tokenizer, encode_rows(texts, draft, draft_tokenizer, tokenizer), output, training or {})
    draft.to(AutoConfig.from_pretrained(draft_name).dtype or torch.float32).save_pretrained(output)
    load_tokenizer(draft_name).save_pretrained(output)  # without the padding token that training may need
    return before, acceptance(target, tokenizer, draft, draft_tokenizer, held_out, max_new_tokens)


def write(target: Any, prompts: Sequence[list[int]], temperature: float, max_new_tokens: int) -> list[Text]:
    """Let the target continue prompts, as one batch."""
    eos_ids = passes.eos_ids(target.generation_config)
    inputs = pad_left(prompts, min(eos_ids, default=0), target.device)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    pad = {"pad_token_id": min(eos_ids, default=0)}
    ids = target.generate(**inputs, **{"do_sample": False, **sampling}, **pad, max_new_tokens=max_new_tokens)
    outputs = ids[:, inputs["input_ids"].shape[1] :]
    kept = is_output(outputs, eos_ids)
    return [(prompt, row[keep].tolist()) for prompt, row, keep in zip(prompts, outputs, kept, strict=True)]


def encode_rows(texts: Sequence[Text], draft: Any, draft_tokenizer: Any, tokenizer: Any) -> list[dict[str, list[int]]]:
    """Return the rows to train on: texts in draft ids, as uag encodes them when it drafts."""
    maker = RowMaker(draft, TokenizerPair.of(from_tokenizer(tokenizer), from_tokenizer(draft_tokenizer)))
    rows = []
    for prompt_ids, output_ids in texts:
        ids = maker.make([*prompt_ids, *output_ids]).queued_ids()
        # A token that spans the end of the prompt is learned.
        start = max(num_equal(maker.make(prompt_ids).queued_ids(), ids), 1)
        if len(ids) > start:
            labels = [IGNORED] * start + ids[start:]
            rows.append({"input_ids": ids[-MAX_LENGTH:], "labels": labels[-MAX_LENGTH:]})
    return rows


def train(draft: Any, tokenizer: Any, rows: list[Any], output: Path | str, options: dict[str, Any]) -> None:
    """Train a draft in float32."""
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    defaults = {
        # 3e-4 for a draft of 100 million weights, more for a smaller one
        "learning_rate": min(2e-3, 3e-4 * math.sqrt(1e8 / draft.num_parameters())),
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.05,
        "train_sampling_strategy": "group_by_length",
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": draft.device.type == "cpu",
    }
    use_cache = draft.config.use_cache  # the Trainer disables it, and it would be saved with the draft
    collator = DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=IGNORED)
    arguments = TrainingArguments(output_dir=str(output), **{**defaults, **options})
    Trainer(model=draft, args=arguments, train_dataset=rows, data_collator=collator).train()
    draft.config.use_cache = use_cache
    draft.eval()


def acceptance(
    target: Any, tokenizer: Any, draft: Any, draft_tokenizer: Any, prompts: Sequence[Prompt], max_new_tokens: int
) -> float:
    """Return the share of the draft's candidates that the target accepts when it continues prompts greedily."""
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=NUM_CANDIDATES)
    for prompt in prompts:
        inputs = pad_left([encode_prompt(tokenizer, prompt.content)], 0, target.device)
        assistant.generate(target, **inputs, max_new_tokens=max_new_tokens, do_sample=False)
    return assistant.totals.acceptance_rate


if __name__ == "__main__":
    main()
