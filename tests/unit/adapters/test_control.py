"""Control tokens, and the corresponding tokens of another tokenizer."""

from functools import cache

import pytest
from tokenizers import AddedToken

from tests.support.tokenizers import byte_level, byte_level_llama3, llama, small_tokenizer
from uag.adapters import TokenizerAdapter, from_tokenizer, map_controls


def mapped(source: TokenizerAdapter, destination: TokenizerAdapter, content: str) -> tuple[int, ...]:
    ids = {text: token_id for token_id, text in source.controls.content.items()}
    return map_controls(source, destination)[ids[content]]


def spelled(source: TokenizerAdapter, destination: TokenizerAdapter, content: str) -> str:
    """The tokens that a control token maps to: the names of control tokens in braces, and text as it is."""
    names, texts = destination.controls.content, destination.token_bytes
    parts = [
        f"{{{names[i]}}}" if i in names else (texts[i] or b"").decode() for i in mapped(source, destination, content)
    ]
    return "".join(parts)


def test_roles_map_to_roles() -> None:
    gpt, llama2 = from_tokenizer(small_tokenizer("byte_level")), from_tokenizer(small_tokenizer("llama"))
    assert mapped(gpt, llama2, "<|endoftext|>") == (llama2.controls.eos_id,)
    assert mapped(llama2, gpt, "</s>") == (gpt.controls.eos_id,)
    assert mapped(llama2, gpt, "<s>") == (gpt.controls.bos_id,)
    assert mapped(llama2, gpt, "<unk>") == ()


def test_padding_and_an_absent_bos_map_to_nothing() -> None:
    padded = llama()
    padded.add_special_tokens({"pad_token": "[PAD]"})
    source, without = from_tokenizer(padded), from_tokenizer(small_tokenizer("byt5"))
    assert mapped(source, without, "[PAD]") == ()
    assert mapped(source, without, "<s>") == ()
    assert mapped(source, without, "</s>") == (without.controls.eos_id,)


def with_roles(*names: str, **roles: str) -> TokenizerAdapter:
    """An adapter with these markers besides ChatML's, and roles: `bos_token`, `eos_token`, `pad_token`."""
    tokenizer = byte_level(added=tuple(AddedToken(name, special=True) for name in names))
    for role, name in roles.items():
        setattr(tokenizer, role, name)
    return from_tokenizer(tokenizer)


@cache
def smollm() -> TokenizerAdapter:
    """SmolLM2's roles: its BOS opens turns."""
    return with_roles(bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>")


@cache
def qwen() -> TokenizerAdapter:
    """Qwen2.5's roles, with the BOS that some conversions set."""
    return with_roles(bos_token="<|endoftext|>", eos_token="<|im_end|>", pad_token="<|endoftext|>")


@cache
def gemma() -> TokenizerAdapter:
    tokenizer = llama()
    tokenizer.add_special_tokens({"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"})
    tokenizer.add_tokens([AddedToken(name, special=True) for name in ("<start_of_turn>", "<end_of_turn>")])
    return from_tokenizer(tokenizer)


@pytest.mark.parametrize("name", ["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
@pytest.mark.parametrize("is_back", [False, True])
def test_a_marker_of_the_same_name_takes_precedence_over_roles(name: str, is_back: bool) -> None:
    there, back = (smollm(), qwen()) if is_back else (qwen(), smollm())
    assert spelled(there, back, name) == f"{{{name}}}"


def test_a_marker_of_the_same_meaning_takes_precedence_over_roles() -> None:
    assert spelled(smollm(), gemma(), "<|im_start|>") == "{<start_of_turn>}"
    assert spelled(qwen(), gemma(), "<|im_end|>") == "{<end_of_turn>}"
    assert spelled(qwen(), gemma(), "<|endoftext|>") == "{<eos>}"
    assert spelled(gemma(), qwen(), "<eos>") == "{<|endoftext|>}"
    assert spelled(gemma(), qwen(), "<end_of_turn>") == "{<|im_end|>}"


def test_a_begin_of_text_does_not_open_a_turn() -> None:
    """SmolLM2's BOS opens a turn, so a Gemma chat would begin with two openings."""
    assert mapped(gemma(), smollm(), "<bos>") == ()
    assert spelled(gemma(), qwen(), "<bos>") == "{<|endoftext|>}"
    llama2 = from_tokenizer(small_tokenizer("llama"))
    assert llama2.join(mapped(smollm(), llama2, "<|im_start|>")) == b"<|im_start|>"


def test_an_end_of_text_ends_turns_if_no_other_token_does() -> None:
    llama2 = from_tokenizer(small_tokenizer("llama"))
    assert spelled(llama2, qwen(), "</s>") == "{<|im_end|>}"
    assert mapped(qwen(), llama2, "<|im_end|>") == (llama2.controls.eos_id,)


def test_mistrals_markers_become_whole_headers() -> None:
    tokenizer = llama()
    tokenizer.add_tokens([AddedToken(name, special=True) for name in ("[INST]", "[/INST]")])
    mistral, phi = from_tokenizer(tokenizer), with_roles("<|user|>", "<|assistant|>")
    assert spelled(mistral, qwen(), "[INST]") == "{<|im_start|>}user\n"
    assert spelled(mistral, qwen(), "[/INST]") == "{<|im_end|>}\n{<|im_start|>}assistant\n"
    assert spelled(mistral, gemma(), "[/INST]") == "{<end_of_turn>}\n{<start_of_turn>}model\n"
    assert spelled(mistral, phi, "[/INST]") == "{<|im_end|>}\n{<|assistant|>}\n"
    assert spelled(mistral, from_tokenizer(byte_level_llama3()), "[INST]").endswith("user{<|end_header_id|>}\n")


def test_turn_markers_map_to_turn_markers() -> None:
    chatml, llama3 = from_tokenizer(small_tokenizer("byte_level")), from_tokenizer(byte_level_llama3())
    gemma, phi = with_roles("<start_of_turn>", "<end_of_turn>"), with_roles("<|user|>", "<|assistant|>", "<|end|>")
    assert spelled(gemma, phi, "<end_of_turn>") == "{<|im_end|>}"
    assert spelled(llama3, chatml, "<|start_header_id|>") == "{<|im_start|>}"
    assert mapped(llama3, chatml, "<|end_header_id|>") == ()
    assert spelled(gemma, chatml, "<start_of_turn>") == "{<|im_start|>}"
    assert spelled(gemma, chatml, "<end_of_turn>") == "{<|im_end|>}"
    assert spelled(phi, chatml, "<|end|>") == "{<|im_end|>}"
    assert spelled(phi, chatml, "<|assistant|>") == "{<|im_start|>}assistant"


def test_a_control_token_need_not_be_flagged_as_special() -> None:
    adapter = from_tokenizer(byte_level(added=("<|0.02|>", "<tool_call>", "    ")))
    assert "<|0.02|>" in adapter.controls.content.values()
    assert not {"<tool_call>", "    "} & set(adapter.controls.content.values())
