"""The draft learns: everything that a training needs beside the texts is transformers' `Trainer`."""

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import DataCollatorForSeq2Seq, EarlyStoppingCallback, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from uag.distill.replay import Replay
from uag.distill.rows import NOT_LEARNT
from uag.distill.space import check_space, told_where_full
from uag.distill.texts import Text
from uag.distill.watch import METRIC, AcceptanceWatch, Progress, last_checkpoint, unfinished_checkpoints
from uag.errors import OptionError

_MOST_RATE, _RATE_AT, _SIZE_AT = 2e-3, 3e-4, 1e8
"""Learning rates: so much at so many weights, less with the root of more; higher learns faster, and can diverge."""

_LORA_RATE = 5e-4

_KEPT_CHECKPOINTS = 2
"""The best and the last; a third lies there while it is written."""

Row = dict[str, list[int]]


@dataclass(frozen=True)
class Training:
    """How the draft learns.

    Attributes:
        num_epochs: times that every text is read.
        learning_rate: None for one that goes by the number of weights.
        batch_size: texts of a step on each device.
        max_length: draft tokens of a text; a longer one loses its beginning.
        learns_prompts: whether the draft learns to write the prompts too.
        lora_rank: leave the weights and train an adapter of this rank beside each matrix (peft); 0 trains all weights.
        num_evaluations: times that acceptance is looked at.
        patience: evaluations without a gain after which training ends; 0 never ends early.
        seed: of the order of texts, and of LoRA's weights.
        options: further `transformers.TrainingArguments`, which go before what is set here.
    """

    num_epochs: float = 3.0
    learning_rate: float | None = None
    batch_size: int = 32
    max_length: int = 1024
    learns_prompts: bool = False
    lora_rank: int = 0
    num_evaluations: int = 10
    patience: int = 3
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = (self.batch_size, self.num_evaluations)
        if min(counts) < 1 or self.max_length < 8 or min(self.lora_rank, self.patience) < 0 or self.num_epochs <= 0:
            raise OptionError(
                "epochs must be more than 0, batch size and evaluations 1 or more, max_length 8 or more, and lora_rank "
                f"and patience 0 or more: {self!r}"
            )

    def rate(self, num_weights: int) -> float:
        """Return the highest learning rate for a draft of so many weights."""
        if self.learning_rate is not None:
            return self.learning_rate
        if self.lora_rank:
            return _LORA_RATE
        return min(_MOST_RATE, _RATE_AT * math.sqrt(_SIZE_AT / max(num_weights, 1)))


def check_trainable(draft: Any, name: str, lora_rank: int) -> None:
    """Refuse a draft that cannot learn.

    Raises:
        OptionError: it is an encoder-decoder, or its weights take no gradients.
    """
    if draft.config.is_encoder_decoder:
        raise OptionError(f"{name!r} is an encoder-decoder: a draft that is distilled must be a causal model")
    is_quantized = getattr(draft, "is_quantized", False) or not all(p.is_floating_point() for p in draft.parameters())
    if is_quantized and not lora_rank:
        raise OptionError(
            f"the weights of {name!r} are quantized and take no gradients: train an adapter beside them (--lora-rank "
            "16), or distill the float model that they were made from and quantize the result"
        )


def with_lora(draft: Any, rank: int) -> Any:
    """Return a draft with a LoRA adapter beside every linear layer but the head (peft).

    Raises:
        ImportError: peft is not installed.
    """
    try:
        import peft
    except ImportError as error:
        raise ImportError(f"LoRA needs peft ({error}). Install it: pip install 'uag[distill]'") from error
    if getattr(draft, "is_quantized", False):
        draft = peft.prepare_model_for_kbit_training(draft)
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    return peft.get_peft_model(draft, config)


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
    check_space(folder, (_KEPT_CHECKPOINTS + 1) * 12 * size, "training")  # weights and two moments, in float32
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
    return watch.history


def _takes_bfloat16(device: str | None) -> bool:
    """Whether mixed precision pays: on a GPU that computes in bfloat16."""
    return device != "cpu" and torch.cuda.is_available() and torch.cuda.is_bf16_supported()


def _require_accelerate() -> None:
    try:
        import accelerate  # noqa: F401
    except ImportError as error:
        raise ImportError(f"training needs accelerate ({error}). Install it: pip install 'uag[distill]'") from error
