"""The caller's caches can be continued, end in plain decoding's state, and stay valid after an error."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache, StoppingCriteria, StoppingCriteriaList
from transformers.cache_utils import DynamicLayer
from transformers.generation.streamers import BaseStreamer

import uag
from tests.support.calls import (
    GREEDY,
    PROMPTS,
    SAMPLED,
    OracleDrafter,
    assistant_of,
    batch,
    compare,
    left_padded,
    oracle,
    pair,
    raises_at,
    seeded,
)
from tests.support.models import tiny_target


def layers_of(found: Any) -> list[torch.Tensor]:
    kinds = [found]
    if hasattr(found, "cross_attention_cache"):
        kinds = [found.self_attention_cache, found.cross_attention_cache]
    return [part for kind in kinds for layer in kind.layers for part in (layer.keys, layer.values)]


@pytest.mark.parametrize("only_new_ids", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "mistral", "gemma2"])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_cache_of_the_user_is_continued(name: str, num_rows: int, only_new_ids: bool) -> None:
    target, tokenizer = tiny_target(name)
    inputs = batch(tokenizer, num_rows)
    width = inputs["input_ids"].shape[1]
    options = {"do_sample": False, "return_dict_in_generate": True}
    text = target.config.get_text_config()

    def two_calls(generate: Any) -> tuple[list[Any], Any]:
        cache = DynamicCache(config=text)
        first = generate(**inputs, past_key_values=cache, max_new_tokens=12, **options)
        # The last output token is not in the cache yet; the caller may pass the whole text again, or only the new part.
        more = torch.cat([first.sequences[:, -1:] if only_new_ids else first.sequences, inputs["input_ids"][:, -4:]], 1)
        mask = torch.cat([inputs["attention_mask"], torch.ones((num_rows, 16), dtype=torch.long)], dim=-1)
        second = generate(
            input_ids=more, attention_mask=mask, past_key_values=first.past_key_values, max_new_tokens=12, **options
        )
        assert second.past_key_values is cache
        return [first.sequences.tolist(), second.sequences.tolist()], cache

    expected, expected_cache = two_calls(target.generate)
    calls = iter(expected)

    class Continuing(OracleDrafter):
        def start(self, prompts: Any, source_ids: Any = None) -> None:
            super().start(prompts, source_ids)
            self.outputs = [row[-12:] for row in next(calls)]

    head = target.get_output_embeddings().weight.shape[0]
    assistant = uag.Assistant(None, None, tokenizer, drafter=Continuing([], head), num_candidate_tokens=4)
    found, cache = two_calls(lambda **given: assistant.generate(target, **given))
    assert found == expected
    assert assistant.stats.num_accepted_tokens > 0
    assert cache.get_seq_length() == expected_cache.get_seq_length() == width + 12 + 4 + 12 - 1
    mask = torch.cat([inputs["attention_mask"], torch.ones((num_rows, 27), dtype=torch.long)], dim=-1).bool()
    for layer, expected_layer in zip(cache.layers, expected_cache.layers, strict=True):
        assert layer.keys.shape == expected_layer.keys.shape
        is_text = mask[:, -layer.keys.shape[2] :]  # the content of padded slots is undefined
        for kind in ("keys", "values"):
            found_rows = getattr(layer, kind).transpose(1, 2)[is_text]
            torch.testing.assert_close(
                found_rows, getattr(expected_layer, kind).transpose(1, 2)[is_text], rtol=1e-3, atol=1e-3
            )
        assert getattr(layer, "record_past", False) is False


@pytest.mark.parametrize("mode", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt2", "t5", "bart"])
def test_a_returned_cache_has_plain_decodings_layout(name: str, num_rows: int, mode: dict[str, Any]) -> None:
    target, tokenizer = tiny_target(name)
    inputs = left_padded(PROMPTS[:num_rows])
    given = {**inputs, **mode, "return_dict_in_generate": True}
    expected = seeded(1, target.generate, **given)
    start = 1 if target.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    drafter = OracleDrafter(expected.sequences[:, start:].tolist(), target.get_output_embeddings().weight.shape[0])
    assistant = uag.Assistant(None, None, tokenizer, drafter=drafter, num_candidate_tokens=4)
    found = seeded(1, assistant.generate, target, **given)
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert assistant.stats.num_accepted_tokens > 0
    mine, plain = found.past_key_values, expected.past_key_values
    assert type(mine) is type(plain)
    assert mine.get_seq_length() == plain.get_seq_length()
    keep = torch.ones_like(expected.sequences[:, :-1])
    if not target.config.is_encoder_decoder:
        keep[:, : inputs["attention_mask"].shape[1]] = inputs["attention_mask"]
    for left, right in zip(layers_of(mine), layers_of(plain), strict=True):
        assert left.shape == right.shape
        if left.shape[2] <= keep.shape[1]:  # the content of padded slots is undefined
            seen = keep[:, keep.shape[1] - left.shape[2] :, None].transpose(1, 2)[..., None]
            left, right = left * seen, right * seen
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)


class Closed(BaseStreamer):
    """Writes to a closed connection."""

    def put(self, _value: Any) -> None: ...

    def end(self) -> None:
        raise OSError("closed")


class Keeps(StoppingCriteria):
    """Keeps the cache's tensors, and a copy of the cache, at every step."""

    def __init__(self, cache: DynamicCache) -> None:
        self.cache = cache
        self.copies: list[tuple[torch.Tensor, DynamicCache]] = []
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, input_ids: torch.Tensor, _scores: Any, **_: Any) -> torch.Tensor:
        self.copies.append((input_ids.clone(), copy.deepcopy(self.cache)))
        self.kept += [(layer.keys, layer.keys.clone()) for layer in self.cache.layers]
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def test_the_callers_cache_is_whole_after_an_error() -> None:
    target, tokenizer = pair()[:2]
    cache = DynamicCache(config=target.config)
    inputs = left_padded(PROMPTS[:1])
    with pytest.raises(OSError, match="closed"):
        uag.Assistant(None, None, tokenizer).generate(
            target, **inputs, **GREEDY, past_key_values=cache, streamer=Closed()
        )
    assert {type(layer) for layer in cache.layers} == {DynamicLayer}
    assert all(layer.keys.untyped_storage().nbytes() == layer.keys.nbytes for layer in cache.layers)


@pytest.mark.parametrize("is_drafted", [False, True])
def test_what_others_keep_of_a_cache_stays_as_it_was(is_drafted: bool) -> None:
    target, tokenizer = pair()[:2]
    cache = DynamicCache(config=target.config)
    keeps = Keeps(cache)
    inputs = left_padded(PROMPTS[:1])
    given = {**inputs, **GREEDY, "past_key_values": cache, "stopping_criteria": StoppingCriteriaList([keeps])}
    expected = target.generate(**inputs, **GREEDY)
    assistant = assistant_of() if is_drafted else uag.Assistant(None, None, tokenizer)
    assert assistant.generate(target, **given).tolist() == expected.tolist()
    assert all(torch.equal(kept, before) for kept, before in keeps.kept)
    if not is_drafted:  # otherwise the copies contain candidates too
        ids, snapshot = keeps.copies[2]
        again = assistant_of().generate(
            target, input_ids=ids, attention_mask=torch.ones_like(ids), past_key_values=snapshot, do_sample=False,
            max_length=expected.shape[1], pad_token_id=0,
        )  # fmt: skip
        assert again.tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_an_error_in_the_middle_of_a_block_leaves_a_cache_to_go_on_from(name: str) -> None:
    target, tokenizer = tiny_target(name)
    ids = torch.tensor([PROMPTS[0]])
    expected = target.generate(ids, **GREEDY)
    assistant, cache = oracle(target, tokenizer, expected, ids.shape[1], spoil=0), DynamicCache(config=target.config)
    fails = raises_at(ids.shape[1] + 5)
    with pytest.raises(ValueError, match="the user's own error"):
        assistant.generate(target, ids, past_key_values=cache, logits_processor=[fails], **GREEDY)
    assert not any(getattr(layer, "record_past", False) for layer in cache.layers)
    known = expected[:, : cache.get_seq_length() + 1]
    options = GREEDY | {"max_new_tokens": expected.shape[1] - known.shape[1]}
    assert target.generate(known, past_key_values=cache, **options).equal(expected)


class EverySecondRound(OracleDrafter):
    """Proposes nothing in every second round."""

    num_asked = 0

    def propose(self, ask: Any) -> Any:
        self.num_asked += 1
        return super().propose(ask) if self.num_asked % 2 else [[] for _ in ask.limits]


def test_a_window_of_a_static_cache_is_restored_before_a_narrow_pass() -> None:
    target, _ = tiny_target("mistral")  # with a window of 9
    given = {"input_ids": torch.tensor([PROMPTS[2][:4]]), "cache_implementation": "static"} | GREEDY
    outputs = target.generate(**given)[:, 4:].tolist()
    drafter = EverySecondRound(outputs, target.get_output_embeddings().weight.shape[0], spoil=1.4)
    stats = compare(target, given, uag.Assistant(None, drafter=drafter, num_candidate_tokens=6))
    assert 0 < stats.num_accepted_tokens < stats.num_candidate_tokens
