"""The folder in transformers' format for custom generation methods equals plain decoding."""

from pathlib import Path
from typing import Any

import pytest
import torch

import uag
from tests.support.calls import seeded
from tests.support.grids import covering
from tests.support.trained import demo

FOLDER = str(Path(__file__).resolve().parents[3] / "examples" / "custom_generate")


def test_beams_through_the_folder_equal_those_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    pair = uag.load_pair()
    inputs = pair.target_tokenizer(["def read_lines(path):\n"], return_tensors="pt")
    given: dict[str, Any] = {**inputs, "max_new_tokens": 8, "num_beams": 2, "do_sample": False}
    options = {"custom_generate": FOLDER, "trust_remote_code": True, "assistant_model": pair.draft}
    found = pair.target.generate(**given, **options)
    assert found.tolist() == pair.target.generate(**given).tolist()


@covering("has_draft, do_sample", (False, True), (False, True), strength=1)
def test_call_through_the_folder_equals_plain_decoding(
    has_draft: bool, do_sample: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    pair = demo()
    inputs = pair.target_tokenizer(["def read_lines(path):\n"], return_tensors="pt")
    given: dict[str, Any] = {**inputs, "max_new_tokens": 16, "do_sample": do_sample}
    expected = seeded(3, pair.target.generate, **given)
    state = torch.get_rng_state()
    models = {"assistant_model": pair.draft, "assistant_tokenizer": pair.draft_tokenizer} if has_draft else {}
    options = {"custom_generate": FOLDER, "trust_remote_code": True, "tokenizer": pair.target_tokenizer}
    found = seeded(3, pair.target.generate, **given, **options, **models)
    assert found.tolist() == expected.tolist()
    assert torch.equal(torch.get_rng_state(), state)
    stats = uag.last_stats(pair.target)
    assert stats is not None
    assert stats.strategy == ("cross-tokenizer" if has_draft else "prompt-lookup")
