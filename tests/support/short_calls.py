"""Calls of fewer new tokens than those of `calls`, for tests with a draft model, whose passes take the most time."""

from typing import Any

import pytest

from tests.support import calls

NEW = 14
"""Of 147 candidates accepted in 20 new tokens by the pairs of `calls.pair`, 110 are accepted in 14, and 76 in 10."""

SHORT = {"max_new_tokens": NEW}
GREEDY: dict[str, Any] = calls.GREEDY | SHORT
SAMPLED: dict[str, Any] = calls.SAMPLED | SHORT
MODES = pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
