"""The draft learns: everything that a training needs beside the texts is transformers' `Trainer`."""

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import DataCollatorForSeq2Seq, EarlyStoppingCallback, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from uag.distill.replay import Replay
from uag.distill.rows import NOT_LEARNT
from uag.distill.space import check_space, told_where_full
from uag.distill.texts import Text
from uag.distill.training import Training
from uag.distill.watch import METRIC, AcceptanceWatch, Progress, last_checkpoint, unfinished_checkpoints

_KEPT_CHECKPOINTS = 2
"""The best and the last; a third lies there while it is written."""

Row = dict[str, list[int]]


def train(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Row],
    held_out: tuple[Sequence[Row], Sequence[Text]],
    folder: Path,
    training: Training,
    replay: Replay,
    *,
    device: str | None = None,
    on_progress: Callable[[str, int, int], object] = lambda *_: None,
) -> list[tuple[int, float]]:
    """Train a draft in place, from the last whole checkpoint in `folder` on; it ends as its best evaluation was.

    Args:
        model: the draft, with its adapter where it has one.
        tokenizer: of the draft; pads batches.
        rows: what to learn.
        held_out: rows that only the loss is measured on, and the target's greedy texts that acceptance is.
        folder: for checkpoints.
        training: how.
        replay: drafts with `model`.
        device: "cpu" keeps away from an accelerator that is there.
        on_progress: ("training", steps done, steps in all).

    Returns:
        (step, agreement) at every evaluation of this run.

    Raises:
        OSError: too little space on the disk.
        ImportError: accelerate is not installed.
    """
    _require_accelerate()
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    num_steps = math.ceil(len(rows) / training.batch_size) * training.num_epochs
    size = sum(parameter.numel() for parameter in weights)
    num_all = sum(parameter.numel() for parameter in model.parameters())
    # Weights and two moments in float32, in each checkpoint; and the result.
    check_space(folder, 4 * (3 * (_KEPT_CHECKPOINTS + 1) * size + num_all), "training")
    every = max(1, math.ceil(num_steps / training.num_evaluations))
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "num_train_epochs": training.num_epochs,
        "per_device_train_batch_size": training.batch_size,
        "per_device_eval_batch_size": training.batch_size,
        "learning_rate": training.rate(size),
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.05,
        "train_sampling_strategy": "group_by_length",
        "eval_strategy": "steps",
        "eval_steps": every,
        "save_strategy": "steps",
        "save_steps": every,
        "save_total_limit": _KEPT_CHECKPOINTS,
        "load_best_model_at_end": True,
        "metric_for_best_model": METRIC,
        "greater_is_better": True,
        "restore_callback_states_from_checkpoint": True,
        "logging_steps": every,
        "seed": training.seed,
        "bf16": _takes_bfloat16(device),
        "use_cpu": device == "cpu" or not torch.cuda.is_available(),
        "report_to": "none",
        "disable_tqdm": True,
    }
    watch = AcceptanceWatch(replace(replay, every_token=True), held_out[1])
    callbacks = [watch, Progress(on_progress)]
    if training.patience:
        callbacks.append(EarlyStoppingCallback(early_stopping_patience=training.patience))
    uses_cache = model.config.use_cache  # the trainer switches it off, and the draft would be saved so
    trainer = Trainer(
        model=model,
        args=TrainingArguments(**{**settings, **training.options}),
        train_dataset=list(rows),
        eval_dataset=list(held_out[0]),
        data_collator=DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=NOT_LEARNT),
        callbacks=callbacks,
    )
    trainer.remove_callback(PrinterCallback)
    for path in unfinished_checkpoints(folder):
        shutil.rmtree(path)
    last = last_checkpoint(folder)
    with told_where_full(folder, "all texts and the last whole checkpoint are kept"):
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
    model.config.use_cache = uses_cache
    return watch.history


def _takes_bfloat16(device: str | None) -> bool:
    """Whether mixed precision pays: on a GPU that computes in bfloat16."""
    return device != "cpu" and torch.cuda.is_available() and torch.cuda.is_bf16_supported()


def _require_accelerate() -> None:
    try:
        import accelerate  # noqa: F401
    except ImportError as error:
        raise ImportError(f"training needs accelerate ({error}). Install it: pip install 'uag[distill]'") from error
