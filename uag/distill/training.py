"""Train the draft with transformers' `Trainer`, on the target's texts as they are encoded during drafting."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

import torch
from transformers import DataCollatorForSeq2Seq, EarlyStoppingCallback, Trainer, TrainingArguments
from transformers.utils import is_accelerate_available

from uag.adapters import from_tokenizer
from uag.distill.writing import Text
from uag.drafting import RowMaker
from uag.errors import OptionError
from uag.hf.devices import accelerator
from uag.projection import TokenizerPair
from uag.proposal import num_equal

Row = dict[str, list[int]]
IGNORED = -100
"""The label of tokens without a loss: those of the prompt."""


def encode_rows(texts: Iterable[Text], draft: Any, draft_tokenizer: Any, tokenizer: Any, max_length: int) -> list[Row]:
    """Return `input_ids` and `labels` of each text; texts with nothing to learn are skipped.

    The texts are in target ids; control tokens of the target become the draft's. Rows of more than `max_length` draft
    tokens are truncated on the left.
    """
    maker = RowMaker(draft, TokenizerPair.of(from_tokenizer(tokenizer), from_tokenizer(draft_tokenizer)))
    rows = []
    for text in texts:
        prompt_ids = maker.make(text.prompt_ids).queued_ids()
        ids = maker.make([*text.prompt_ids, *text.output_ids]).queued_ids()
        # A token that spans the end of the prompt is learned.
        start = max(num_equal(prompt_ids, ids), 1)
        labels = [IGNORED] * start + ids[start:]
        if len(ids) > start:
            rows.append({"input_ids": ids[-max_length:], "labels": labels[-max_length:]})
    return rows


def check_trainable(draft: Any, name: str) -> None:
    """Refuse a draft that cannot be trained.

    Raises:
        OptionError: it is an encoder-decoder, or its weights are quantized.
        ImportError: accelerate is not installed.
    """
    if draft.config.is_encoder_decoder:
        raise OptionError(f"{name!r} is an encoder-decoder: a draft to distill must be a decoder-only model")
    if getattr(draft, "is_quantized", False) or not all(p.is_floating_point() for p in draft.parameters()):
        raise OptionError(
            f"the weights of {name!r} are quantized and cannot be trained: distill the float model that they were made "
            "from, and quantize the result"
        )
    if not is_accelerate_available():
        raise ImportError("training needs the package accelerate: pip install accelerate")


def train(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Row],
    held_out: Sequence[Row],
    folder: str,
    options: Mapping[str, Any],
    patience: int,
    device: str | None,
    saved_as: torch.dtype,
) -> tuple[float, float]:
    """Train a draft in float32, and keep the weights of the best evaluation; checkpoints go to `folder`.

    See `uag.distill.distill` for the other arguments.

    Returns:
        The share of tokens in the rows `held_out` that are the draft's most probable one: before the training, and
        after it, with the weights rounded to `saved_as`.
    """
    if tokenizer.pad_token is None:  # any token works, because padding is masked
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.convert_ids_to_tokens(0)
    size = sum(parameter.numel() for parameter in model.parameters())
    has_gpu = device != "cpu" and accelerator() is not None
    settings: dict[str, Any] = {
        "output_dir": folder,
        "num_train_epochs": 3,
        "per_device_train_batch_size": 32,
        # 3e-4 for a draft of 100 million weights, more for a smaller one
        "learning_rate": min(2e-3, 3e-4 * math.sqrt(1e8 / size)),
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.05,
        "train_sampling_strategy": "group_by_length",
        "eval_strategy": "steps",
        "eval_steps": 0.1,
        "save_strategy": "steps",
        "save_steps": 0.1,
        "logging_steps": 0.1,
        "save_total_limit": 2,  # the best and the last
        "load_best_model_at_end": True,
        "metric_for_best_model": "accuracy",
        "seed": 0,
        "bf16": has_gpu and torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
        "use_cpu": not has_gpu,
        "report_to": "none",
        "disable_tqdm": not sys.stderr.isatty(),
    }
    use_cache = model.config.use_cache  # the Trainer disables it, and it would be saved with the draft
    trainer = Trainer(
        model=model,
        args=TrainingArguments(**{**settings, **options}),
        train_dataset=list(rows),
        eval_dataset=list(held_out),
        data_collator=DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=IGNORED),
        callbacks=[EarlyStoppingCallback(patience)] * bool(patience),
        compute_metrics=_accuracy,
        preprocess_logits_for_metrics=lambda logits, _: logits.argmax(dim=-1),
    )
    with redirect_stdout(sys.stderr):  # the Trainer prints its progress
        before = trainer.evaluate()
        trainer.train()
        model.to(saved_as).float()
        after = trainer.evaluate()
    model.config.use_cache = use_cache
    model.eval()
    return before["eval_accuracy"], after["eval_accuracy"]


def _accuracy(evaluation: Any) -> dict[str, float]:
    """Return the share of labeled tokens that were predicted."""
    predicted, labels = evaluation.predictions[:, :-1], evaluation.label_ids[:, 1:]
    return {"accuracy": float((predicted == labels)[labels != IGNORED].mean())}
