"""Every way to call uag gives plain decoding's ids: the assistant, `custom_generate=` and `pipeline`."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoModelForCausalLM, pipeline

import uag
from tests.support.calls import TEXTS, pair
from tests.support.trained import trained
from uag.drafting import ASSUMED

NEW = 30
GREEDY: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False}


def test_swapped_tokenizers_are_named_and_change_no_output() -> None:
    small_head, large_head = trained("demo-target"), trained("demo-draft")
    for role, (target, tokenizer), (draft, draft_tokenizer) in (
        ("target", small_head, large_head),
        ("draft", large_head, small_head),
    ):
        inputs = tokenizer("def f(x):\n", return_tensors="pt")
        expected = target.generate(**inputs, max_new_tokens=8, do_sample=False).tolist()
        swapped = uag.Assistant(draft, tokenizer, draft_tokenizer)
        with pytest.warns(UserWarning, match=f"The {role}'s tokenizer has 3,072 entries and the {role}'s head 1,536"):
            assert swapped.generate(target, **inputs, max_new_tokens=8, do_sample=False).tolist() == expected


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
