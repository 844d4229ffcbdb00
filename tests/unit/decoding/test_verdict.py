"""`examine`: the verdicts of real calls."""

import copy
from typing import Any

import pytest
from transformers import DynamicCache, StaticCache

from tests.support.callers import Watches
from tests.support.calls import GREEDY, PROMPTS, SAMPLED, assistant_of, left_padded, pair
from tests.support.kernels import needs_kernels
from uag.decoding import loop
from uag.decoding.verdict import Verdict, examine
from uag.hf.cache.caches import CACHE

pytestmark = pytest.mark.filterwarnings("ignore:uag. ")


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a call and returns its verdict."""
    verdicts: list[Verdict] = []

    def examined(call: Any) -> Verdict:
        verdicts.append(examine(call))
        return verdicts[-1]

    monkeypatch.setattr(loop, "examine", examined)

    def run(num_rows: int = 1, **options: Any) -> Verdict:
        target = copy.deepcopy(pair()[0])  # transformers leaves hooks on it to record hidden states
        assistant_of().generate(target, **left_padded(PROMPTS[:num_rows]) | GREEDY | {"max_new_tokens": 2} | options)
        (verdict,) = verdicts
        verdicts.clear()
        return verdict

    return run


@needs_kernels
def test_an_ordinary_call_is_assisted_row_by_row(decided: Any) -> None:
    assert decided() == Verdict()
    assert decided(3) == Verdict()
    assert decided(3, **SAMPLED) == Verdict()
    assert decided(**{CACHE: DynamicCache()}) == Verdict()  # of the caller, which matters to batches alone


@pytest.mark.parametrize(
    ("num_rows", "options", "reason", "is_reported"),
    [
        (1, {"stopping_criteria": [Watches()]}, "Watches may keep state", True),
        (1, {"return_dict_in_generate": True}, "records every step", False),
        (3, {"return_dict_in_generate": True}, "records every step", False),
        (1, {"max_time": 600.0}, "a time limit", False),
        (3, {"max_time": 600.0}, "a time limit", False),
        (3, {CACHE: DynamicCache}, "the caller owns the cache", False),
    ],
)
def test_rows_in_lockstep(num_rows: int, options: dict[str, Any], reason: str, is_reported: bool, decided: Any) -> None:
    options = {name: value() if value is DynamicCache else value for name, value in options.items()}
    found = decided(num_rows, **options)
    assert reason in found.lockstep
    assert (found.plain, found.is_reported) == ("", is_reported)


@pytest.mark.parametrize("name", ["output_attentions", "output_hidden_states"])
def test_calls_that_inspect_the_model_fall_back_to_plain_decoding(name: str, decided: Any) -> None:
    found = decided(return_dict_in_generate=True, **{name: True})
    assert found.plain.startswith("attentions and hidden states of blocks are not recorded")


def test_a_cache_that_cannot_be_rolled_back(decided: Any) -> None:
    class OwnCache(StaticCache):
        pass

    found = decided(**{CACHE: OwnCache(config=pair()[0].config, max_cache_len=64)})
    assert "OwnCache" in found.plain
    assert found.fallback.endswith(", so this call falls back to plain decoding")
