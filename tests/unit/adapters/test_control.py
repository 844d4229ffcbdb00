"""Control tokens, and the corresponding tokens of another tokenizer."""

from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import AddedToken

from tests.support.tokenizers import byte_level, byte_level_llama3, llama, small_tokenizer
from uag.adapters import TokenizerAdapter, from_tokenizer, map_controls


def marked(tokenizer: Any, *names: str, **roles: str) -> Any:
    """Add markers and set roles: `bos_token`, `eos_token`, `pad_token`."""
    tokenizer.add_special_tokens(roles)
    tokenizer.add_tokens([AddedToken(name, special=True) for name in names])
    return tokenizer


TURNS = "<start_of_turn>", "<end_of_turn>"
BUILDERS: dict[str, Callable[[], Any]] = {
    "byte level": lambda: small_tokenizer("byte_level"),  # with ChatML's markers
    "bytes": lambda: small_tokenizer("byt5"),
    "llama 2": lambda: small_tokenizer("llama"),
    "llama 3": byte_level_llama3,
    "padded": lambda: marked(llama(), pad_token="[PAD]"),
    # SmolLM2's roles: its BOS opens turns; Qwen2.5's with the BOS that some conversions set.
    "smollm": lambda: marked(byte_level(), bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>"),
    "qwen": lambda: marked(byte_level(), eos_token="<|im_end|>", pad_token="<|endoftext|>"),
    "gemma": lambda: marked(llama(), *TURNS, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"),
    "gemma's turns": lambda: marked(byte_level(), *TURNS),
    "phi": lambda: marked(byte_level(), "<|user|>", "<|assistant|>"),
    "phi with ends": lambda: marked(byte_level(), "<|user|>", "<|assistant|>", "<|end|>"),
    "mistral": lambda: marked(llama(), "[INST]", "[/INST]"),
}


def spelled(source: TokenizerAdapter, destination: TokenizerAdapter, content: str) -> str:
    """Return what a control token maps to: the names of control tokens in braces, and text as it is."""
    ids = {text: token_id for token_id, text in source.controls.content.items()}
    names, texts = destination.controls.content, destination.token_bytes
    mapped = map_controls(source, destination)[ids[content]]
    return "".join(f"{{{names[i]}}}" if i in names else (texts[i] or b"").decode() for i in mapped)


@pytest.mark.parametrize(
    ("source", "destination", "content", "expected"),
    [
        # roles map to roles, padding and an absent BOS to nothing
        ("byte level", "llama 2", "<|endoftext|>", "{</s>}"),
        ("llama 2", "byte level", "</s>", "{<|endoftext|>}"),
        ("llama 2", "byte level", "<s>", "{<|endoftext|>}"),
        ("llama 2", "byte level", "<unk>", ""),
        ("padded", "bytes", "[PAD]", ""),
        ("padded", "bytes", "<s>", ""),
        ("padded", "bytes", "</s>", "{</s>}"),
        # a marker of the same name, or of the same meaning, takes precedence over roles
        *((*pair, name, f"{{{name}}}") for name in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
          for pair in (("smollm", "qwen"), ("qwen", "smollm"))),
        ("smollm", "gemma", "<|im_start|>", "{<start_of_turn>}"),
        ("qwen", "gemma", "<|im_end|>", "{<end_of_turn>}"),
        ("qwen", "gemma", "<|endoftext|>", "{<eos>}"),
        ("gemma", "qwen", "<eos>", "{<|endoftext|>}"),
        ("gemma", "qwen", "<end_of_turn>", "{<|im_end|>}"),
        # a begin of text opens no turn: with SmolLM2's BOS, a Gemma chat would begin with two openings
        ("gemma", "smollm", "<bos>", ""),
        ("gemma", "qwen", "<bos>", "{<|endoftext|>}"),
        ("smollm", "llama 2", "<|im_start|>", "<|im_start|>"),
        # an end of text ends turns if no other token does
        ("llama 2", "qwen", "</s>", "{<|im_end|>}"),
        ("qwen", "llama 2", "<|im_end|>", "{</s>}"),
        # Mistral's markers become whole headers
        ("mistral", "qwen", "[INST]", "{<|im_start|>}user\n"),
        ("mistral", "qwen", "[/INST]", "{<|im_end|>}\n{<|im_start|>}assistant\n"),
        ("mistral", "gemma", "[/INST]", "{<end_of_turn>}\n{<start_of_turn>}model\n"),
        ("mistral", "phi", "[/INST]", "{<|im_end|>}\n{<|assistant|>}\n"),
        ("mistral", "llama 3", "[INST]", "{<|im_start|>}user{<|end_header_id|>}\n"),
        # turn markers map to turn markers
        ("gemma's turns", "phi with ends", "<end_of_turn>", "{<|im_end|>}"),
        ("llama 3", "byte level", "<|start_header_id|>", "{<|im_start|>}"),
        ("llama 3", "byte level", "<|end_header_id|>", ""),
        ("gemma's turns", "byte level", "<start_of_turn>", "{<|im_start|>}"),
        ("gemma's turns", "byte level", "<end_of_turn>", "{<|im_end|>}"),
        ("phi with ends", "byte level", "<|end|>", "{<|im_end|>}"),
        ("phi with ends", "byte level", "<|assistant|>", "{<|im_start|>}assistant"),
    ],
)  # fmt: skip
def test_a_control_token_keeps_its_meaning(source: str, destination: str, content: str, expected: str) -> None:
    assert spelled(from_tokenizer(BUILDERS[source]()), from_tokenizer(BUILDERS[destination]()), content) == expected


def test_a_control_token_need_not_be_flagged_as_special() -> None:
    adapter = from_tokenizer(byte_level(added=("<|0.02|>", "<tool_call>", "    ")))
    assert "<|0.02|>" in adapter.controls.content.values()
    assert not {"<tool_call>", "    "} & set(adapter.controls.content.values())
