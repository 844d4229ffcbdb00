"""The journal reuses complete groups of equal settings, and does not modify other files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from uag.bench import Journal, files_digest
from uag.errors import OptionError

SETTINGS = {"tokens": 64, "arms": ("plain", "uag"), "versions": {"torch": "1"}}
KEY = {"prompts": ["a"], "temperature": 0.0}
ROWS: list[dict[str, Any]] = [{"arm": "plain", "s": 1.5}, {"arm": "uag", "s": 0.1 + 0.2, "text": "ü\n"}]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Journal(tmp_path / "rows.jsonl", SETTINGS).write(KEY, ROWS)
    return tmp_path / "rows.jsonl"


def found(path: Path, key: dict[str, Any], settings: dict[str, Any] = SETTINGS) -> list[dict[str, Any]] | None:
    rows = Journal(path, settings).find(key)
    return rows and [{name: value for name, value in row.items() if name != "group"} for row in rows]


def test_rows_are_reused(path: Path) -> None:
    assert found(path, dict(reversed(KEY.items()))) == ROWS
    assert found(path, {**KEY, "prompts": ["b"]}) is None
    Journal(path, SETTINGS).write({"prompts": ["b"]}, ROWS[:1])
    assert found(path, {"prompts": ["b"]}) == ROWS[:1]
    assert [json.loads(line)["arm"] for line in path.read_text().splitlines()] == ["plain", "uag", "plain"]


def test_an_incomplete_group_is_measured_again_wherever_it_was_cut_off(path: Path) -> None:
    first = path.read_bytes()
    Journal(path, SETTINGS).write({"prompts": ["b"]}, ROWS)
    both = path.read_bytes()
    for size in range(len(first), len(both)):
        path.write_bytes(both[:size])
        journal = Journal(path, SETTINGS)
        assert journal.find({"prompts": ["b"]}) is None
        journal.write({"prompts": ["b"]}, ROWS)
        assert (found(path, KEY), found(path, {"prompts": ["b"]})) == (ROWS, ROWS)


def test_rows_of_other_settings_are_kept_and_not_reused(path: Path) -> None:
    changed = {**SETTINGS, "tokens": 16}
    other = Journal(path, changed)
    assert (other.find(KEY), other.num_others) == (None, 2)
    other.write(KEY, ROWS[:1])
    assert (found(path, KEY), found(path, KEY, changed)) == (ROWS, ROWS[:1])


@pytest.mark.parametrize("content", ["once upon a time", "[1]\n", "a\nb\n", '{"a": 1}', "{\n}\n", '{"arm": "plain"}\n'])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other"
    path.write_text(content)
    with pytest.raises(OptionError, match="line 1 was not written by this benchmark"):
        Journal(path, SETTINGS)
    assert path.read_text() == content


def test_models_are_identified_by_their_files(tmp_path: Path) -> None:
    file = tmp_path / "draft.gguf"
    file.write_bytes(b"one")
    digests = [files_digest(str(file)), files_digest(str(tmp_path)), files_digest("some/model")]
    assert digests == [files_digest(str(file)), files_digest(str(tmp_path)), files_digest("some/model")]
    os.utime(file, ns=(1, 1))
    assert files_digest(str(file)) not in digests
    assert files_digest(str(tmp_path)) not in digests
