"""Rows are there as soon as they are written, and only whole parts of equal settings are taken up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from uag.bench import Journal
from uag.errors import OptionError

SETTINGS = {"tokens": 64, "arms": ("plain", "uag"), "versions": {"torch": "1"}}
KEY = {"prompts": ["a"], "temperature": 0.0}
ROWS: list[dict[str, Any]] = [{"arm": "plain", "s": 1.5}, {"arm": "uag", "s": 0.1 + 0.2, "text": "ü\n"}]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Journal(tmp_path / "rows.jsonl", SETTINGS).write(KEY, ROWS)
    return tmp_path / "rows.jsonl"


def test_rows_are_taken_up(path: Path) -> None:
    again = Journal(path, SETTINGS)
    assert again.find(dict(reversed(KEY.items()))) == ROWS
    assert again.find({**KEY, "prompts": ["b"]}) is None
    assert (again.num_others, again.changed) == (0, {})
    again.write({"prompts": ["b"]}, ROWS[:1])
    assert Journal(path, SETTINGS).find({"prompts": ["b"]}) == ROWS[:1]
    assert [json.loads(line)["arm"] for line in path.read_text().splitlines()] == ["plain", "uag", "plain"]


@pytest.mark.parametrize("num_lost", [1, 2, 20, 10_000])
def test_a_torn_part_is_cut_off(path: Path, num_lost: int) -> None:
    Journal(path, SETTINGS).write({"prompts": ["b"]}, [*ROWS, *ROWS])
    whole = path.read_bytes()
    first = len("".join(line + "\n" for line in whole.decode().split("\n")[:2]).encode())
    path.write_bytes(whole[: max(first + 1, len(whole) - num_lost)])
    again = Journal(path, SETTINGS)
    assert again.find(KEY) == ROWS
    assert again.find({"prompts": ["b"]}) is None
    assert path.read_bytes() == whole[:first]
    again.write({"prompts": ["b"]}, [*ROWS, *ROWS])
    assert path.read_bytes() == whole


def test_every_place_to_be_torn_at(path: Path) -> None:
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert Journal(path, SETTINGS).find(KEY) is None
        assert path.read_bytes() == b""


def test_rows_of_other_settings_stay_and_are_not_used(path: Path) -> None:
    changed = {**SETTINGS, "tokens": 16, "versions": {"torch": "2"}}
    other = Journal(path, changed)
    assert other.find(KEY) is None
    assert other.num_others == 2
    assert other.changed == {"tokens": "64 -> 16", "versions": '{"torch": "1"} -> {"torch": "2"}'}
    other.write(KEY, ROWS[:1])
    assert Journal(path, SETTINGS).find(KEY) == ROWS
    assert Journal(path, changed).find(KEY) == ROWS[:1]
    nearest = Journal(path, {**changed, "arms": ["plain"]})
    assert (nearest.num_others, nearest.changed) == (3, {"arms": '["plain", "uag"] -> ["plain"]'})


def test_rows_of_an_older_release_stay(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text('{"arm": "plain"}\n')
    journal = Journal(path, SETTINGS)
    journal.write(KEY, ROWS)
    assert journal.num_others == 1
    assert len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize("content", ["once upon a time", "[1]\n", "a\nb\n", '{"a": 1}', "{\n}\n"])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other"
    path.write_text(content)
    with pytest.raises(OptionError, match="line 1 is no row of a benchmark"):
        Journal(path, SETTINGS)
    assert path.read_text() == content
