"""Part files: a run resumes where an earlier one stopped, and incomplete files are ignored."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from uag.errors import OptionError
from uag.ray import generate_dataset
from uag.ray.parts import Parts


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    yield Parts(tmp_path / "out", "key", "jsonl")
    assert not list((tmp_path / "out").glob(".*")), "an unfinished file was left"


def test_parts_are_gone_on_with(parts: Parts) -> None:
    assert parts.ids() == set()
    parts.write([{"key": 1, "text": "é"}, {"key": 2, "text": None}])
    parts.write([{"key": 3, "text": "line\nbreak"}])
    again = Parts(parts.folder, "key", "jsonl")
    assert again.ids() == {1, 2, 3}
    again.write([{"key": 4, "text": ""}])
    assert [row["key"] for row in again.rows()] == [1, 2, 3, 4]
    assert [path.name for path in again.paths()] == [f"part-00000{index}.jsonl" for index in range(3)]


def test_what_a_killed_process_leaves_behind_counts_for_nothing(parts: Parts) -> None:
    parts.write([{"key": 1}])
    torn = parts.folder / ".part-000001.jsonl.77"
    torn.write_text('{"key": 2}\n{"ke')
    again = Parts(parts.folder, "key", "jsonl")
    assert again.ids() == {1}
    again.write([{"key": 2}])
    assert again.ids() == {1, 2}
    torn.unlink()


def test_two_writers_do_not_replace_each_others_parts(parts: Parts) -> None:
    other = Parts(parts.folder, "key", "jsonl")
    parts.write([{"key": 1}])
    with pytest.raises(OptionError, match="another process writes into this folder"):
        other.write([{"key": 1}])
    assert [row["key"] for row in parts.rows()] == [1]


def test_a_value_that_json_cannot_hold_leaves_no_part(parts: Parts) -> None:
    with pytest.raises(OptionError, match=r"row 5: .*bytes.* Use file_format='parquet'"):
        parts.write([{"key": 5, "image": b"x"}])
    assert parts.paths() == []


def test_a_folder_of_another_kind_is_refused(parts: Parts) -> None:
    parts.write([{"key": 1}])
    with pytest.raises(OptionError, match="use file_format='jsonl' to resume"):
        Parts(parts.folder, "key", "parquet")
    with pytest.raises(OptionError, match="have no column 'id'"):
        Parts(parts.folder, "id", "jsonl").ids()
    with pytest.raises(OptionError, match="must be one of 'parquet', 'jsonl'"):
        Parts(parts.folder, "key", "csv")
    assert json.loads(parts.paths()[0].read_text()) == {"key": 1}


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'ray\[data\]'"):
        generate_dataset(None, tmp_path)
