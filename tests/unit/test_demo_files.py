"""The bundled demo pair: small files, two exact tokenizers, prompts that fit."""

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

DEMO = Path(str(resources.files("uag"))) / "demo"
NAMES = ("target", "draft")


@pytest.fixture(scope="module")
def tokenizers() -> Mapping[str, Any]:
    return {name: AutoTokenizer.from_pretrained(DEMO / name) for name in NAMES}


def config(name: str) -> Any:
    return json.loads((DEMO / name / "config.json").read_text())


def prompts() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DEMO / "heldout.jsonl").read_text().splitlines()]


def test_the_pair_takes_at_most_20_mb() -> None:
    assert sum(path.stat().st_size for path in DEMO.rglob("*") if path.is_file()) <= 20_000_000


def test_the_target_is_deep_and_the_draft_is_shallow() -> None:
    assert config("target")["num_hidden_layers"] >= 8 * config("draft")["num_hidden_layers"]


@pytest.mark.parametrize("name", NAMES)
def test_the_context_holds_8192_tokens(name: str) -> None:
    assert config(name)["max_position_embeddings"] >= 8192


@pytest.mark.parametrize("name", NAMES)
def test_generation_defaults_do_not_sample(name: str) -> None:
    defaults = json.loads((DEMO / name / "generation_config.json").read_text())
    assert not {"do_sample", "temperature", "top_k", "top_p"}.intersection(defaults)


@pytest.mark.parametrize("name", NAMES)
def test_vocabulary_end_and_padding_agree_with_the_model(name: str, tokenizers: Mapping[str, Any]) -> None:
    tokenizer = tokenizers[name]
    assert len(tokenizer) == config(name)["vocab_size"]
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == config(name)["eos_token_id"]


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_text_comes_back(text: str, tokenizers: Mapping[str, Any]) -> None:
    for name in NAMES:
        assert tokenizers[name].decode(tokenizers[name](text).input_ids) == text


def test_an_indentation_is_one_token_in_both(tokenizers: Mapping[str, Any]) -> None:
    for name in NAMES:
        for width in (4, 8, 12, 16):
            assert len(tokenizers[name](" " * width).input_ids) == 1


def test_the_prompts_are_many_and_of_the_promised_lengths(tokenizers: Mapping[str, Any]) -> None:
    lengths = [len(tokenizers["target"](prompt["prompt"]).input_ids) for prompt in prompts()]
    assert len(lengths) >= 60
    assert all(20 <= length <= 400 for length in lengths)
    assert sum(length > 150 for length in lengths) >= 3
    assert {frozenset(prompt) for prompt in prompts()} == {frozenset({"prompt", "module", "line"})}


def test_the_prompts_end_at_line_ends_without_a_newline() -> None:
    assert not [prompt for prompt in prompts() if prompt["prompt"][-1].isspace()]


def test_the_model_card_names_every_held_out_module() -> None:
    card = (DEMO / "README.md").read_text()
    assert not [module for module in {prompt["module"] for prompt in prompts()} if f"`{module}`" not in card]
