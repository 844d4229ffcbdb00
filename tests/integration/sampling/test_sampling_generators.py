"""The generator that sampling draws from."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor

from tests.support.calls import GREEDY, PROMPTS, SAMPLED, assistant_of, compare, left_padded, oracle, pair, seeded
from uag.assistant import Assistant
from uag.decoding import verdict
from uag.errors import OptionError


def test_a_generator_of_the_callers_own(target: Any) -> None:
    for prompts in (PROMPTS[:1], PROMPTS):
        given = left_padded(prompts) | SAMPLED
        expected, state = seeded(99, target.generate, **given), torch.get_rng_state()
        for assistant in (oracle(target, None, expected, given["input_ids"].shape[1]), Assistant(None)):
            assistant.generator = torch.Generator().manual_seed(99)
            before = torch.manual_seed(5).get_state()
            assert assistant.generate(target, **given).tolist() == expected.tolist()
            assert torch.equal(assistant.generator.get_state(), state)
            assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_what_a_processor_draws_before_it_raises_counts(num_rows: int) -> None:
    """The generator's final state is plain decoding's."""

    class DrawsAndFails(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            torch.rand(3)
            if input_ids.shape[1] == 12:
                raise ValueError("the user's own error")
            return scores

    target, inputs = pair()[0], left_padded(PROMPTS[:num_rows])
    states = []
    for generate in (target.generate, partial(assistant_of().generate, target)):
        with pytest.raises(ValueError, match="the user's own error"):
            seeded(3, generate, **inputs, **SAMPLED, logits_processor=[DrawsAndFails()])
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_a_generator_of_another_device_is_refused(target: Any) -> None:
    class Elsewhere(torch.Generator):
        device = torch.device("meta")

    assistant = Assistant(None, generator=Elsewhere())
    with pytest.raises(OptionError, match="The generator is on 'meta' and the input ids are on 'cpu'"):
        assistant.generate(target, **left_padded(PROMPTS), **SAMPLED)


def test_where_multinomial_is_no_argmax_sampling_is_plain(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """MPS has its own kernel, with which the output must not change either."""
    monkeypatch.setattr(verdict, "multinomial_is_argmax", lambda _: False)
    inputs = left_padded(PROMPTS)
    with pytest.warns(UserWarning, match=r"multinomial on cpu is not argmax\(probs / noise\)"):
        assert compare(target, inputs | SAMPLED).num_candidate_tokens == 0
    assert compare(target, inputs | GREEDY).num_accepted_tokens > 0
