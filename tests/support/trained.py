"""The trained pairs: three tiny story models with three tokenizers, and the bundled demo pair."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.conftest import find_shared
from tests.support.calls import left_padded
from uag.bench import heldout_prompts
from uag.loading import Pair, load_pair

_STORIES = ("stories-tok361", "stories260K", "stories-tok105")
STORY_PAIRS = tuple(zip(_STORIES, (*_STORIES[1:], _STORIES[0]), strict=True))
PAIRS = (*STORY_PAIRS, ("demo-target", "demo-draft"))

_STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the sun with her red ball. "
    'One day, her mom said, "Lily, we must go to the park now." Lily was very happy. At the park she saw a big dog '
    "and a small bird. The dog wanted to eat the bird, but Lily said no. The bird was sad and flew into a tall tree. "
    "Lily asked her mom for help. They found a long stick and put some bread on it. The bird came down and ate it all. "
    "Then they went home and had a nice dinner. Tom and his friend Ben were there too. They had a toy car that went "
    "very fast. Ben pushed the car and it went under the bed. They looked and looked, but they could not see it. "
)


@cache
def trained(name: str) -> tuple[Any, Any]:
    """Load a model in float32 and its tokenizer; skip the test if the shared data is absent."""
    if name == "demo-target":
        return demo().target, demo().target_tokenizer
    if name == "demo-draft":
        return demo().draft, demo().draft_tokenizer
    shared = find_shared()
    if shared is None or not (shared / "models" / name).is_dir():
        pytest.skip(f"no shared model {name}: set UAG_SHARED")
    folder = shared / "models" / name
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)


@cache
def demo() -> Pair:
    return load_pair(dtype="float32", device="cpu")


@cache
def small() -> Pair:
    """Return the demo pair's draft, of two layers, as both models."""
    return replace(demo(), target=demo().draft, target_tokenizer=demo().draft_tokenizer)


@cache
def _ids(name: str) -> list[int]:
    text = "\n".join(prompt.text for prompt in heldout_prompts()) if name.startswith("demo-") else _STORY
    ids: list[int] = trained(name)[1](text, add_special_tokens=False)["input_ids"]
    return ids


def prompt(name: str, length: int, start: int = 0) -> list[int]:
    """Return `length` ids of text like the training data, from token `start` on; story prompts begin with BOS."""
    ids, model = _ids(name), trained(name)[0]
    start %= max(len(ids) - length, 1)
    if name.startswith("demo-"):
        return ids[start : start + length]
    return [model.config.bos_token_id, *ids[start : start + length - 1]]


def prompts(name: str, lengths: list[int]) -> dict[str, torch.Tensor]:
    return left_padded([prompt(name, length, 37 * row) for row, length in enumerate(lengths)])
