"""Rows of a dataset: each equals plain `generate` alone with its own seed; errors affect only their row."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from uag.errors import OptionError
from uag.loading import Pair, demo_folder, load_pair
from uag.ray import BatchGenerator, row_seed

PROMPTS = ("def read_lines(path):\n", "import os\n", "class Stack:\n    def push(", "for i in range(")


@pytest.fixture(scope="module")
def pair() -> Pair:
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


def test_greedy_rows_are_plain_greedy_decoding_of_each_alone(pair: Pair, greedy: BatchGenerator) -> None:
    found = greedy.generate(rows(*PROMPTS))
    for text, row in zip(PROMPTS, found, strict=True):
        assert row["generated_ids"] == plain(pair, text)
        assert row["generated_text"] == pair.target_tokenizer.decode(row["generated_ids"], skip_special_tokens=True)
        assert row["generation_error"] is None
        assert row["generation_stats"]["num_output_tokens"] == len(row["generated_ids"])


def test_sampled_rows_are_plain_sampling_after_their_seed_in_any_batch(pair: Pair) -> None:
    generator = BatchGenerator(load=lambda: pair, max_new_tokens=8, do_sample=True, temperature=0.9, seed=5)
    inputs = rows(*PROMPTS)
    state = torch.get_rng_state()
    found = generator.generate(inputs)
    assert torch.equal(torch.get_rng_state(), state)
    for row, new in zip(inputs, found, strict=True):
        assert new["generation_seed"] == row_seed(5, row["id"])
        torch.manual_seed(new["generation_seed"])
        assert new["generated_ids"] == plain(pair, row["prompt"], do_sample=True, temperature=0.9)
    again = generator.generate(inputs[::-2])
    assert [new["generated_ids"] for new in again] == [new["generated_ids"] for new in found[::-2]]


def test_seeds_differ_by_row_and_run() -> None:
    seeds = {row_seed(seed, row_id) for seed in range(10) for row_id in range(100)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_rows_end_at_their_own_eos(pair: Pair) -> None:
    whole = {text: plain(pair, text) for text in PROMPTS}
    eos_id = whole[PROMPTS[0]][3]
    expected = [ids[: ids.index(eos_id) + 1] if eos_id in ids else ids for ids in whole.values()]
    generator = BatchGenerator(load=lambda: pair, max_new_tokens=8, eos_token_id=eos_id)
    assert [row["generated_ids"] for row in generator.generate(rows(*PROMPTS))] == expected
    assert len({len(ids) for ids in expected}) > 1


def test_a_row_that_fails_is_an_error(pair: Pair, greedy: BatchGenerator, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, original = pair.target_tokenizer(PROMPTS[1])["input_ids"], greedy.assistant.generate

    def generate(model: Any, **options: Any) -> Any:
        if options["input_ids"][0].tolist() == bad:
            raise torch.OutOfMemoryError("no memory")
        return original(model, **options)

    monkeypatch.setattr(greedy.assistant, "generate", generate)
    found = greedy.generate(rows(PROMPTS[0], None, "x = 1\n" * 5000, PROMPTS[1], PROMPTS[2]))
    errors = [row["generation_error"] for row in found]
    assert errors[1] == "TypeError: the prompt must be a string, not None"
    assert errors[2].startswith("ValueError: the prompt and max_new_tokens need ")
    assert "positions of the target" in errors[2]
    assert errors[3] == "OutOfMemoryError: no memory"
    assert errors[0] is errors[4] is None
    assert [row["generated_ids"] for row in found[1:4]] == [None] * 3
    assert found[4]["generated_ids"] == plain(pair, PROMPTS[2])


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
        ({"max_tokens": 3}, "not an option of uag.ray.BatchGenerator or of generate: max_tokens"),
        ({"num_return_sequences": 2, "do_sample": True}, "a row has one output"),
        ({"num_beams": 2}, "a row has one output"),
        ({"return_dict_in_generate": True}, "a row has one output"),
        ({"assistant_options": {"sampling": "rejection"}}, "drop assistant_options' generator and sampling"),
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


def test_threads_of_a_worker_do_not_mix_seeds_and_statistics(pair: Pair) -> None:
    generator = BatchGenerator(load=lambda: pair, max_new_tokens=8, do_sample=True, temperature=0.9)
    inputs = rows(*PROMPTS)
    expected = [{**row, "generation_stats": None} for row in generator.generate(inputs)]
    with ThreadPoolExecutor(len(inputs)) as threads:
        found = [row for (row,) in threads.map(lambda row: generator.generate([row]), inputs * 4)]
    for row in found:
        assert row["generation_stats"]["num_output_tokens"] == len(row["generated_ids"])
    assert [{**row, "generation_stats": None} for row in found] == expected * 4


def test_columns_of_vectors_are_kept(greedy: BatchGenerator) -> None:
    pytest.importorskip("pyarrow")
    vectors = np.arange(4.0).reshape(2, 2)
    table = greedy({"id": np.array(["a", "b"]), "prompt": np.array(PROMPTS[:2]), "vector": vectors})
    assert table.column("vector").to_pylist() == vectors.tolist()
    assert None not in table.column("generated_ids").to_pylist()
