"""The target's texts from vLLM and from workers of Ray are those that it writes in this process."""

from __future__ import annotations

from collections.abc import Generator
from multiprocessing import active_children
from typing import Any

import pytest

from uag.distill.engines import ENGINES, Request
from uag.distill.texts import Task, Text
from uag.loading import demo_folder, load_tokenizer

pytestmark = pytest.mark.engines

NUM_NEW = 12
VLLM: dict[str, Any] = {"max_model_len": 256, "enforce_eager": True, "kv_cache_memory_bytes": 2**28}
PROMPTS = ("def f(x):\n", "import os\n", "class A:\n    def ")


@pytest.fixture(scope="module")
def due() -> list[list[Task]]:
    tokenizer = load_tokenizer(demo_folder("target"))
    encoded = [tuple(tokenizer(prompt)["input_ids"]) for prompt in PROMPTS]
    return [[Task(f"{i}-{t:g}", ids, t, 7 + i) for t in (0.0, 1.0)] for i, ids in enumerate(encoded)]


@pytest.fixture(scope="module")
def here(due: list[list[Task]]) -> dict[str, Text]:
    return write("transformers", due)


def write(engine: str, due: list[list[Task]], dtype: str | None = None, **options: Any) -> dict[str, Text]:
    request = Request(demo_folder("target"), NUM_NEW, dtype, None, options)
    return {text.text_id: text for texts in ENGINES[engine](request, due) for text in texts}


def test_workers_of_ray_write_what_is_written_here(due: list[list[Task]], here: dict[str, Text]) -> None:
    ray = pytest.importorskip("ray", reason="needs Ray Data: pip install 'uag[ray]'")
    try:
        assert write("ray", due, num_workers=2, num_cpus=0.25) == here
    finally:
        ray.shutdown()


def test_vllm_writes_the_same_greedy_texts(due: list[list[Task]], here: dict[str, Text]) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed", exc_type=ImportError)
    found = write("vllm", due, dtype="float32", **VLLM)
    assert found.keys() == here.keys()
    for text_id, text in found.items():
        assert text.seed is None  # its noise is vLLM's own
        assert len(text.output_ids) == NUM_NEW
        assert text.temperature or text.output_ids == here[text_id].output_ids


def test_vllm_leaves_no_process_when_it_is_done_or_stopped(due: list[list[Task]]) -> None:
    """Its process holds most of the memory, which training the draft needs."""
    pytest.importorskip("vllm", reason="vLLM is not installed", exc_type=ImportError)
    before = set(active_children())
    texts = ENGINES["vllm"](Request(demo_folder("target"), NUM_NEW, "float32", None, VLLM), due)
    next(texts)
    assert set(active_children()) > before
    assert isinstance(texts, Generator)
    texts.close()
    assert set(active_children()) == before
