"""Which texts are due, and a store that holds each of them whole and once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from uag.distill.texts import Task, Text, TextStore, batches, tasks
from uag.errors import OptionError

PROMPTS = [(1, 2), (3,), (4, 5, 6)]


def test_every_prompt_is_written_once_at_each_temperature() -> None:
    due = tasks(PROMPTS, (0.0, 0.7), None, seed=0)
    expected = [(prompt, temperature) for prompt in PROMPTS for temperature in (0.0, 0.7)]
    assert sorted((task.prompt_ids, task.temperature) for task in due) == sorted(expected)
    assert len({task.text_id for task in due}) == len({task.seed for task in due}) == len(due)


def test_a_longer_list_begins_as_a_shorter_one_and_repeats_no_greedy_text() -> None:
    short, long = tasks(PROMPTS, (0.0, 0.7), 4, seed=3), tasks(PROMPTS, (0.0, 0.7), 20, seed=3)
    assert long[: len(short)] == short
    assert len(long) == 20
    assert sum(task.temperature == 0 for task in long) == len(PROMPTS)
    assert len({task.seed for task in long}) == 20


def test_what_a_time_limit_leaves_has_as_much_of_each_temperature() -> None:
    due = tasks([(number,) for number in range(60)], (0.0, 0.7, 1.0), None, seed=0)
    for num in (30, 60, 90):
        counts = Counter(task.temperature for task in due[:num])
        assert set(counts.values()) == {num // 3}


def test_without_sampling_there_is_one_text_of_a_prompt() -> None:
    assert len(tasks(PROMPTS, (0.0,), 20, seed=0)) == len(PROMPTS)


def test_another_seed_samples_anew() -> None:
    seeds = [{task.seed for task in tasks(PROMPTS, (1.0,), None, seed)} for seed in (0, 1)]
    assert not seeds[0] & seeds[1]


def test_batches_hold_every_task_once_with_prompts_of_about_one_length() -> None:
    due = [Task(str(number), tuple(range(number * 7 % 50 + 1)), 0.0, 0) for number in range(100)]
    cut = list(batches(due, 8))
    assert sorted((task for batch in cut for task in batch), key=lambda task: int(task.text_id)) == due
    spans = [max(len(t.prompt_ids) for t in batch) - min(len(t.prompt_ids) for t in batch) for batch in cut]
    assert sum(spans) / len(spans) < 10


def text(text_id: str) -> Text:
    return Text(text_id, (1, 2), (3, 4, 5), 0.7, 1 << 60)


def test_texts_come_back_as_they_were(tmp_path: Path) -> None:
    store = TextStore(tmp_path)
    store.add([text("a"), text("b")], ["eins", "zwei"])
    store.add([text("c")], ["drei\n"])
    again = TextStore(tmp_path)
    assert again.ids() == {"a", "b", "c"}
    assert again.texts() == [text("a"), text("b"), text("c")]
    lines = [json.loads(line) for path in sorted(tmp_path.iterdir()) for line in path.read_text().splitlines()]
    assert [line["text"] for line in lines] == ["eins", "zwei", "drei\n"]


def test_what_a_kill_left_unfinished_is_no_text(tmp_path: Path) -> None:
    store = TextStore(tmp_path)
    store.add([text("a")], [""])
    (tmp_path / ".part-000001.jsonl.123").write_text('{"text_id": "b", "prom')
    again = TextStore(tmp_path)
    assert again.ids() == {"a"}
    again.add([text("b")], [""])
    assert TextStore(tmp_path).ids() == {"a", "b"}


def test_two_processes_cannot_write_one_folder(tmp_path: Path) -> None:
    ours, theirs = TextStore(tmp_path), TextStore(tmp_path)
    ours.add([text("a")], [""])
    with pytest.raises(OptionError, match="another process writes into this folder"):
        theirs.add([text("a")], [""])
    assert len(TextStore(tmp_path).texts()) == 1
