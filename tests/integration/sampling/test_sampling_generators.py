"""The generator that sampling draws from."""

from functools import partial
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor

from tests.support.callers import OracleDrafter
from tests.support.calls import GREEDY, PROMPTS, SAMPLED, assistant_of, compare, left_padded, oracle, pair, seeded
from uag.assistant import Assistant
from uag.decoding import verdict
from uag.errors import OptionError, UnsupportedError
from uag.hf.models import head_size


def test_a_generator_of_the_callers_own(target: Any) -> None:
    for prompts in (PROMPTS[:1], PROMPTS):
        given = left_padded(prompts) | SAMPLED
        expected, state = seeded(99, target.generate, **given), torch.get_rng_state()
        for assistant in (oracle(target, None, expected, given["input_ids"].shape[1]), Assistant(None)):
            assistant.options.generator = torch.Generator().manual_seed(99)
            before = torch.manual_seed(5).get_state()
            assert assistant.generate(target, **given).tolist() == expected.tolist()
            assert torch.equal(assistant.options.generator.get_state(), state)
            assert torch.equal(torch.get_rng_state(), before)


def draws(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """A processor that draws from the default generator, as plain decoding lets it."""
    return scores + torch.rand(scores.shape)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_own_generator_selects_and_processors_draw_elsewhere(num_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In plain calls and assisted ones alike, as if transformers passed the generator to `torch.multinomial`."""
    target, inputs = pair()[0], left_padded(PROMPTS[:num_rows])
    options = inputs | SAMPLED | {"logits_processor": [draws], "return_dict_in_generate": True, "output_scores": True}
    results, multinomial = [], torch.multinomial
    for assistant in (None, Assistant(None), assistant_of()):
        generator = torch.Generator().manual_seed(99)
        torch.manual_seed(5)
        if assistant is None:
            with monkeypatch.context() as patch:
                patch.setattr(torch, "multinomial", partial(multinomial, generator=generator))
                output = target.generate(**options)
        else:
            assistant.options.generator = generator
            output = assistant.generate(target, **options)
        scores = torch.stack(output.scores)
        results.append((output.sequences, scores, generator.get_state(), torch.get_rng_state()))
    for result in results[1:]:
        assert torch.equal(result[0], results[0][0])
        torch.testing.assert_close(result[1], results[0][1], rtol=1e-4, atol=1e-4)
        assert torch.equal(result[2], results[0][2])
        assert torch.equal(result[3], results[0][3])


def test_criteria_of_a_plain_call_with_a_generator_receive_the_processed_scores() -> None:
    target, seen = pair()[0], []

    def criterion(input_ids: torch.Tensor, scores: Any) -> torch.Tensor:
        seen.append(None if scores is None else [step.max().item() for step in scores])
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    options = left_padded(PROMPTS[:1]) | SAMPLED | {"stopping_criteria": [criterion]}
    assistant = Assistant(None, generator=torch.Generator().manual_seed(1))
    output = assistant.generate(target, **options, return_dict_in_generate=True, output_scores=True)
    assert seen[-1] == [step.max().item() for step in output.scores]
    assert all(step.isfinite().sum() > 1 for step in output.scores)


def test_target_with_its_own_loop_refuses_a_generator(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(target), "_sample", lambda *args, **kwargs: target._sample(*args, **kwargs))
    with pytest.raises(UnsupportedError, match="has its own sampling loop"):
        Assistant(None, generator=torch.Generator()).generate(target, **left_padded(PROMPTS), **SAMPLED)


def test_drafter_whose_release_raises_leaves_generator_and_statistics_of_the_call() -> None:
    class Fails(OracleDrafter):
        def release(self) -> None:
            raise ValueError("the drafter's own error")

    target, _, _, _ = pair(eos=True)
    inputs = left_padded(PROMPTS[:1])  # its row ends early, after noise was drawn ahead
    expected = seeded(3, target.generate, **inputs, **SAMPLED)
    state = torch.get_rng_state()
    outputs = expected[:, inputs["input_ids"].shape[1] :].tolist()
    assistant = Assistant(None, drafter=Fails(outputs, head_size(target)), num_candidate_tokens=3)
    with pytest.raises(ValueError, match="the drafter's own error"):
        seeded(3, assistant.generate, target, **inputs, **SAMPLED)
    assert expected.shape[1] < inputs["input_ids"].shape[1] + SAMPLED["max_new_tokens"]
    assert torch.equal(torch.get_rng_state(), state)
    assert assistant.stats.num_output_tokens > 0
    assert assistant.stats.total_s > 0


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
