"""Prompts of any kind: chat markers, truncated words, very short prompts, embeddings, token types, chunks, masks."""

import copy
from functools import cache
from typing import Any

import pytest
import torch

import uag
from tests.support.calls import (
    EOS_IDS,
    GREEDY,
    MODES,
    PROMPTS,
    ROWS,
    SAMPLED,
    assert_drafted,
    assistant_of,
    batch,
    compare,
    left_padded,
    oracle,
    pair,
)
from tests.support.grids import covering
from tests.support.models import tiny_draft, tiny_model
from tests.support.tokenizers import small_tokenizer

CHAT = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("draft_name", ["byte_level_digits", "byte_level_llama3", "llama", "wordpiece", "byt5"])
def test_chat_markers(draft_name: str) -> None:
    """They become the draft's own markers, or text if it has none, and the output is plain decoding's."""
    target, tokenizer, _, _ = pair("gpt2")
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    draft_tokenizer = small_tokenizer(draft_name)
    draft = tiny_model("llama", len(draft_tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
                       num_key_value_heads=4, intermediate_size=32)  # fmt: skip
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3)
    given = GREEDY | {"input_ids": torch.tensor([tokenizer(CHAT)["input_ids"]])}
    fed: list[int] = []
    handle = draft.register_forward_pre_hook(
        lambda module, args, kwargs: fed.extend(kwargs["input_ids"][0].tolist()), with_kwargs=True
    )
    compare(target, given, assistant)
    handle.remove()
    text = draft_tokenizer.decode(fed)
    if draft_name == "byte_level_digits":
        marker = draft_tokenizer.convert_tokens_to_ids("<|im_start|>")
        assert fed.count(marker) == 2
    elif draft_name == "llama":
        assert text.count("<|im_start|>") == 2  # as plain text
    assert "ello" in text


ENDS = ("The quick bro", "naïve caf", "日本語のテキスト", "x = 12", " ", "\n\n", "a", "  def")


@cache
def other_assistant(name: str) -> uag.Assistant:
    """Return an assistant for the target of `pair("gpt2")`, whose draft is for another architecture."""
    return uag.Assistant(*tiny_draft(name), pair("gpt2")[1], num_candidate_tokens=3)


@covering("prompt, cut", ENDS, (0, 1, 2), strength=1)
def test_prompts_that_end_anywhere(prompt: str, cut: int) -> None:
    """In the middle of a word, of a run of spaces or of a UTF-8 character."""
    target, tokenizer, _, _ = pair("gpt2")
    ids = tokenizer(prompt)["input_ids"]
    ids = ids[: max(1, len(ids) - cut)]
    inputs = torch.tensor([ids])
    for assistant in (other_assistant("gpt2"), assistant_of("gpt2")):
        assert compare(target, GREEDY | {"input_ids": inputs}, assistant).num_candidate_tokens > 0


def test_prompts_of_nearly_nothing_and_in_chunks() -> None:
    target, tokenizer, _, _ = pair("gpt2")
    for num_rows in (1, 3):
        compare(target, batch(tokenizer, num_rows) | GREEDY | {"prefill_chunk_size": 5}, assistant_of("gpt2"))
    for name in ("gpt2", "qwen2", "gpt_neox"):
        assistant = other_assistant(name)
        for inputs in (torch.tensor([[tokenizer.eos_token_id]]), torch.tensor([[5]]), None):
            options = GREEDY | ({"bos_token_id": tokenizer.bos_token_id} if inputs is None else {})
            assert compare(target, options | {"inputs": inputs}, assistant).num_candidate_tokens > 0


@pytest.mark.parametrize("in_lockstep", [False, True])
@ROWS
def test_embeddings_as_prompt(num_rows: int, in_lockstep: bool) -> None:
    target, tokenizer = pair("gpt2")[:2]
    inputs = batch(tokenizer, num_rows)
    given = {
        "inputs_embeds": target.get_input_embeddings()(inputs["input_ids"]).detach(),
        "attention_mask": inputs["attention_mask"],
    }
    assert_drafted(compare(target, given | GREEDY | {"return_dict_in_generate": in_lockstep}))
    compare(target, given | GREEDY, assistant_of("gpt2"))


def test_embeddings_up_to_the_models_last_position() -> None:
    """The ids alone do not show the cache's length; candidates after an EOS must not exceed the last position."""
    tokenizer = small_tokenizer("byte_level")
    target = tiny_model("gpt2", len(tokenizer), n_embd=32, n_layer=2, n_head=4, n_positions=32)
    ids = batch(tokenizer)["input_ids"][:, -12:]
    given = {"inputs_embeds": target.get_input_embeddings()(ids).detach()}
    num_left = 33 - ids.shape[1]  # the last token written needs no position
    long = target.generate(**given, max_new_tokens=num_left, do_sample=False)[0].tolist()
    eos_id = long[-3]
    assert eos_id not in long[:-3]
    options = GREEDY | {"max_new_tokens": 90, "eos_token_id": eos_id}
    assistant = oracle(target, tokenizer, torch.tensor([long + [7] * 9]), 0, spoil=0)
    stats = compare(target, given | options, assistant)
    assert stats.num_output_tokens == len(long) - 2
    assert stats.num_accepted_tokens > 0


@covering("name, num_rows, options", ("gpt2", "openai-gpt"), (1, 3), (GREEDY, SAMPLED))
def test_token_types(name: str, num_rows: int, options: dict[str, Any]) -> None:
    """An embedding per type is added; each new token has the type of the previous one. OpenAI GPT keeps no cache."""
    tokenizer = pair("gpt2")[1]
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "eos_id": EOS_IDS[3]}
    target = pair("gpt2", eos=True)[0] if name == "gpt2" else tiny_model(name, len(tokenizer), **sizes)
    inputs = batch(tokenizer, num_rows)
    types = (torch.arange(inputs["input_ids"].shape[1]) * 5 % 7).repeat(num_rows, 1)
    expected = target.generate(**inputs, **GREEDY)
    assert expected.tolist() != target.generate(**inputs, **GREEDY, token_type_ids=types).tolist()
    assert_drafted(compare(target, inputs | options | {"token_type_ids": types}))


GAPS = {
    "right and left": [". 5 9 14 3 27 .", "8 6 . . . . .", "12 40 33 18 21 9 4"],
    "holes": ["5 9 . 3 27", "8 . . . 5", ". 12 40 33 18"],
}
"""Rows of ids, with dots where the mask is zero."""


@covering("gaps, name, num_rows, options", GAPS, ("llama", "mistral"), (1, 3), (GREEDY, SAMPLED))
def test_masks_with_gaps(gaps: str, name: str, num_rows: int, options: dict[str, Any]) -> None:
    rows = [row.split() for row in GAPS[gaps][:num_rows]]
    ids = torch.tensor([[0 if word == "." else int(word) for word in row] for row in rows])
    mask = torch.tensor([[int(word != ".") for word in row] for row in rows])
    given = options | {"input_ids": ids, "attention_mask": mask, "eos_token_id": None}
    stats = compare(pair(name, eos=True)[0], given, assistant_of(name, eos=True))
    assert stats.num_candidate_tokens > 0
    if num_rows > 1:
        assert any("gaps" in reason for reason in stats.fallbacks)


@covering("kind, num_rows, options", (torch.int32, torch.bool, torch.float32), (1, 3), (GREEDY, SAMPLED), strength=1)
def test_ids_and_masks_of_other_types(kind: torch.dtype, num_rows: int, options: dict[str, Any]) -> None:
    inputs = left_padded(PROMPTS[:num_rows])
    ids = inputs["input_ids"].to(kind if kind == torch.int32 else torch.long)
    given = options | {"input_ids": ids, "attention_mask": inputs["attention_mask"].to(kind)}
    assert not compare(pair()[0], given, assistant_of()).fallbacks


@MODES
def test_one_row_of_positions_for_the_whole_batch(options: dict[str, Any]) -> None:
    target, tokenizer = pair()[:2]
    given = options | batch(tokenizer, 3)
    given["position_ids"] = torch.arange(given["input_ids"].shape[1])[None] + 3
    stats = compare(target, given, assistant_of())
    assert stats.fallbacks == ["rows advance in lockstep: position_ids has one row for the whole batch"]
    assert_drafted(stats)
