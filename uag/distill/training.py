"""How a draft learns: the settings, what cannot learn, and LoRA."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from uag.errors import OptionError

_MOST_RATE, _RATE_AT, _SIZE_AT = 2e-3, 3e-4, 1e8
"""Learning rates: so much at so many weights, less with the root of more; higher learns faster, and can diverge."""

_LORA_RATE = 5e-4


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
