"""`pipeline` with an assistant model writes what it writes without one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from transformers import (
    AutoModelForCausalLM,
    pipeline,
)

import uag
from tests.support.calls import (
    TEXTS,
    pair,
)
from tests.support.models import tiny_draft
from uag.drafting import ASSUMED

NEW = 30
GREEDY: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False}


@pytest.mark.parametrize("are_loaded", [False, True])
def test_pipeline(tmp_path: Any, installed: None, are_loaded: bool) -> None:
    target, tokenizer, draft, draft_tokenizer = pair("gpt2")
    if are_loaded:
        for folder, model, its_tokenizer in (("target", target, tokenizer), ("draft", draft, draft_tokenizer)):
            model.save_pretrained(tmp_path / folder)
            its_tokenizer.save_pretrained(tmp_path / folder)
        target, draft = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("target", "draft"))
    plain = pipeline("text-generation", model=target, tokenizer=tokenizer)
    expected = plain(TEXTS[0], return_tensors=True, **GREEDY)
    assisted = pipeline(
        "text-generation", model=target, tokenizer=tokenizer, assistant_model=draft, assistant_tokenizer=draft_tokenizer
    )
    assert assisted.assistant_tokenizer is None  # dropped by transformers: sizes and special ids agree
    assert assisted(TEXTS[0], return_tensors=True, **GREEDY) == expected
    stats = uag.last_stats(target)
    assert stats.strategy.startswith("cross-tokenizer" if are_loaded else "shared-vocabulary")
    assert (ASSUMED in stats.fallbacks) == (not are_loaded)


def test_a_pipeline_of_batches() -> None:
    target, tokenizer, _, _ = pair()
    draft, draft_tokenizer = tiny_draft("llama")
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.eos_token, "left"
    texts = ["The quick brown fox", "Once", "def add(first, second):\n    return", "She said"]
    plain = pipeline("text-generation", model=target, tokenizer=tokenizer, batch_size=3)
    expected = plain(texts, **GREEDY)
    uag.install()
    try:
        assisted = pipeline(
            "text-generation", model=target, tokenizer=tokenizer, batch_size=3,
            assistant_model=draft, assistant_tokenizer=draft_tokenizer,
        )  # fmt: skip
        assert assisted(texts, **GREEDY) == expected
        assert uag.last_stats(target).strategy == "cross-tokenizer"
        assert uag.last_stats(target).batch_size == 1  # the last batch: one text was left
    finally:
        uag.uninstall()
