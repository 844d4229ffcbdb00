"""Prompts in every form that a file may have."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.support.tokenizers import byte_level
from uag.distill.prompts import encode_prompts, hold_out, read_prompts
from uag.errors import OptionError


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_text_file_has_a_prompt_on_each_line(tmp_path: Path) -> None:
    assert read_prompts(write(tmp_path / "p.txt", "one\n\n  two\nÉté\n")) == ["one", "  two", "Été"]


def test_a_line_of_dashes_makes_blocks(tmp_path: Path) -> None:
    path = write(tmp_path / "p.txt", "def f():\n    x = 1\n\n    return\n---\n---\nclass A:\n")
    assert read_prompts(path) == ["def f():\n    x = 1\n\n    return", "class A:"]


def test_json_lines_hold_texts_conversations_and_turns(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}]
    entries = [{"prompt": "one"}, {"messages": messages}, {"turns": ["two", "three"]}]
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    expected = ["one", messages, "two"]
    assert read_prompts(write(tmp_path / "p.jsonl", text)) == expected
    with gzip.open(tmp_path / "p.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(text)
    assert read_prompts(tmp_path / "p.jsonl.gz") == expected


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.txt", "", "holds no prompt: write one on each line"),
        ("p.txt", "\n \n", "holds no prompt"),
        ("p.txt", "---\n\n---\n", "holds no prompt"),
        ("p.jsonl", "", "holds no prompt"),
        ("p.jsonl", '{"prompt": "a"}\n{"prompt"', "line 2 is not JSON"),
        ("p.jsonl", '{"prompt": " "}', "line 1 is no prompt: it needs 'prompt'"),
        ("p.jsonl", '{"text": "a"}', "line 1 is no prompt"),
        ("p.jsonl", '{"messages": []}', "line 1 is no prompt"),
        ("p.jsonl", '{"messages": ["hi"]}', "line 1 is no prompt"),
    ],
)
def test_what_is_no_prompt_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_prompts(write(tmp_path / name, text))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OptionError, match="is no text in UTF-8"):
        read_prompts(tmp_path / "p.txt")


def test_prompts_are_encoded_for_the_target_and_conversations_by_its_template() -> None:
    tokenizer = byte_level()
    assert encode_prompts(tokenizer, ["one two"]) == [tuple(tokenizer("one two")["input_ids"])]
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}>"
    spoken = [tuple(tokenizer("[user]hi>", add_special_tokens=False)["input_ids"])]
    assert encode_prompts(tokenizer, [[{"role": "user", "content": "hi"}]]) == spoken
    assert encode_prompts(tokenizer, ["hi"], is_chat=True) == spoken


def test_a_conversation_needs_a_template() -> None:
    with pytest.raises(OptionError, match="has no chat template"):
        encode_prompts(byte_level(), [[{"role": "user", "content": "hi"}]])


def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(OptionError, match=r"prompt 2 has .* at most 3 leave room to write"):
        encode_prompts(byte_level(), ["a", "one two three four five"], max_tokens=3)


@pytest.mark.parametrize(("num_prompts", "most", "num"), [(2, 32, 1), (100, 32, 10), (1000, 32, 32)])
def test_a_tenth_is_held_out(num_prompts: int, most: int, num: int) -> None:
    places = hold_out(num_prompts, most)
    assert len(set(places)) == num
    assert 0 <= min(places) <= max(places) < num_prompts


def test_one_prompt_is_too_few() -> None:
    with pytest.raises(OptionError, match="one prompt is too few"):
        hold_out(1, 32)
