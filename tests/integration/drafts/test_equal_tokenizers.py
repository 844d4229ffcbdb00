"""Draft and target with the same tokenizer: shared ids, padded heads, detection of equal and of swapped tokenizers."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import uag
from tests.support.calls import GREEDY, batch, pair
from tests.support.models import tiny_model
from tests.support.tokenizers import small_tokenizer
from tests.support.trained import trained
from uag.drafting import ASSUMED
from uag.errors import PairError


@cache
def padded_pair(target_size: int, draft_size: int) -> tuple[Any, Any]:
    """Return two models with a tokenizer of 600 entries; the draft is the target with a smaller or larger head."""
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "eos_id": 1}
    target, draft = tiny_model("gpt2", target_size, seed=4, **sizes), tiny_model("gpt2", draft_size, seed=6, **sizes)
    smaller = min(target_size, draft_size)
    with torch.no_grad():
        weights = target.state_dict()
        for name, value in draft.state_dict().items():
            source = weights[name]
            value[:smaller] = source[:smaller] if value.shape[0] != source.shape[0] else source[: value.shape[0]]
    return target, draft


@pytest.mark.parametrize(
    ("target_size", "draft_size", "tokenizers"),
    [(610, 602, "both"), (602, 610, "both"), (610, 610, "both"), (610, 610, "target"), (610, 610, "none")],
)
def test_equal_tokenizers_and_padded_heads(installed: None, target_size: int, draft_size: int, tokenizers: str) -> None:
    tokenizer = small_tokenizer("byte_level")
    assert len(tokenizer) == 600
    target, draft = padded_pair(target_size, draft_size)
    given = {
        "both": {"tokenizer": tokenizer, "assistant_tokenizer": copy.deepcopy(tokenizer)},
        "target": {"tokenizer": tokenizer},
        "none": {},
    }[tokenizers]
    for num_rows in (1, 3):
        inputs = batch(tokenizer, num_rows)
        expected = target.generate(**inputs, **GREEDY).tolist()
        draft.generation_config.num_assistant_tokens_schedule = "constant"
        draft.generation_config.num_assistant_tokens = 4
        assert target.generate(**inputs, **GREEDY, assistant_model=draft, **given).tolist() == expected
        stats = uag.last_stats(target)
        assert stats.strategy.startswith("shared-vocabulary")
        assert (ASSUMED in stats.fallbacks) == (tokenizers != "both")
        assert stats.num_accepted_tokens > 0


def test_heads_of_different_sizes_are_refused_without_tokenizers() -> None:
    target, draft = (tiny_model("gpt2", size, n_embd=32, n_layer=1, n_head=4) for size in (300, 296))
    message = "300 entries for the target, 296 for the draft.* tokenizer and draft_tokenizer cannot be found. Pass"
    with pytest.raises(PairError, match=message):
        uag.Assistant(draft).generate(target, torch.ones((1, 3), dtype=torch.long), max_new_tokens=2)


@pytest.mark.parametrize("are_equal", [False, True])
def test_tokenizers_are_found_where_the_models_came_from(tmp_path: Any, installed: None, are_equal: bool) -> None:
    """With equal sizes and special ids, `pipeline` passes no assistant_tokenizer, and neither may the caller."""
    target, tokenizer, draft, draft_tokenizer = pair("gpt2")
    if are_equal:
        draft, draft_tokenizer = target, tokenizer
    for folder, model, its_tokenizer in (("target", target, tokenizer), ("draft", draft, draft_tokenizer)):
        model.save_pretrained(tmp_path / folder)
        its_tokenizer.save_pretrained(tmp_path / folder)
    loaded, loaded_draft = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("target", "draft"))
    inputs = batch(tokenizer)
    expected = target.generate(**inputs, **GREEDY).tolist()
    assert loaded.generate(**inputs, **GREEDY, assistant_model=loaded_draft).tolist() == expected
    stats = uag.last_stats(loaded)
    assert stats.strategy.startswith("shared-vocabulary" if are_equal else "cross-tokenizer")
    assert stats.fallbacks == []


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
