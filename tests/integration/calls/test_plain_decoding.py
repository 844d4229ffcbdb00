"""Without a draft, or if ranks must run the same passes, any call is plain decoding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import StoppingCriteria, StoppingCriteriaList

import uag
from tests.support.calls import (
    GREEDY,
    NEW,
    PROMPTS,
    SAMPLED,
    Puts,
    assistant_of,
    compare,
    left_padded,
    pair,
    raises_at,
    seeded,
)
from tests.support.models import STATEFUL, tiny_model


@pytest.mark.parametrize("mode", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("name", ["llama", "mistral"])
@pytest.mark.parametrize(
    "options", [{}, {"cache_implementation": "static"}, {"use_cache": False}], ids=["dynamic", "static", "none"]
)
def test_without_a_draft_any_cache_will_do(
    name: str, options: dict[str, Any], num_rows: int, mode: dict[str, Any]
) -> None:
    target, tokenizer, _, _ = pair(name)
    compare(target, left_padded(PROMPTS[:num_rows]) | mode | options, uag.Assistant(None, None, tokenizer))


@pytest.mark.parametrize("name", ["mamba", "lfm2"])
@pytest.mark.parametrize("num_rows", [1, 2])
def test_without_a_draft_a_recurrent_target_will_do(name: str, num_rows: int) -> None:
    model_type, options = STATEFUL[name]
    target = tiny_model(model_type, 300, **options)
    compare(target, left_padded(PROMPTS[:num_rows]) | GREEDY, uag.Assistant(None))


@pytest.fixture
def one_rank(tmp_path: Any) -> Iterator[None]:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("torch without gloo")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("mode", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_synced_gpus_fall_back_to_plain_decoding(one_rank: None, num_rows: int, mode: dict[str, Any]) -> None:
    target, tokenizer, draft, draft_tokenizer = pair(eos=True)
    given = {**left_padded(PROMPTS[:num_rows]), **mode}
    puts, found = Puts(), Puts()
    expected = seeded(6, target.generate, **given, streamer=puts)
    assistant = assistant_of(eos=True)
    with pytest.warns(UserWarning, match="synced_gpus"):
        output = seeded(6, assistant.generate, target, **given, streamer=found, synced_gpus=True)
    assert output.tolist() == expected.tolist()
    assert found.puts == puts.puts
    assert found.num_ends == 1
    stats = assistant.stats
    assert (stats.strategy, stats.num_draft_forwards) == ("plain", 0)
    assert "synced_gpus" in stats.fallbacks[0]
    uag.install()
    try:
        options = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
        output = seeded(6, target.generate, **given, **options, synced_gpus=True)
    finally:
        uag.uninstall()
    assert output.tolist() == expected.tolist()
    assert "synced_gpus" in uag.last_stats(target).fallbacks[0]


class AfterThree(StoppingCriteria):
    """Ends the first row after three tokens."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.tensor([row == 0 and input_ids.shape[1] >= 7 + 3 for row in range(input_ids.shape[0])])


def test_padding_is_no_output() -> None:
    """Padding after the end of a row is not counted, no matter what ended it."""
    target, tokenizer, _, _ = pair("llama")
    assistant = uag.Assistant(None, None, tokenizer)
    criteria = StoppingCriteriaList([AfterThree()])
    assistant.generate(target, **left_padded(PROMPTS), **GREEDY, stopping_criteria=criteria, eos_token_id=648)
    assert [row.num_output_tokens for row in assistant.stats.rows] == [3, NEW, NEW]
    assert 0.0 < assistant.stats.first_token_s < assistant.stats.total_s
    assert list(map(len, assistant.stats.sources)) == [3, NEW, NEW]


def test_a_call_that_fails_is_counted() -> None:
    target, tokenizer, _, _ = pair("llama")
    assistant = uag.Assistant(None, None, tokenizer)
    given = left_padded(PROMPTS) | GREEDY | {"stopping_criteria": [AfterThree()], "logits_processor": [raises_at(11)]}
    with pytest.raises(ValueError, match="the user's own error"):
        assistant.generate(target, **given, eos_token_id=648)
    assert [row.num_output_tokens for row in assistant.stats.rows] == [3, 4, 4]
    assert assistant.stats.num_target_forwards == 4
