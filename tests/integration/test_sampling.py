"""Sampling with an assistant is plain sampling: the same ids and the same final state of the generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    SynthIDTextWatermarkingConfig,
    WatermarkingConfig,
)

import uag
from tests.support.calls import OracleDrafter, left_padded
from tests.support.models import tiny_draft, tiny_model, tiny_target
from uag.assistant import Assistant
from uag.decoding import plain as plain_calls
from uag.errors import OptionError
from uag.sampling import choice
from uag.sampling.noise import NoiseTape

EOS_IDS = list(range(7, 649, 19))
PROMPTS = [[5, 9, 14, 3, 27], [8, 6], [12, 40, 33, 18, 21, 9, 4]]
NUM_TOKENS = 24
ROUNDING = 5e-5  # these models' scores reach 60, ten times a trained model's


def allowed_tokens(row: int, ids: torch.Tensor) -> list[int]:
    """A prefix constraint that depends on the row and on the text."""
    return [i for i in range(5, 90) if (i + int(ids[-1]) + row) % 3]


SYNTH_ID = {"keys": [654, 400, 836, 123, 340, 443, 597, 160, 57, 29], "ngram_len": 4}

OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "temperature": {"temperature": 0.6},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 9},
    "top_p": {"top_p": 0.8},
    "top_h": {"top_h": 0.6},
    "min_p": {"min_p": 0.1},
    "typical_p": {"typical_p": 0.8},
    "epsilon_cutoff": {"epsilon_cutoff": 0.01},
    "eta_cutoff": {"eta_cutoff": 0.01},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.5},
    "no_repeat_ngram": {"no_repeat_ngram_size": 2, "top_k": 6},
    "encoder_no_repeat_ngram": {"encoder_no_repeat_ngram_size": 1},
    "bad_words": {"bad_words_ids": [[9], [14, 3], [21]]},
    "sequence_bias": {"sequence_bias": {(9,): 2.0, (14, 3): 3.0, (40,): -5.0}},
    "prefix_allowed_tokens": {"prefix_allowed_tokens_fn": allowed_tokens},
    "watermark": {"watermarking_config": WatermarkingConfig(bias=2.5)},
    "watermark_selfhash": {"watermarking_config": WatermarkingConfig(seeding_scheme="selfhash", context_width=3)},
    "synth_id": {"watermarking_config": SynthIDTextWatermarkingConfig(**SYNTH_ID)},
    "guidance": {"guidance_scale": 1.4},
    "min_length": {"min_length": 14},
    "min_new_tokens": {"min_new_tokens": 9},
    "forced_bos": {"forced_bos_token_id": 40},
    "forced_eos": {"forced_eos_token_id": 45},
    "exponential_decay": {"exponential_decay_length_penalty": (6, 1.4)},
    "suppress": {"suppress_tokens": [3, 9, 18]},
    "begin_suppress": {"begin_suppress_tokens": [3, 9, 18]},
    "remove_invalid_values": {"remove_invalid_values": True},
    "renormalize_logits": {"renormalize_logits": True, "top_k": 5},
    "many": {
        "temperature": 0.8,
        "top_k": 30,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "min_new_tokens": 5,
    },
}
"""Every sampling option that plain `generate` of transformers 5.23 honours."""


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_target("llama", eos_id=EOS_IDS)[0]


def sample(generate: Callable[..., Any], seed: int, **options: Any) -> tuple[Any, torch.Tensor]:
    """Run one call; returns its output and the state of the default generator after it."""
    torch.manual_seed(seed)
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": NUM_TOKENS, "pad_token_id": 0} | options
    return generate(**options), torch.get_rng_state()


def oracle(target: Any, ids: torch.Tensor, length: int, spoil: int = 4, **options: Any) -> Assistant:
    """An assistant that drafts plain decoding's own output, with wrong ids in it."""
    outputs = [row + [0] * NUM_TOKENS for row in ids[:, length:].tolist()]
    drafter = OracleDrafter(outputs, target.config.vocab_size, spoil)
    return Assistant(None, drafter=drafter, **{"num_candidate_tokens": 6} | options)


def assert_same(target: Any, prompts: list[list[int]], seed: int, spoil: int = 4, **options: Any) -> uag.Stats:
    """Compare a call with an oracle's drafts to plain decoding."""
    inputs = left_padded(prompts)
    expected, state = sample(target.generate, seed, **inputs, **options)
    assistant = oracle(target, expected, inputs["input_ids"].shape[1], spoil)
    assistant.generate = _with_target(assistant, target)  # type: ignore[method-assign]
    output, state_after = sample(assistant.generate, seed, **inputs, **options)
    assert output.tolist() == expected.tolist()
    assert torch.equal(state, state_after)
    return assistant.stats


def _with_target(assistant: Assistant, target: Any) -> Callable[..., Any]:
    generate = assistant.generate
    return lambda **options: generate(target, **options)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(target: Any, name: str, num_rows: int) -> None:
    totals = [0, 0]
    lengths: set[int] = set()
    for seed in range(3):
        stats = assert_same(target, PROMPTS[-num_rows:], seed, **OPTIONS[name])
        totals[0] += stats.num_accepted_tokens
        totals[1] += stats.num_candidate_tokens
        lengths.update(len(row) for row in stats.origins)
    assert 0 < totals[0] < totals[1]
    assert len(lengths) > 1, "no row ended early"


def test_num_return_sequences(target: Any) -> None:
    for options in ({}, {"repetition_penalty": 1.3}, {"encoder_no_repeat_ngram_size": 1}, {"top_p": 0.7}):
        assert assert_same(target, PROMPTS[:1], 5, num_return_sequences=4, **options).num_accepted_tokens
        assert assert_same(target, PROMPTS, 6, num_return_sequences=2, **options).num_accepted_tokens


@pytest.mark.parametrize("length", [1, 2, 5, 11, None])
def test_every_draft_length(target: Any, length: int | None) -> None:
    inputs = left_padded(PROMPTS)
    for seed in range(4):
        expected, state = sample(target.generate, seed, **inputs)
        assistant = oracle(target, expected, inputs["input_ids"].shape[1], num_candidate_tokens=length)
        output, state_after = sample(_with_target(assistant, target), seed, **inputs)
        assert output.tolist() == expected.tolist()
        assert torch.equal(state, state_after)


def test_a_draft_with_another_tokenizer(target: Any) -> None:
    _, tokenizer = tiny_target("llama", eos_id=EOS_IDS)
    draft, draft_tokenizer = tiny_draft("llama")
    assistant = Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=4)
    uag.install()
    try:
        for prompts in (PROMPTS[:1], PROMPTS):
            for seed in range(3):
                inputs = left_padded(prompts)
                expected, state = sample(target.generate, seed, **inputs, temperature=0.8)
                doors: list[Callable[..., Any]] = [
                    _with_target(assistant, target),
                    lambda **options: target.generate(custom_generate=assistant, **options),
                    lambda **options: target.generate(
                        assistant_model=draft, tokenizer=tokenizer, assistant_tokenizer=draft_tokenizer, **options
                    ),
                ]
                for door in doors:
                    output, state_after = sample(door, seed, **inputs, temperature=0.8)
                    assert output.tolist() == expected.tolist()
                    assert torch.equal(state, state_after)
    finally:
        uag.uninstall()


def test_without_a_draft(target: Any) -> None:
    inputs = left_padded(PROMPTS)
    expected, state = sample(target.generate, 1, **inputs)
    output, state_after = sample(_with_target(Assistant(None), target), 1, **inputs)
    assert output.tolist() == expected.tolist()
    assert torch.equal(state, state_after)


# ---------------------------------------------------------------------- what the user's own code sees


class Recorder(LogitsProcessor):
    """Keeps state, writes into its scores, and draws from the generator: everything that plain decoding allows."""

    def __init__(self, draws: bool = True) -> None:
        self.calls: list[tuple[list[list[int]], torch.Tensor]] = []
        self.draws = draws

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls.append((input_ids.tolist(), scores.clone()))
        if self.draws:
            scores += 0.3 * torch.randn(scores.shape)
        scores[:, len(self.calls) % scores.shape[-1]] += 2.0
        return scores


class Counter(StoppingCriteria):
    """Ends a row at its third even id, and draws from the generator."""

    def __init__(self) -> None:
        self.calls: list[list[list[int]]] = []
        self.num_scores: list[int | None] = []
        self.num_even: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.calls.append(input_ids.tolist())
        self.num_scores.append(None if scores is None else len(scores))
        torch.rand(2)
        even = (input_ids[:, -1] % 2 == 0).long()
        self.num_even = even if self.num_even is None else self.num_even + even
        return self.num_even >= 6


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("draws", [False, True])
def test_processors_and_criteria_of_the_user(target: Any, num_rows: int, draws: bool) -> None:
    inputs = left_padded(PROMPTS[:num_rows])
    accepted = 0
    for seed in range(3):
        seen = []
        expected: torch.Tensor | None = None
        for door in ("plain", "ours"):
            recorder, counter = Recorder(draws), Counter()
            options = {
                "logits_processor": LogitsProcessorList([recorder]),
                "stopping_criteria": StoppingCriteriaList([counter]),
                "top_p": 0.95,
            }
            generate = target.generate
            if expected is not None:
                assistant = oracle(target, expected, inputs["input_ids"].shape[1])
                generate = _with_target(assistant, target)
            output, state = sample(generate, seed, **inputs, **options)
            seen.append((output, state, recorder, counter))
            expected = output
            if door == "ours":
                accepted += assistant.stats.num_accepted_tokens
                assert "Recorder, Counter may keep state" in assistant.stats.fallbacks[0]
        (plain, state, recorder, counter), (ours, our_state, our_recorder, our_counter) = seen
        assert ours.tolist() == plain.tolist()
        assert torch.equal(state, our_state)
        assert [ids for ids, _ in our_recorder.calls] == [ids for ids, _ in recorder.calls]
        for (_, scores), (_, our_scores) in zip(recorder.calls, our_recorder.calls, strict=True):
            torch.testing.assert_close(our_scores, scores, atol=ROUNDING, rtol=1e-5)
        assert our_counter.calls == counter.calls
        assert our_counter.num_scores == counter.num_scores
    assert accepted > 0


class Doubles(LogitsProcessor):
    """Hands on float64: then plain sampling draws float64 noise, which takes other numbers from the generator."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.double() if input_ids.shape[1] % 3 else scores


class Cuts(LogitsProcessor):
    """Hands on fewer scores than the head has."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores[:, : 80 + input_ids.shape[1] % 2]


@pytest.mark.parametrize("processor", [Doubles(), Cuts()], ids=["float64", "narrow"])
def test_scores_of_another_kind(target: Any, processor: LogitsProcessor) -> None:
    for prompts in (PROMPTS[:1], PROMPTS):
        assert assert_same(target, prompts, 3, logits_processor=LogitsProcessorList([processor])).num_accepted_tokens


class Fails(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] == 17:
            raise ValueError("the user's own error")
        return scores


def test_an_error_of_the_users_code_arrives(target: Any) -> None:
    for drafter in (False, True):
        inputs = left_padded(PROMPTS[:1])
        expected, _ = sample(target.generate, 3, **inputs, eos_token_id=None)
        generate = _with_target(oracle(target, expected, 5), target) if drafter else target.generate
        states = []
        with pytest.raises(ValueError, match="the user's own error"):
            sample(generate, 3, **inputs, eos_token_id=None, logits_processor=LogitsProcessorList([Fails()]))
        states.append(torch.get_rng_state())
    assert torch.equal(states[0], states[-1])


class BansAll(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, -torch.inf) if input_ids.shape[1] == 12 else scores


def test_no_token_left_is_an_error_as_in_plain_decoding(target: Any) -> None:
    inputs = left_padded(PROMPTS[:1])
    expected, _ = sample(target.generate, 3, **inputs, eos_token_id=None)
    for generate in (target.generate, _with_target(oracle(target, expected, 5), target)):
        with pytest.raises(RuntimeError, match="probability tensor contains either"):
            sample(generate, 3, **inputs, eos_token_id=None, logits_processor=LogitsProcessorList([BansAll()]))
    # Every token suppressed: the position-free path.
    everything = {"suppress_tokens": list(range(target.config.vocab_size))}
    for generate in (target.generate, _with_target(oracle(target, expected, 5), target)):
        with pytest.raises(RuntimeError, match="probability tensor contains either"):
            sample(generate, 3, **inputs, **everything)


# ---------------------------------------------------------------------- outputs


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("processors", [[], [Recorder]])
def test_scores_logits_and_states(target: Any, num_rows: int, processors: list[type]) -> None:
    target.set_attn_implementation("eager")
    inputs = left_padded(PROMPTS[:num_rows])
    wanted = {
        name: True
        for name in (
            "return_dict_in_generate", "output_scores", "output_logits", "output_attentions", "output_hidden_states",
        )
    }  # fmt: skip

    def options() -> dict[str, Any]:
        return wanted | {
            "logits_processor": LogitsProcessorList([kind() for kind in processors]), "temperature": 0.7, "top_k": 40
        }  # fmt: skip

    expected, state = sample(target.generate, 2, **inputs, **options())
    assistant = oracle(target, expected.sequences, inputs["input_ids"].shape[1])
    output, state_after = sample(_with_target(assistant, target), 2, **inputs, **options())
    assert assistant.stats.num_accepted_tokens > 0
    assert torch.equal(state, state_after)
    assert output.sequences.tolist() == expected.sequences.tolist()
    for name in ("scores", "logits"):
        mine, plain = getattr(output, name), getattr(expected, name)
        assert len(mine) == len(plain)
        for left, right in zip(mine, plain, strict=True):
            assert left.dtype == right.dtype
            torch.testing.assert_close(left, right, atol=ROUNDING, rtol=1e-5)
    for name in ("attentions", "hidden_states"):
        mine, plain = getattr(output, name), getattr(expected, name)
        assert [[part.shape for part in step] for step in mine] == [[part.shape for part in step] for step in plain]
        for step, plain_step in zip(mine, plain, strict=True):
            for left, right in zip(step, plain_step, strict=True):
                # What a padded position sees means nothing: its mask is empty.
                real = inputs["attention_mask"].bool() if left.shape[-2] > 1 else torch.ones(left.shape[0], 1).bool()
                by_position = left.ndim - 2
                left, right = left.movedim(by_position, 1)[real], right.movedim(by_position, 1)[real]
                torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)


# ---------------------------------------------------------------------- generators


def test_a_generator_of_the_callers_own(target: Any) -> None:
    for prompts in (PROMPTS[:1], PROMPTS):
        inputs = left_padded(prompts)
        expected, state = sample(target.generate, 99, **inputs)
        generator = torch.Generator().manual_seed(99)
        assistant = oracle(target, expected, inputs["input_ids"].shape[1], generator=generator)
        torch.manual_seed(5)
        before = torch.get_rng_state()
        output, after = sample(_with_target(assistant, target), 5, **inputs)
        assert output.tolist() == expected.tolist()
        assert torch.equal(generator.get_state(), state)
        assert torch.equal(after, before)


def test_a_generator_of_another_device_is_refused(target: Any) -> None:
    class Elsewhere(torch.Generator):
        device = torch.device("meta")

    assistant = Assistant(None, generator=Elsewhere())
    with pytest.raises(OptionError, match="The generator is on 'meta' and the input ids are on 'cpu'"):
        sample(_with_target(assistant, target), 1, **left_padded(PROMPTS))


def test_noise_is_drawn_again_for_rows_that_lag_behind(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tape: Any = NoiseTape
    tapes = []

    def small(*arguments: Any) -> Any:
        tapes.append(tape(*arguments, max_kept_bytes=0))
        return tapes[-1]

    monkeypatch.setattr(choice, "NoiseTape", small)
    inputs = left_padded(PROMPTS)
    expected, state = sample(target.generate, 4, **inputs, eos_token_id=None, max_new_tokens=40)
    # The first row's candidates are all right, the others' all wrong: it is far ahead of them.
    outputs = expected[:, inputs["input_ids"].shape[1] :].tolist()
    outputs = [outputs[0], [1] * 40, [1] * 40]

    class Uneven(OracleDrafter):
        def _id(self, row: int, place: int) -> int:
            return self.outputs[row][place]

        def accept(self, row: int, num_accepted: int, output_ids: Any) -> None:
            self.seen[row].extend(self.outputs[row][len(self.seen[row]) :][: len(output_ids)])

    drafter = Uneven(outputs, target.config.vocab_size, 0)
    assistant = Assistant(None, drafter=drafter, num_candidate_tokens=10)
    output, state_after = sample(_with_target(assistant, target), 4, **inputs, eos_token_id=None, max_new_tokens=40)
    assert output.tolist() == expected.tolist()
    assert torch.equal(state, state_after)
    assert tapes


def test_where_multinomial_is_no_argmax_sampling_is_plain(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """MPS has a kernel of its own: the output must not change there either."""
    monkeypatch.setattr(plain_calls, "multinomial_is_argmax", lambda _: False)
    inputs = left_padded(PROMPTS)
    expected, state = sample(target.generate, 1, **inputs)
    assistant = oracle(target, expected, inputs["input_ids"].shape[1])
    with pytest.warns(UserWarning, match=r"multinomial on cpu is not argmax\(probs / noise\)"):
        output, state_after = sample(_with_target(assistant, target), 1, **inputs)
    assert output.tolist() == expected.tolist()
    assert torch.equal(state, state_after)
    assert assistant.stats.num_candidate_tokens == 0
    greedy = target.generate(**inputs, max_new_tokens=8, do_sample=False, pad_token_id=0)
    assistant = oracle(target, greedy, inputs["input_ids"].shape[1])
    output = assistant.generate(target, **inputs, max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert output.tolist() == greedy.tolist()
    assert assistant.stats.num_accepted_tokens > 0


@pytest.fixture(autouse=True)
def _fresh_warnings() -> None:
    from uag import stats

    stats._warned.clear()


def test_same_tokenizer(target: Any) -> None:
    draft = tiny_model("llama", target.config.vocab_size, 1, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
                       num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256)  # fmt: skip
    assistant = Assistant(draft, num_candidate_tokens=4)
    for prompts in (PROMPTS[:1], PROMPTS):
        inputs = left_padded(prompts)
        for options in ({"temperature": 0.5}, {"temperature": 30.0}, {"top_p": 0.5, "repetition_penalty": 1.4}):
            expected, state = sample(target.generate, 7, **inputs, **options)
            output, state_after = sample(_with_target(assistant, target), 7, **inputs, **options)
            assert output.tolist() == expected.tolist()
            assert torch.equal(state, state_after)
