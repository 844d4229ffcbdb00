"""One query at a time: the keys that plain decoding shows each query of a block, and attention over just those."""

from __future__ import annotations

from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from uag.decoding.one_query import OneQuery, SingleForm, key_spans
from uag.stats import Stats


def attend(*args: Any, **kwargs: Any) -> torch.Tensor:
    """As models call it: looked up each time."""
    found: torch.Tensor = functional.scaled_dot_product_attention(*args, **kwargs)
    return found


def causal(num_queries: int, num_keys: int) -> torch.Tensor:
    return torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)


@pytest.mark.parametrize(
    ("mask", "spans"),
    [
        pytest.param(causal(3, 8), [(0, 6), (0, 7), (0, 8)], id="each one key more"),
        pytest.param(causal(3, 8).triu(2), [(2, 6), (3, 7), (4, 8)], id="window"),
        pytest.param(causal(3, 8).triu(-1), [(0, 6), (0, 7), (1, 8)], id="window that begins to move"),
        pytest.param(torch.ones(3, 5, dtype=torch.bool), [(0, 5)] * 3, id="another text"),
        pytest.param(torch.tensor([[True, True, False]] * 2), [(0, 3)] * 2, id="another text, padded"),
        pytest.param(torch.tensor([[False, True]]), [(0, 2)] * 3, id="one line for all"),
        pytest.param(causal(2, 6) & torch.tensor([0, 1, 1, 1, 1, 1], dtype=torch.bool), [(0, 5), (0, 6)], id="padding"),
    ],
)
@pytest.mark.parametrize("is_added", [False, True], ids=["truth values", "numbers to add"])
def test_spans_are_the_keys_of_plain_decoding(mask: torch.Tensor, spans: list[Any], is_added: bool) -> None:
    given = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min) if is_added else mask
    assert key_spans(given, len(spans)) == spans
    assert key_spans(given.expand(2, 1, *given.shape), len(spans)) == spans


def test_a_batch_keeps_padding_that_only_some_rows_have() -> None:
    rows = torch.stack([causal(2, 5), causal(2, 5) & (torch.arange(5) > 1)])[:, None]
    assert key_spans(rows, 2) == [(0, 4), (0, 5)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_cached", [7, 30, 200])
def test_a_block_attends_bit_for_bit_as_single_queries_do(num_cached: int, dtype: torch.dtype) -> None:
    torch.manual_seed(num_cached)
    width = 6
    query = torch.randn(1, 4, width, 32, dtype=dtype)
    key, value = (torch.randn(1, 2, num_cached + width, 32, dtype=dtype) for _ in range(2))
    ends = [num_cached + place + 1 for place in range(width)]
    alone = [
        attend(query[:, :, place : place + 1], key[:, :, :end], value[:, :, :end], enable_gqa=True)
        for place, end in enumerate(ends)
    ]
    mask = causal(width, num_cached + width)[None, None]
    with OneQuery():
        block = attend(query, key, value, attn_mask=mask, enable_gqa=True)
        again = attend(query, key, value, mask, 0.0, False, enable_gqa=True)
    assert torch.equal(block, torch.cat(alone, dim=2))
    assert torch.equal(block, again)


def test_a_whole_prompt_and_another_text_are_left_alone() -> None:
    query, key, value = (torch.randn(1, 2, length, 8) for length in (4, 4, 4))
    with OneQuery():
        torch.testing.assert_close(attend(query, key, value, is_causal=True), _by_hand(query, key, value, causal(4, 4)))
        torch.testing.assert_close(attend(query, key, value), _by_hand(query, key, value, torch.ones(4, 4).bool()))


def _by_hand(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
    attended: torch.Tensor = scores.softmax(-1) @ value
    return attended


def test_a_mask_that_is_gone_is_not_taken_for_another_at_its_place() -> None:
    query, key, value = (torch.randn(1, 1, 2, 8), *(torch.randn(1, 1, 6, 8) for _ in range(2)))
    with OneQuery():
        for _ in range(20):
            for mask in (causal(2, 6), causal(2, 6).triu(2)):
                given = mask.clone()[None, None]
                torch.testing.assert_close(attend(query, key, value, given), _by_hand(query, key, value, mask))
                del given  # the next one may lie at its place


def test_the_function_is_put_back_and_other_threads_keep_it() -> None:
    own = functional.scaled_dot_product_attention
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 4, length, 32, dtype=torch.bfloat16) for length in (6, 518, 518))
    mask = causal(6, 518)[None, None]
    whole, found = own(query, key, value, attn_mask=mask), []

    def elsewhere() -> None:
        found.append(attend(query, key, value, attn_mask=mask))

    def both() -> None:
        with OneQuery():
            with OneQuery():
                pass
            other = Thread(target=elsewhere)
            other.start()
            other.join()
            elsewhere()
            raise KeyError

    with pytest.raises(KeyError):
        both()
    assert functional.scaled_dot_product_attention is own
    assert torch.equal(found[0], whole)
    assert not torch.equal(found[1], whole) or torch.equal(_single(query, key, value), whole)


def _single(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    ends = [key.shape[2] - query.shape[2] + place + 1 for place in range(query.shape[2])]
    alone = [attend(query[:, :, n : n + 1], key[:, :, :end], value[:, :, :end]) for n, end in enumerate(ends)]
    return torch.cat(alone, dim=2)


class Target(torch.nn.Module):
    """No more of a model than what is asked of one."""

    dtype, device = torch.bfloat16, torch.device("cpu")


def form_of(model: Any, stats: Stats, is_wanted: bool = True) -> SingleForm:
    ranks = SimpleNamespace(tell=lambda value: value)
    call: Any = SimpleNamespace(model=model, ranks=ranks, exact_half_precision=is_wanted)
    return SingleForm(call, stats)


def test_a_target_whose_blocks_differ_is_given_up_and_remembered() -> None:
    model, stats = Target(), Stats()
    form = form_of(model, stats)
    logits = torch.randn(2, 3, 5)
    assert form.is_due(3)
    assert not form.is_due(1)
    form.learn(logits[:, :1], logits)
    assert (form.is_on, stats.fallbacks) == (True, [])
    form.learn(logits[:, :1] + 1e-6, logits)
    later = Stats()
    assert (form.is_on, form_of(model, later).is_on) == (False, False)
    for found in (stats, later):
        assert len(found.fallbacks) == 1
        assert "exact_half_precision" in found.fallbacks[0]
        assert "Target in bfloat16 on cpu" in found.fallbacks[0]


def test_trials_end_and_are_counted_over_calls() -> None:
    model, logits = Target(), torch.randn(1, 3, 5)
    for _ in range(4):
        form = form_of(model, Stats())
        assert form.is_due(3)
        form.learn(logits[:, :1], logits)
    assert form.is_on
    assert not form.is_due(3)
    assert not form_of(model, Stats()).is_due(3)


def test_it_is_for_half_precision_where_it_is_asked_for() -> None:
    model = Target()
    assert not form_of(model, Stats(), is_wanted=False).is_on
    model.dtype = torch.float32
    stats = Stats()
    assert not form_of(model, stats).is_on
    assert not stats.fallbacks
