"""Prompt files of every supported format are read; errors name the line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.stubs import EOS, stub_pair
from tests.support.tokenizers import byte_level
from uag.bench import Prompt, read_prompts, spread
from uag.errors import LoadingError, OptionError
from uag.loading import encode, encode_prompt

PACKED = gzip.compress(b'{"prompt": "def f(x):"}\n' * 50, mtime=0)
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}]


@pytest.mark.parametrize(
    ("entry", "prompt"),
    [
        ({"question_id": 81, "category": "writing", "turns": ["Compose.", "Rewrite."]}, Prompt("81", "Compose.")),
        ({"task_id": "HumanEval/0", "prompt": "def f():\n", "test": "..."}, Prompt("HumanEval/0", "def f():\n")),
        ({"messages": MESSAGES}, Prompt("1", messages=tuple(MESSAGES))),
        ({"text": "one"}, Prompt("1", "one")),
    ],
)
def test_json_lines_are_read_packed_and_unpacked(tmp_path: Path, entry: dict[str, Any], prompt: Prompt) -> None:
    plain, packed = tmp_path / "p.jsonl", tmp_path / "p.jsonl.gz"
    plain.write_text(json.dumps(entry) + "\n", encoding="utf-8")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_prompts(plain) == read_prompts(packed) == [prompt]
    assert prompt.content in (prompt.text, MESSAGES)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "one"}\n', encoding="utf-8-sig")
    assert read_prompts(file) == [Prompt("1", "one")]


def test_text_file_has_a_prompt_on_each_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes("Été\r\n\n  two \n".encode())
    assert read_prompts(path) == [Prompt("1", "Été"), Prompt("3", "  two ")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.txt", b"\n \n", "has no prompts: write one per line"),
        ("p.txt", b"\xff\xfe\x00", "is not a text file in UTF-8"),
        ("p.jsonl", b'{"prompt": "a"}\n{"prompt"', "line 2 is not JSON"),
        ("p.jsonl", b"[" * 200_000, "line 1 is not JSON"),
        ("p.jsonl", b'{"prompt": ' + b"9" * 5000 + b"}", "line 1 is not JSON"),
        ("p.json", b'[{"prompt": "a"}]', r"is JSON: write JSON lines \(\.jsonl\)"),
        (
            "p.jsonl",
            b'{"prompt": "a"}\n\n[1]\n',
            r"line 3 is not a prompt: expected 'prompt' or 'text' .*, got '\[1\]'",
        ),
        ("p.jsonl", b'{"prompt": " "}', "line 1 is not a prompt"),
        ("p.jsonl", b'{"turns": []}', "line 1 is not a prompt"),
        ("p.jsonl", b'{"turns": "abc"}', "line 1 is not a prompt"),
        ("p.jsonl", b'{"messages": []}', "line 1 is not a prompt"),
        ("p.jsonl", b'{"messages": ["hi"]}', "line 1 is not a prompt"),
    ],
)
def test_a_bad_prompt_file_is_refused_by_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OptionError, match=message):
        read_prompts(tmp_path / name)


@pytest.mark.parametrize("content", [PACKED[:-12], PACKED[:20] + b"\xff" * 9 + PACKED[29:], b"hello"])
def test_a_damaged_archive_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p.jsonl.gz").write_bytes(content)
    with pytest.raises((LoadingError, OptionError), match=r"cannot be read|is not a text file"):
        read_prompts(tmp_path / "p.jsonl.gz")


def test_given_texts_and_conversations_are_named_by_their_numbers() -> None:
    assert read_prompts(["one", MESSAGES]) == [Prompt("1", "one"), Prompt("2", messages=tuple(MESSAGES))]


def test_spread_is_even() -> None:
    prompts = [Prompt(str(index), "x") for index in range(40)]
    assert [prompt.prompt_id for prompt in spread(prompts, 8)] == [str(index) for index in range(0, 40, 5)]
    assert spread(prompts, 0) == spread(prompts, 99) == prompts


def test_prompts_are_padded_on_the_left_and_the_padding_is_masked() -> None:
    pair = stub_pair()
    pair.target_tokenizer.pad_token_id = None  # then EOS pads
    inputs = encode(pair, ["ab", "c"])
    assert inputs["input_ids"].tolist() == [[97, 98], [EOS, 99]]
    assert inputs["attention_mask"].tolist() == [[1, 1], [0, 1]]


def test_a_conversation_is_encoded_by_the_chat_template() -> None:
    tokenizer = byte_level()
    assert encode_prompt(tokenizer, "one two") == tokenizer("one two")["input_ids"]
    with pytest.raises(OptionError, match="has no chat template"):
        encode_prompt(tokenizer, MESSAGES)
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}>"
    expected = tokenizer("[user]hi[assistant]yes?>", add_special_tokens=False)["input_ids"]
    assert encode_prompt(tokenizer, MESSAGES) == expected
    assert encode_prompt(tokenizer, "hi", is_chat=True) == encode_prompt(tokenizer, MESSAGES[:1])
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(OptionError, match="chat template rejects these messages: roles must alternate"):
        encode_prompt(tokenizer, MESSAGES)
