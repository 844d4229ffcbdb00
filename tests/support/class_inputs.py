"""Inputs of every model type that generates text: prompts, or what its encoder reads."""

from collections.abc import Callable
from typing import Any

import torch

from tests.support.calls import left_padded
from tests.support.class_options import PROMPTS


def _drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(11))


def _text(num_rows: int) -> dict[str, Any]:
    return left_padded(PROMPTS[:num_rows])


def _even(num_rows: int) -> torch.Tensor:
    return torch.tensor([[5, 9, 14, 3, 27, 7], [8, 6, 11, 2, 4, 9], [12, 40, 33, 18, 3, 5]][:num_rows])


def _image(num_rows: int) -> dict[str, Any]:
    return {"pixel_values": _drawn(num_rows, 3, 16, 16)}


def _boxes(num_rows: int) -> dict[str, Any]:
    ids = _even(num_rows)
    return {"input_ids": ids, "bbox": torch.rand(*ids.shape, 4, generator=torch.Generator().manual_seed(1))}


def _idefics(num_rows: int) -> dict[str, Any]:
    ids = _even(num_rows)
    mask = torch.ones(num_rows, ids.shape[1], 1, dtype=torch.long)
    return {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "image_attention_mask": mask,
        "pixel_values": _drawn(num_rows, 1, 3, 16, 16),
    }  # fmt: skip


INPUTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "canary": lambda rows: {"input_features": _drawn(rows, 40, 8)},
    "cohere_asr": lambda rows: {"input_features": _drawn(rows, 40, 8)},
    "idefics": _idefics,
    "moonshine": lambda rows: {"input_values": _drawn(rows, 4000)},
    "pix2struct": lambda rows: {"flattened_patches": _drawn(rows, 6, 50).abs()},
    "speech-encoder-decoder": lambda rows: {"input_values": _drawn(rows, 200)},
    "speech_to_text": lambda rows: {"input_features": _drawn(rows, 40, 8)},
    "speecht5": lambda rows: {"input_values": _drawn(rows, 200)},
    "udop": _boxes,
    "vision-encoder-decoder": _image,
    "whisper": lambda rows: {"input_features": _drawn(rows, 8, 80)},
}
"""Functions that return a model type's inputs for a number of rows; other types read text."""


def inputs_of(model_type: str, num_rows: int) -> dict[str, Any]:
    """Return left-padded prompts of different lengths, or the inputs of an encoder that does not read text."""
    return INPUTS.get(model_type, _text)(num_rows)
