"""The parts of `uag.ray` that need no Ray: rows, seeds, errors, part files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from uag.errors import OptionError
from uag.loading import Pair, demo_folder, load_pair
from uag.ray import BatchGenerator, generate_dataset, row_seed
from uag.ray.parts import Parts

PROMPTS = ("def read_lines(path):\n", "import os\n", "class Stack:\n    def push(", "for i in range(")


@pytest.fixture(scope="module")
def pair() -> Pair:
    """The demo's draft, two layers, for both."""
    return load_pair(demo_folder("draft"), demo_folder("draft"), dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def greedy(pair: Pair) -> BatchGenerator:
    return BatchGenerator(load=lambda: pair, max_new_tokens=8)


def rows(*texts: Any) -> list[dict[str, Any]]:
    return [{"id": f"row {index}", "prompt": text} for index, text in enumerate(texts)]


def plain(pair: Pair, text: str, **options: Any) -> list[int]:
    inputs = pair.target_tokenizer(text, return_tensors="pt")
    ids: list[int] = pair.target.generate(**inputs, max_new_tokens=8, pad_token_id=0, **options)[0].tolist()
    return ids[inputs["input_ids"].shape[1] :]


# ---------------------------------------------------------------------- rows


@pytest.mark.parametrize("num_rows_together", [1, 3])
def test_greedy_rows_are_plain_greedy_decoding_of_each_alone(pair: Pair, num_rows_together: int) -> None:
    generator = BatchGenerator(load=lambda: pair, max_new_tokens=8, num_rows_together=num_rows_together)
    found = generator.generate(rows(*PROMPTS))
    for text, row in zip(PROMPTS, found, strict=True):
        assert row["generated_ids"] == plain(pair, text)
        assert row["generated_text"] == pair.target_tokenizer.decode(row["generated_ids"], skip_special_tokens=True)
        assert row["generation_error"] is None
        assert row["generation_stats"]["num_output_tokens"] == len(row["generated_ids"])


def test_sampled_rows_are_plain_sampling_after_their_seed_in_any_batch(pair: Pair) -> None:
    generator = BatchGenerator(load=lambda: pair, max_new_tokens=8, do_sample=True, temperature=0.9, seed=5)
    given = rows(*PROMPTS)
    state = torch.get_rng_state()
    found = {row["id"]: new for row, new in zip(given, generator.generate(given), strict=True)}
    assert torch.equal(torch.get_rng_state(), state)
    for row in given:
        seed = row_seed(5, row["id"])
        assert found[row["id"]]["generation_seed"] == seed
        torch.manual_seed(seed)
        assert found[row["id"]]["generated_ids"] == plain(pair, row["prompt"], do_sample=True, temperature=0.9)
    assert [new["generated_ids"] for new in generator.generate(given[::-2])] == [
        found[row["id"]]["generated_ids"] for row in given[::-2]
    ]


def test_seeds_differ_by_row_and_run() -> None:
    seeds = {row_seed(seed, row_id) for seed in range(10) for row_id in range(100)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_rows_end_at_their_own_eos(pair: Pair) -> None:
    whole = {text: plain(pair, text) for text in PROMPTS}
    eos_id = whole[PROMPTS[0]][3]
    expected = [ids[: ids.index(eos_id) + 1] if eos_id in ids else ids for ids in whole.values()]
    generator = BatchGenerator(load=lambda: pair, max_new_tokens=8, num_rows_together=4, eos_token_id=eos_id)
    assert [row["generated_ids"] for row in generator.generate(rows(*PROMPTS))] == expected
    assert len({len(ids) for ids in expected}) > 1


def test_a_row_that_fails_is_an_error_and_no_lost_batch(pair: Pair, greedy: BatchGenerator) -> None:
    found = greedy.generate(rows(PROMPTS[0], None, "x = 1\n" * 5000, PROMPTS[1], 3))
    errors = [row["generation_error"] for row in found]
    assert errors[0] is None
    assert errors[3] is None
    assert errors[1] == "TypeError: the prompt is None, it must be a text"
    assert errors[2].startswith("ValueError: the prompt has ")
    assert "positions of the target" in errors[2]
    assert errors[4] == "TypeError: the prompt is 3, it must be a text"
    assert [row["generated_ids"] for row in found if row["generation_error"]] == [None] * 3
    assert found[3]["generated_ids"] == plain(pair, PROMPTS[1])


def test_a_call_that_fails_is_tried_again_row_by_row(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = BatchGenerator(load=lambda: pair, max_new_tokens=8, num_rows_together=4)
    bad = pair.target_tokenizer(PROMPTS[1])["input_ids"]
    original = generator.assistant.generate

    def generate(model: Any, **options: Any) -> Any:
        if any(line[-len(bad) :] == bad for line in options["input_ids"].tolist()):
            raise torch.OutOfMemoryError("no memory")
        return original(model, **options)

    monkeypatch.setattr(generator.assistant, "generate", generate)
    found = generator.generate(rows(*PROMPTS))
    assert [row["generation_error"] for row in found] == [None, "OutOfMemoryError: no memory", None, None]
    assert found[2]["generated_ids"] == plain(pair, PROMPTS[2])


def test_a_device_that_is_gone_fails_the_worker(greedy: BatchGenerator, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = getattr(torch, "AcceleratorError", None)
    if kind is None:
        pytest.skip("this torch has no AcceleratorError")

    def generate(*args: Any, **options: Any) -> Any:
        raise kind("device-side assert", 710)

    monkeypatch.setattr(greedy.assistant, "generate", generate)
    with pytest.raises(kind):
        greedy.generate(rows(PROMPTS[0]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 3}, "'max_tokens': no option"),
        ({"num_return_sequences": 2, "do_sample": True}, "a row has one output"),
        ({"num_beams": 2}, "a row has one output"),
        ({"return_dict_in_generate": True}, "return_dict_in_generate must be False"),
        ({"do_sample": True, "num_rows_together": 2}, "num_rows_together=2 must be 1"),
        ({"num_rows_together": 0}, "num_rows_together=0"),
        ({"assistant_options": {"sampling": "rejection"}}, "no generator and no sampling"),
        ({"assistant_options": {"heel": True}}, "unexpected keyword argument 'heel'"),
    ],
)
def test_options_that_cannot_work_are_refused_at_once(pair: Pair, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):  # an OptionError is one, too
        BatchGenerator(load=lambda: pair, **options)


def test_a_missing_column_is_named(greedy: BatchGenerator) -> None:
    with pytest.raises(OptionError, match=r"no column 'prompt'; they have 'id', 'text'"):
        greedy.generate([{"id": 1, "text": "x"}])
    assert greedy.generate([]) == []


# ---------------------------------------------------------------------- parts


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
    with pytest.raises(OptionError, match="pass file_format='jsonl' to go on"):
        Parts(parts.folder, "key", "parquet")
    with pytest.raises(OptionError, match="have no column 'id'"):
        Parts(parts.folder, "id", "jsonl").ids()
    with pytest.raises(OptionError, match="must be one of 'parquet', 'jsonl'"):
        Parts(parts.folder, "key", "csv")
    assert json.loads(parts.paths()[0].read_text()) == {"key": 1}


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'uag\[ray\]'"):
        generate_dataset(None, tmp_path)
