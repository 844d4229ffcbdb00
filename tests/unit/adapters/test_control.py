"""Control tokens and what they become on the other side."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from tokenizers import AddedToken

from tests.support.tokenizers import byte_level, byte_level_llama3, llama, small_tokenizer
from uag.adapters import TokenizerAdapter, from_tokenizer, map_controls


def mapped(source: TokenizerAdapter, destination: TokenizerAdapter, content: str) -> tuple[int, ...]:
    ids = {text: token_id for token_id, text in source.controls.content.items()}
    return map_controls(source, destination)[ids[content]]


def named(adapter: TokenizerAdapter, ids: tuple[int, ...]) -> list[Any]:
    return [adapter.controls.content.get(i, adapter.token_bytes[i]) for i in ids]


def with_markers(*names: str) -> Any:
    return byte_level(added=tuple(AddedToken(name, special=True) for name in names))


def test_every_control_id_of_the_source_is_mapped() -> None:
    source, destination = from_tokenizer(small_tokenizer("byte_level")), from_tokenizer(small_tokenizer("llama"))
    assert set(map_controls(source, destination)) == set(source.controls.control_ids)
    for ids in map_controls(source, destination).values():
        assert all(0 <= token_id < destination.vocab_size for token_id in ids)


def test_roles_come_first() -> None:
    gpt, llama2 = from_tokenizer(small_tokenizer("byte_level")), from_tokenizer(small_tokenizer("llama"))
    assert mapped(gpt, llama2, "<|endoftext|>") == (llama2.controls.eos_id,)
    assert mapped(llama2, gpt, "</s>") == (gpt.controls.eos_id,)
    assert mapped(llama2, gpt, "<s>") == (gpt.controls.bos_id,)
    assert mapped(llama2, gpt, "<unk>") == ()


def test_padding_becomes_nothing_and_so_does_a_bos_that_is_not_there() -> None:
    padded = llama()
    padded.add_special_tokens({"pad_token": "[PAD]"})
    source, without = from_tokenizer(padded), from_tokenizer(small_tokenizer("byt5"))
    assert mapped(source, without, "[PAD]") == ()
    assert mapped(source, without, "<s>") == ()
    assert mapped(source, without, "</s>") == (without.controls.eos_id,)


def test_turn_markers_become_the_others_own() -> None:
    chatml, llama3 = from_tokenizer(small_tokenizer("byte_level")), from_tokenizer(byte_level_llama3())
    gemma = from_tokenizer(with_markers("<start_of_turn>", "<end_of_turn>"))
    phi = from_tokenizer(with_markers("<|user|>", "<|assistant|>", "<|end|>"))
    only_chatml = from_tokenizer(with_markers())
    assert named(phi, mapped(gemma, phi, "<end_of_turn>")) == ["<|im_end|>"]
    assert named(chatml, mapped(llama3, chatml, "<|start_header_id|>")) == ["<|im_start|>"]
    assert mapped(llama3, chatml, "<|end_header_id|>") == ()
    assert named(only_chatml, mapped(gemma, only_chatml, "<start_of_turn>")) == ["<|im_start|>"]
    assert named(only_chatml, mapped(gemma, only_chatml, "<end_of_turn>")) == ["<|im_end|>"]
    assert named(only_chatml, mapped(phi, only_chatml, "<|end|>")) == ["<|im_end|>"]
    start, *role = mapped(phi, only_chatml, "<|assistant|>")
    assert only_chatml.controls.content[start] == "<|im_start|>"
    assert only_chatml.join(role) == b"assistant"


def test_the_same_name_is_kept_and_an_unknown_one_is_spelled() -> None:
    source = from_tokenizer(with_markers("<|tool|>", "<|odd|>"))
    destination = from_tokenizer(with_markers("<|odd|>"))
    assert named(destination, mapped(source, destination, "<|odd|>")) == ["<|odd|>"]
    assert destination.join(mapped(source, destination, "<|tool|>")) == b"<|tool|>"


def test_a_control_token_need_not_be_flagged_as_special() -> None:
    adapter = from_tokenizer(byte_level(added=("<|0.02|>", "<tool_call>", "    ")))
    assert "<|0.02|>" in adapter.controls.content.values()
    assert not {"<tool_call>", "    "} & set(adapter.controls.content.values())


def test_roles_are_frozen() -> None:
    controls = from_tokenizer(small_tokenizer("llama")).controls
    with pytest.raises(FrozenInstanceError):
        controls.eos_id = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        controls.content[0] = "x"  # type: ignore[index]
