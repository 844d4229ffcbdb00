"""The sampling noise equals plain sampling's draws."""

import threading

import pytest
import torch

from uag.sampling import multinomial_is_argmax, noise
from uag.sampling.noise import NoiseTape

CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", [(1, 5), (1, 50_257), (3, 1_031), (7, 8), (2, 151_936)])
def test_multinomial_is_argmax_of_probs_over_noise(shape: tuple[int, int]) -> None:
    """The identity that coupled sampling relies on, including the generator's final state."""
    for seed in range(5):
        one, other = (torch.Generator().manual_seed(seed) for _ in range(2))
        probs = torch.softmax(3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed)), -1)
        noise = torch.empty_like(probs).exponential_(generator=one)
        assert torch.equal(torch.argmax(probs / noise, -1), torch.multinomial(probs, 1, generator=other).squeeze(1))
        assert torch.equal(one.get_state(), other.get_state())


def test_the_check_at_first_use_detects_a_device_that_draws_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_inversion(probs: torch.Tensor, num_samples: int, *, generator: torch.Generator) -> torch.Tensor:
        return torch.searchsorted(probs.cumsum(-1), torch.rand(probs.shape[0], num_samples, generator=generator))

    before = torch.get_rng_state()
    assert multinomial_is_argmax.__wrapped__(CPU)
    monkeypatch.setattr(torch, "multinomial", by_inversion)
    assert not multinomial_is_argmax.__wrapped__(CPU)
    assert torch.equal(torch.get_rng_state(), before)


def new_tape() -> NoiseTape:
    return NoiseTape(2, 9, CPU, torch.Generator().manual_seed(3))


def plain_draws(seed: int, num: int, shape: tuple[int, int] = (2, 9)) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    states, draws = [generator.get_state()], []
    for _ in range(num):
        draws.append(torch.empty(shape).exponential_(generator=generator))
        states.append(generator.get_state())
    return draws, states


@pytest.mark.parametrize("max_kept_bytes", [0, 1 << 20])
def test_the_tape_returns_plain_draws_in_any_order(monkeypatch: pytest.MonkeyPatch, max_kept_bytes: int) -> None:
    monkeypatch.setattr(noise, "_MAX_KEPT_BYTES", max_kept_bytes)
    draws, states = plain_draws(3, 40)
    for num_steps in (0, 1, 17, 40):
        tape = new_tape()
        for step in (0, 5, 2, 30, 4, 29, 1, 3, 12):
            assert torch.equal(tape.at(step), draws[step])
            assert torch.equal(tape.generator.get_state(), states[0])
        tape.finish(num_steps)
        assert torch.equal(tape.generator.get_state(), states[num_steps])


def test_tape_never_takes_back_what_other_code_draws() -> None:
    """So another thread gets no number twice, and the noise does not depend on it."""
    draws, _ = plain_draws(3, 4)
    tape = new_tape()
    tape.at(6)
    others = torch.rand(5, generator=tape.generator)
    assert torch.equal(tape.at(3), draws[3])
    tape.finish(4)
    assert not torch.isin(torch.rand(500, generator=tape.generator), others).any()

    like_plain = torch.Generator().manual_seed(3)
    torch.rand(5, generator=like_plain)
    for _ in range(4):
        torch.empty(2, 9).exponential_(generator=like_plain)
    torch.rand(500, generator=like_plain)
    assert torch.equal(tape.generator.get_state(), like_plain.get_state())


def test_the_tape_frees_what_every_row_has_passed() -> None:
    tape = NoiseTape(1, 4, CPU, torch.Generator())
    tape.at(9)
    tape.release(7)
    assert sorted(tape._drawn) == [7, 8, 9]
    assert min(tape._states) == 7
    tape.finish(8)
    assert not tape._drawn


def test_the_tape_keeps_at_most_the_given_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_MAX_KEPT_BYTES", 40_000)
    tape = NoiseTape(1, 1000, CPU, torch.Generator().manual_seed(1))
    for step in range(100):
        tape.at(step)
    assert len(tape._drawn) == 10


def test_tapes_of_two_threads_draw_different_numbers_from_one_generator() -> None:
    tape, noise = new_tape(), []

    def other() -> None:
        own = NoiseTape(2, 9, CPU, tape.generator)
        noise.append(own.at(0))
        own.finish(1)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    nested = NoiseTape(2, 9, CPU, tape.generator)  # of a call inside a callback of the first
    assert not torch.isin(noise[0], tape.at(0)).any()
    assert not torch.equal(nested.at(0), noise[0])
    nested.finish(1)
    tape.finish(1)
    assert torch.equal(NoiseTape(2, 9, CPU, tape.generator)._own.get_state(), tape.generator.get_state())


def test_draws_by_other_code_void_what_was_drawn_ahead() -> None:
    tape, plain = new_tape(), torch.Generator().manual_seed(3)
    tape.at(6)
    with tape.exposed(2):
        torch.rand(5, generator=tape.generator)
    for step in range(3):
        if step == 2:
            torch.rand(5, generator=plain)
        expected = torch.empty(2, 9).exponential_(generator=plain)
    assert torch.equal(tape.at(2), expected)
    tape.finish(3)
    assert torch.equal(tape.generator.get_state(), plain.get_state())


def test_scores_of_another_type_change_the_draws_from_there_on() -> None:
    tape, plain = new_tape(), torch.Generator().manual_seed(3)
    tape.at(4)
    tape.fit(1, 9, torch.float64)
    torch.empty(2, 9).exponential_(generator=plain)
    expected = torch.empty(2, 9, dtype=torch.float64).exponential_(generator=plain)
    assert torch.equal(tape.at(1), expected)
