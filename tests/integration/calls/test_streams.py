"""A streamer gets the same tokens as in plain decoding, in the same order, and ends exactly once, even after errors."""

import inspect
import types
from functools import partial
from typing import Any

import pytest
import torch
from transformers import GenerationMixin, StoppingCriteria

import uag
from tests.support.callers import Puts, Watches, raises_at
from tests.support.calls import (
    GREEDY,
    PROMPTS,
    ROWS,
    SAMPLED,
    assistant_of,
    batch,
    compare,
    draft_options,
    left_padded,
    pair,
)
from tests.support.grids import covering
from uag.errors import CompatibilityError


@ROWS
def test_a_streamer_gets_what_plain_decoding_puts(installed: None, num_rows: int) -> None:
    """Through every entry point; transformers does not pass a streamer to a callable."""
    target, tokenizer = pair("gpt2")[:2]
    inputs = batch(tokenizer, num_rows)
    expected = Puts()
    target.generate(**inputs, **GREEDY, streamer=expected)
    assistant = assistant_of("gpt2")
    doors = [partial(assistant.generate, target), partial(target.generate, **draft_options("gpt2"))]
    for generate in (target.generate, inspect.unwrap(type(target).generate).__get__(target)):
        for custom in (assistant, assistant.__call__, uag.Assistant(None, None, tokenizer)):
            doors.append(partial(generate, custom_generate=custom))
    for door in doors:
        found = Puts()
        door(**inputs, **GREEDY, streamer=found)
        assert found.puts == expected.puts
        assert found.num_ends == expected.num_ends == 1


@covering("eos, num_rows, options, in_lockstep", (False, True), (1, 3), (GREEDY, SAMPLED), (False, True))
def test_the_same_puts_in_the_same_order(eos: bool, num_rows: int, options: dict[str, Any], in_lockstep: bool) -> None:
    target = pair(eos=eos)[0]
    given = left_padded(PROMPTS[:num_rows]) | options | {"streamer": Puts()}
    if in_lockstep:
        given["stopping_criteria"] = [Watches()]
    compare(target, given, assistant_of(eos=eos))


@covering("place, num_rows", ("logits_processor", "stopping_criteria", "streamer"), (1, 3), strength=1)
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


def test_the_streamer_is_found_whatever_generate_is_called_and_is_not_an_inner_calls() -> None:
    """By the public names of its parameters, for the model of the call."""
    target, tokenizer, draft, _ = pair("gpt2")
    given, assistant = batch(tokenizer) | GREEDY, uag.Assistant(None, None, tokenizer)
    expected, found, outer = Puts(), Puts(), Puts()

    def criterion(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        draft.generate(**given, custom_generate=assistant)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    target.generate(**given | {"max_new_tokens": 2}, streamer=outer, stopping_criteria=[criterion])
    assert (len(outer.puts), outer.num_ends) == (3, 1)  # the prompt and two tokens
    target.generate(**given, streamer=expected)
    original = inspect.unwrap(type(target).generate)
    renamed = types.FunctionType(
        original.__code__.replace(co_name="renamed"), original.__globals__, "renamed", original.__defaults__
    )
    renamed.__kwdefaults__ = original.__kwdefaults__
    with torch.no_grad():
        renamed(target, **given, custom_generate=assistant, streamer=found)
    assert (found.puts, found.num_ends) == (expected.puts, 1)


def test_a_release_whose_generate_hides_the_streamer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def generate(self: Any, inputs: Any = None, stream_to: Any = None, custom_generate: Any = None) -> None: ...

    generate.__module__ = GenerationMixin.__module__  # a wrapper of another library is not checked
    monkeypatch.setattr(GenerationMixin, "generate", generate)
    with pytest.raises(CompatibilityError, match="lacks its parameter streamer="):
        uag.Assistant(None)


def test_a_streamer_of_an_outer_call_is_not_the_inner_calls() -> None:
    target, tokenizer, draft, _ = pair("gpt2")
    inner, outer = uag.Assistant(None, None, tokenizer), Puts()

    class Generates(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            draft.generate(**batch(tokenizer), **GREEDY, custom_generate=inner)
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    given = batch(tokenizer) | GREEDY | {"max_new_tokens": 2}
    target.generate(**given, streamer=outer, stopping_criteria=[Generates()])
    assert len(outer.puts) == 3  # the prompt and two tokens
    assert outer.num_ends == 1
