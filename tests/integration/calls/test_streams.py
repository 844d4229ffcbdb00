"""A streamer gets the same tokens as in plain decoding, in the same order, and ends exactly once, even after errors."""

from __future__ import annotations

import inspect
import threading
from functools import partial
from typing import Any

import pytest
import torch
from transformers import DynamicCache, StoppingCriteria, StoppingCriteriaList, TextIteratorStreamer, TextStreamer

import uag
from tests.support.calls import (
    PROMPTS,
    OracleDrafter,
    Puts,
    Watches,
    assistant_of,
    batch,
    compare,
    left_padded,
    pair,
    raises_at,
    seeded,
)

NEW = 30
GREEDY: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False}
SAMPLED: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": True, "top_k": 0, "pad_token_id": 0}


@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_streamer_gets_what_plain_decoding_puts(installed: None, num_rows: int) -> None:
    """Through every entry point; transformers does not pass a streamer to a callable."""
    target, tokenizer, draft, draft_tokenizer = pair("gpt2")
    inputs = batch(tokenizer, num_rows)
    expected = Puts()
    target.generate(**inputs, **GREEDY, streamer=expected)
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=4)
    own_draft = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
    doors = [partial(assistant.generate, target), partial(target.generate, **own_draft)]
    for generate in (target.generate, inspect.unwrap(type(target).generate).__get__(target)):
        for custom in (assistant, assistant.__call__, uag.Assistant(None, None, tokenizer)):
            doors.append(partial(generate, custom_generate=custom))
    for door in doors:
        found = Puts()
        door(**inputs, **GREEDY, streamer=found)
        assert found.puts == expected.puts
        assert found.num_ends == expected.num_ends == 1


def test_a_streamer_of_an_outer_call_is_not_the_inner_calls() -> None:
    target, tokenizer, draft, _ = pair("gpt2")
    inner, outer = uag.Assistant(None, None, tokenizer), Puts()

    class Generates(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            draft.generate(**batch(tokenizer), **GREEDY, custom_generate=inner)
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    target.generate(
        **batch(tokenizer), **GREEDY | {"max_new_tokens": 2}, streamer=outer, stopping_criteria=[Generates()]
    )
    assert len(outer.puts) == 3  # the prompt and two tokens
    assert outer.num_ends == 1


@pytest.mark.parametrize("in_lockstep", [False, True])
@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("eos", [False, True])
def test_the_same_puts_in_the_same_order(eos: bool, num_rows: int, options: dict[str, Any], in_lockstep: bool) -> None:
    target = pair(eos=eos)[0]
    given = {**left_padded(PROMPTS[:num_rows]), **options}
    if in_lockstep:
        given["stopping_criteria"] = StoppingCriteriaList([Watches()])
    expected, found = Puts(), Puts()
    ids = seeded(3, target.generate, **given, streamer=expected)
    output = seeded(3, assistant_of(eos=eos).generate, target, **given, streamer=found)
    assert output.tolist() == ids.tolist()
    assert found.puts == expected.puts
    assert len(found.puts) == ids.shape[1] - given["input_ids"].shape[1] + 1
    assert found.num_ends == expected.num_ends == 1


@pytest.mark.parametrize("fail_at", range(3, 12))
def test_a_stream_that_breaks_off_leaves_no_candidate_in_the_cache(fail_at: int) -> None:
    """The caller continues with that cache: it may contain output, but no rejected candidates."""
    target = pair()[0]
    inputs = left_padded(PROMPTS[:1])
    prompt = inputs["input_ids"]
    written = target.generate(**inputs, **GREEDY)[0].tolist()
    drafter = OracleDrafter([written[prompt.shape[1] :]], target.config.vocab_size, spoil=3)
    assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=6)
    cache = DynamicCache(config=target.config)
    with pytest.raises(ConnectionError, match="the reader has gone"):
        assistant.generate(target, **inputs, **GREEDY, past_key_values=cache, streamer=Puts(fail_at=fail_at))
    assert assistant.stats.num_candidate_tokens > 0
    held = cache.get_seq_length()
    assert held == prompt.shape[1] + assistant.stats.num_output_tokens - 1
    with torch.no_grad():
        fresh = target(torch.tensor([written[:held]]), use_cache=True).past_key_values
    for layer, other in zip(cache.layers, fresh.layers, strict=True):
        torch.testing.assert_close(layer.keys, other.keys, atol=1e-5, rtol=0)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("place", ["logits_processor", "stopping_criteria", "streamer"])
def test_a_stream_ends_once_whoever_fails(place: str, num_rows: int) -> None:
    target = pair()[0]
    inputs = left_padded(PROMPTS[:num_rows])
    assistant = assistant_of()
    expected, found = Puts(6 if place == "streamer" else -1), Puts(6 if place == "streamer" else -1)
    for generate, streamer in ((target.generate, expected), (assistant.generate, found)):
        given: dict[str, Any] = {**inputs, **GREEDY, "streamer": streamer}
        if place != "streamer":
            given[place] = [raises_at(12, place=place)]
        arguments = () if streamer is expected else (target,)
        with pytest.raises((ValueError, ConnectionError), match=r"the user's own error|the reader has gone"):
            generate(*arguments, **given)
    assert found.puts == expected.puts
    assert found.num_ends == 1
    compare(target, left_padded(PROMPTS) | GREEDY, assistant)  # and the next call works


def test_text_streamers(capsys: pytest.CaptureFixture[str]) -> None:
    target, tokenizer, _, _ = pair()
    inputs = left_padded(PROMPTS[:1])
    target.generate(**inputs, **GREEDY, streamer=TextStreamer(tokenizer))
    expected = capsys.readouterr().out
    assistant_of().generate(target, **inputs, **GREEDY, streamer=TextStreamer(tokenizer))
    assert capsys.readouterr().out == expected
    streamer = TextIteratorStreamer(tokenizer, timeout=60)
    arguments = {**inputs, **GREEDY, "streamer": streamer}
    thread = threading.Thread(target=assistant_of().generate, args=(target,), kwargs=arguments)
    thread.start()
    pieces = list(streamer)
    thread.join(60)
    assert "".join(pieces) + "\n" == expected
    assert len(pieces) > 2
