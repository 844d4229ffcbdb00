"""Prompt files of every known form are read, bad ones refused by line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from uag.bench import Prompt, heldout_prompts, read_prompts, spread
from uag.errors import OptionError


def write_lines(path: Path, *entries: Any) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return path


def test_spec_bench_file_gives_the_first_turn(tmp_path: Path) -> None:
    entry = {"question_id": 81, "category": "writing", "turns": ["Compose a post.", "Rewrite it."]}
    assert read_prompts(write_lines(tmp_path / "spec.jsonl", entry)) == [Prompt("81", "Compose a post.", "writing")]


def test_human_eval_file_is_read_packed_and_unpacked(tmp_path: Path) -> None:
    entry = {"task_id": "HumanEval/0", "prompt": "def f():\n", "test": "..."}
    plain = write_lines(tmp_path / "he.jsonl", entry)
    packed = tmp_path / "he.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_prompts(plain) == read_prompts(packed) == [Prompt("HumanEval/0", "def f():\n")]


def test_text_file_holds_a_prompt_on_each_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes("Été\r\n\n  two \n".encode())
    assert read_prompts(path) == [Prompt("1", "Été"), Prompt("3", "  two ")]


def test_bundled_prompts_are_named_by_module_and_line() -> None:
    prompts = heldout_prompts()
    assert len(prompts) >= 50
    assert all(".py:" in prompt.prompt_id for prompt in prompts)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"question": "?"}\n', r"line 1 is no prompt: it needs 'turns'"),
        ('{"prompt": "a"}\n\n[1]\n', r"line 3 is no prompt"),
        ("{prompt\n", r"line 1 is not JSON"),
        ("\n", r"holds no prompt"),
        ('{"turns": []}\n', r"line 1 is no prompt"),
    ],
)
def test_a_bad_prompt_file_is_refused_by_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(OptionError, match=message):
        read_prompts(path)


def test_spread_takes_all_categories_in_order() -> None:
    prompts = [Prompt(str(index), "x", category=str(index // 10)) for index in range(40)]
    chosen = spread(prompts, 8)
    assert [prompt.category for prompt in chosen] == ["0", "0", "1", "1", "2", "2", "3", "3"]
    assert spread(prompts, None) == spread(prompts, 99) == prompts
