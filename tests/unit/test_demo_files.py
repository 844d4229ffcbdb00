"""The bundled demo pair: small files, two exact tokenizers, prompts that fit."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from uag.errors import OptionError
from uag.loading import load_pair

DEMO = Path(str(resources.files("uag"))) / "demo"


def of(name: str, file: str = "config") -> Any:
    return json.loads((DEMO / name / f"{file}.json").read_text())


def test_pair_takes_at_most_20_mb_and_its_target_is_deep() -> None:
    assert sum(path.stat().st_size for path in DEMO.rglob("*") if path.is_file()) <= 20_000_000
    assert of("target")["num_hidden_layers"] >= 8 * of("draft")["num_hidden_layers"]


@pytest.mark.parametrize("name", ["target", "draft"])
def test_model_is_loaded_in_float32_on_every_device_and_agrees_with_its_tokenizer(name: str) -> None:
    assert AutoModelForCausalLM.from_pretrained(DEMO / name, dtype="auto").dtype is torch.float32
    tokenizer, config = AutoTokenizer.from_pretrained(DEMO / name), of(name)
    assert len(tokenizer) == config["vocab_size"]
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == config["eos_token_id"]
    assert config["max_position_embeddings"] >= 8192
    assert not {"do_sample", "temperature", "top_k", "top_p"}.intersection(of(name, "generation_config"))
    assert all(len(tokenizer(" " * width).input_ids) == 1 for width in (4, 8, 12, 16))


def test_prompts_are_many_and_of_the_promised_lengths_and_the_card_names_their_modules() -> None:
    prompts = [json.loads(line) for line in (DEMO / "heldout.jsonl").read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "target")
    lengths = [len(tokenizer(prompt["prompt"]).input_ids) for prompt in prompts]
    assert len(lengths) >= 60
    assert all(20 <= length <= 400 for length in lengths)
    assert sum(length > 150 for length in lengths) >= 3
    assert {frozenset(prompt) for prompt in prompts} == {frozenset({"prompt", "module", "line"})}
    assert not [prompt for prompt in prompts if prompt["prompt"][-1].isspace()]
    card = (DEMO / "README.md").read_text()
    assert not [module for module in {prompt["module"] for prompt in prompts} if f"`{module}`" not in card]


def test_dtypes_may_be_names_or_pytorchs_as_in_from_pretrained() -> None:
    pair = load_pair(dtype=torch.bfloat16)
    assert pair.target.dtype == pair.draft.dtype == load_pair(dtype="bfloat16").target.dtype == torch.bfloat16
    with pytest.raises(OptionError, match=r"dtype is torch\.int8, it must be one of auto, float32"):
        load_pair(dtype=torch.int8)
