"""Classes that are taken for tried are those that the tests have tried."""

from pathlib import Path

import pytest

import uag
from uag.hf.known_classes import CLASSES

TABLE = Path(uag.__file__).parents[1] / "docs" / "architectures.md"
TRIED_ELSEWHERE = {"Qwen3OmniMoeThinkerForConditionalGeneration", "VoxtralRealtimeForConditionalGeneration"}
"""By tests/integration/test_position_dependent.py, which gives them the inputs that they need."""


def test_every_known_class_stands_in_the_table_as_equal_or_plain() -> None:
    if not TABLE.is_file():
        pytest.skip("docs/ is not beside the package")
    lines = [line.split("|") for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    tried = {
        cells[1].strip().replace("\\_", "_") for cells in lines if "**equal**" in cells[3] or "**plain**" in cells[3]
    }
    assert len(tried) > 250
    assert tried | TRIED_ELSEWHERE == CLASSES
