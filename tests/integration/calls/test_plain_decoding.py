"""Without a draft or a cache, or if ranks must run the same passes, any call is plain decoding."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import uag
from tests.support.calls import GREEDY, MODES, PROMPTS, SAMPLED, assistant_of, compare, left_padded, pair
from tests.support.grids import covering

CACHES: list[dict[str, Any]] = [{}, {"cache_implementation": "static"}, {"use_cache": False}]


@covering("name, cache, num_rows, options", ("llama", "mistral"), CACHES, (1, 3), (GREEDY, SAMPLED))
def test_any_cache_without_a_draft(name: str, cache: dict[str, Any], num_rows: int, options: dict[str, Any]) -> None:
    target, tokenizer, _, _ = pair(name)
    compare(target, left_padded(PROMPTS[:num_rows]) | options | cache, uag.Assistant(None, None, tokenizer))


@pytest.fixture
def one_rank(tmp_path: Any) -> Iterator[None]:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("torch without gloo")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@MODES
@pytest.mark.parametrize("door", ["generate", "install"])
def test_synced_gpus_fall_back_to_plain_decoding(one_rank: None, door: str, options: dict[str, Any]) -> None:
    target, given = pair(eos=True)[0], left_padded(PROMPTS) | options | {"synced_gpus": True}
    with pytest.warns(UserWarning, match="synced_gpus"):
        stats = compare(target, given, assistant_of(eos=True), door=door)
    assert (stats.strategy, stats.num_draft_forwards) == ("plain", 0)
    assert "synced_gpus" in stats.fallbacks[0]


def test_no_cache_falls_back_to_plain_decoding_however_it_is_said() -> None:
    stats = compare(pair()[0], left_padded(PROMPTS) | GREEDY | {"use_cache": None}, assistant_of())
    assert any("plain decoding" in reason for reason in stats.fallbacks)
