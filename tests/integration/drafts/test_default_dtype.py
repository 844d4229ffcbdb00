"""Scripts that call `torch.set_default_dtype`: uag's own tensors must not depend on it."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import uag
from tests.support.calls import GREEDY, PROMPTS, SAMPLED, compare, draft_in_one_call, left_padded, pair
from tests.support.grids import covering
from tests.support.kernels import needs_kernels
from uag.hf.decoder import describe

pytestmark = needs_kernels


@pytest.fixture(autouse=True)
def default() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@covering(
    "dtype, draft, num_rows, options, is_opened_there",
    (torch.bfloat16, torch.float16, torch.float64),
    ("none", "copy", "model", "file"),
    (1, 3),
    (GREEDY, SAMPLED),
    (True, False),
)
def test_outputs_are_plain_decodings(
    dtype: torch.dtype, draft: str, num_rows: int, options: Any, is_opened_there: bool, tmp_path: Path
) -> None:
    target, tokenizer = copy.deepcopy(pair()[0]), pair()[1]  # its passes were not tried with another default
    drafts: tuple[Any, Any] = (None, None) if draft == "none" else draft_in_one_call(draft, tmp_path)
    if is_opened_there:
        torch.set_default_dtype(dtype)
    assistant = uag.Assistant(*drafts, tokenizer, num_candidate_tokens=4)
    torch.set_default_dtype(dtype)
    stats = compare(target, left_padded(PROMPTS[:num_rows]) | options, assistant)
    assert stats.is_draft_independent
    if draft != "none":
        assert stats.num_accepted_tokens > 0
        assert stats.draft_passes.startswith("in one call")


def test_angles_are_those_of_float32() -> None:
    description = describe(pair()[0])
    expected = description.angles("", 16)
    torch.set_default_dtype(torch.bfloat16)
    assert all(map(torch.equal, description.angles("", 16), expected))
