"""Control tokens, and the corresponding tokens of another tokenizer."""

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
    """An adapter with these markers, some of which have roles: `bos_token`, `eos_token`, `pad_token`."""
    tokenizer = with_markers(*names)
    for role, name in roles.items():
        setattr(tokenizer, role, name)
    return from_tokenizer(tokenizer)


def smollm() -> TokenizerAdapter:
    """SmolLM2's roles: its BOS opens turns."""
    return with_roles(bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>")


def qwen() -> TokenizerAdapter:
    """Qwen2.5's roles, with the BOS that some conversions set."""
    return with_roles(bos_token="<|endoftext|>", eos_token="<|im_end|>", pad_token="<|endoftext|>")


def gemma() -> TokenizerAdapter:
    tokenizer = llama()
    tokenizer.add_special_tokens({"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"})
    tokenizer.add_tokens([AddedToken(name, special=True) for name in ("<start_of_turn>", "<end_of_turn>")])
    return from_tokenizer(tokenizer)


@pytest.mark.parametrize("name", ["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
@pytest.mark.parametrize("is_back", [False, True])
def test_a_marker_of_the_same_name_takes_precedence_over_roles(name: str, is_back: bool) -> None:
    there, back = (smollm(), qwen()) if is_back else (qwen(), smollm())
    assert named(back, mapped(there, back, name)) == [name]


def test_a_marker_of_the_same_meaning_takes_precedence_over_roles() -> None:
    assert named(gemma(), mapped(smollm(), gemma(), "<|im_start|>")) == ["<start_of_turn>"]
    assert named(gemma(), mapped(qwen(), gemma(), "<|im_end|>")) == ["<end_of_turn>"]
    assert named(gemma(), mapped(qwen(), gemma(), "<|endoftext|>")) == ["<eos>"]
    assert named(qwen(), mapped(gemma(), qwen(), "<eos>")) == ["<|endoftext|>"]
    assert named(qwen(), mapped(gemma(), qwen(), "<end_of_turn>")) == ["<|im_end|>"]


def test_a_begin_of_text_does_not_open_a_turn() -> None:
    """SmolLM2's BOS opens a turn, so a Gemma chat would begin with two openings."""
    assert mapped(gemma(), smollm(), "<bos>") == ()
    assert named(qwen(), mapped(gemma(), qwen(), "<bos>")) == ["<|endoftext|>"]
    assert smollm().join(mapped(smollm(), from_tokenizer(small_tokenizer("llama")), "<|im_start|>")) is not None
    llama2 = from_tokenizer(small_tokenizer("llama"))
    assert llama2.join(mapped(smollm(), llama2, "<|im_start|>")) == b"<|im_start|>"


def test_an_end_of_text_ends_turns_if_no_other_token_does() -> None:
    llama2 = from_tokenizer(small_tokenizer("llama"))
    assert named(qwen(), mapped(llama2, qwen(), "</s>")) == ["<|im_end|>"]
    assert mapped(qwen(), llama2, "<|im_end|>") == (llama2.controls.eos_id,)


def test_mistrals_markers_become_whole_headers() -> None:
    tokenizer = llama()
    tokenizer.add_tokens([AddedToken(name, special=True) for name in ("[INST]", "[/INST]")])
    mistral = from_tokenizer(tokenizer)

    def spelled(there: TokenizerAdapter, name: str) -> str:
        ids = mapped(mistral, there, name)
        return "".join(there.controls.content.get(i) or (there.token_bytes[i] or b"").decode() for i in ids)

    assert spelled(qwen(), "[INST]") == "<|im_start|>user\n"
    assert spelled(qwen(), "[/INST]") == "<|im_end|>\n<|im_start|>assistant\n"
    assert spelled(gemma(), "[/INST]") == "<end_of_turn>\n<start_of_turn>model\n"
    phi = with_roles("<|user|>", "<|assistant|>")
    assert spelled(phi, "[/INST]") == "<|im_end|>\n<|assistant|>\n"
    assert spelled(from_tokenizer(byte_level_llama3()), "[INST]").endswith("user<|end_header_id|>\n")


def test_turn_markers_map_to_turn_markers() -> None:
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


def test_a_control_token_need_not_be_flagged_as_special() -> None:
    adapter = from_tokenizer(byte_level(added=("<|0.02|>", "<tool_call>", "    ")))
    assert "<|0.02|>" in adapter.controls.content.values()
    assert not {"<tool_call>", "    "} & set(adapter.controls.content.values())
