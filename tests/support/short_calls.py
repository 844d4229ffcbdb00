"""Calls of a few new tokens, for checks that two or three rounds of a draft model show: a draft pass costs most."""

from typing import Any

import pytest

from tests.support import calls

NEW = 10
SHORT = {"max_new_tokens": NEW}
GREEDY: dict[str, Any] = calls.GREEDY | SHORT
SAMPLED: dict[str, Any] = calls.SAMPLED | SHORT
MODES = pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
