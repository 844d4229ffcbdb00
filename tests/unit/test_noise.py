"""The sampling noise: plain sampling's own draws, and the fall-back's law."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from uag.sampling.choice import Coupled
from uag.sampling.noise import CounterNoise, NoiseTape, exponential_of_bits, multinomial_is_argmax

CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", [(1, 5), (1, 50_257), (3, 1_031), (7, 8), (2, 151_936)])
def test_multinomial_is_argmax_of_probs_over_noise(shape: tuple[int, int]) -> None:
    """The identity that everything rests on, with the generator's state after it."""
    for seed in range(5):
        torch.manual_seed(seed)
        probs = torch.softmax(3 * torch.randn(shape), -1)
        state = torch.get_rng_state()
        expected = torch.multinomial(probs, 1).squeeze(1)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        noise = torch.empty_like(probs).exponential_()
        assert torch.equal(torch.argmax(probs / noise, -1), expected)
        assert torch.equal(torch.get_rng_state(), after)


def test_the_first_use_check_leaves_the_generator_alone() -> None:
    from uag.sampling import noise

    noise._CHECKED.clear()
    before = torch.get_rng_state()
    assert multinomial_is_argmax(CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert noise._CHECKED == {"cpu": True}


def test_the_first_use_check_sees_a_device_that_draws_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    from uag.sampling import noise

    def by_inversion(probs: torch.Tensor, num_samples: int) -> torch.Tensor:
        return torch.searchsorted(probs.cumsum(-1), torch.rand(probs.shape[0], num_samples))

    before = torch.get_rng_state()
    monkeypatch.setattr(torch, "multinomial", by_inversion)
    assert not noise._try_identity(CPU)
    assert torch.equal(torch.get_rng_state(), before)


# ---------------------------------------------------------------------- the tape


def plain_draws(seed: int, num: int, shape: tuple[int, int] = (2, 9)) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    states, draws = [generator.get_state()], []
    for _ in range(num):
        draws.append(torch.empty(shape).exponential_(generator=generator))
        states.append(generator.get_state())
    return draws, states


@pytest.mark.parametrize("max_kept_bytes", [0, 1 << 20])
def test_the_tape_is_plain_samplings_draws_in_any_order_of_asking(max_kept_bytes: int) -> None:
    draws, states = plain_draws(3, 40)
    for num_steps in (0, 1, 17, 40):
        generator = torch.Generator().manual_seed(3)
        tape = NoiseTape(2, 9, CPU, generator, max_kept_bytes)
        for step in (0, 5, 2, 30, 4, 29, 1, 3, 12):
            assert torch.equal(tape.at(step), draws[step])
            torch.rand(3, generator=generator)  # somebody else draws: the tape does not mind
        tape.finish(num_steps)
        assert torch.equal(generator.get_state(), states[num_steps])


def test_the_tape_forgets_what_every_row_has_passed() -> None:
    tape = NoiseTape(1, 4, CPU, torch.Generator())
    tape.at(9)
    tape.release(7)
    assert sorted(tape._drawn) == [7, 8, 9]
    assert min(tape._states) == 7
    tape.finish(8)
    assert not tape._drawn


def test_the_tape_keeps_no_more_than_it_may() -> None:
    tape = NoiseTape(1, 1000, CPU, torch.Generator().manual_seed(1), max_kept_bytes=40_000)
    for step in range(100):
        tape.at(step)
    assert len(tape._drawn) == 10


def test_draws_by_somebody_else_void_what_was_drawn_ahead() -> None:
    generator = torch.Generator().manual_seed(3)
    tape = NoiseTape(2, 9, CPU, generator)
    tape.at(6)
    tape.rewind(2)
    torch.rand(5, generator=generator)
    tape.redraw(2)
    got = tape.at(2)

    plain = torch.Generator().manual_seed(3)
    for step in range(3):
        if step == 2:
            torch.rand(5, generator=plain)
        expected = torch.empty(2, 9).exponential_(generator=plain)
    assert torch.equal(got, expected)
    tape.finish(3)
    assert torch.equal(generator.get_state(), plain.get_state())


def test_scores_of_another_type_change_the_draws_from_there_on() -> None:
    generator = torch.Generator().manual_seed(3)
    tape = NoiseTape(2, 9, CPU, generator)
    tape.at(4)
    tape.fit(1, 9, torch.float64)
    plain = torch.Generator().manual_seed(3)
    torch.empty(2, 9).exponential_(generator=plain)
    expected = torch.empty(2, 9, dtype=torch.float64).exponential_(generator=plain)
    assert torch.equal(tape.at(1), expected)


# ---------------------------------------------------------------------- the fall-back


def test_the_law_of_a_coarse_grid_by_every_outcome() -> None:
    """All combinations of uniform numbers on a grid of 2**m cells: off by less than vocab_size * 2**-m."""
    for law, bits in (((0.5, 0.5), 8), ((0.9, 0.1), 8), ((0.2, 0.3, 0.5), 6), ((0.05, 0.05, 0.9), 6)):
        cells = torch.arange(1 << bits)
        noise = exponential_of_bits((cells << (52 - bits + 12)) + (1 << (51 - bits + 12)))
        tables = torch.cartesian_prod(*[noise] * len(law))
        chosen = torch.argmax(torch.tensor(law, dtype=torch.float64) / tables, -1)
        output = torch.bincount(chosen, minlength=len(law)).double() / chosen.numel()
        assert (output - torch.tensor(law)).abs().max() < len(law) * 2.0**-bits


def test_the_law_of_the_fall_back_by_summation() -> None:
    """The same for fine grids, one sum per token: the error falls as the grid does, so at 52 bits it is below 1e-12.

    Token i is selected where every other uniform number u_j lies below u_i ** (p_j / p_i): cells below it are counted.
    """
    random = np.random.default_rng(1)
    for size, bits in itertools.product((2, 3, 8, 40), (10, 14, 18)):
        law = random.dirichlet(np.full(size, 0.7))
        cells = 1 << bits
        uniform = (np.arange(cells) + 0.5) / cells
        for token in range(0, size, max(1, size // 4)):
            chance = np.ones(cells)
            for other in range(size):
                if other != token:
                    below = np.ceil(uniform ** (law[other] / law[token]) * cells - 0.5)
                    chance *= np.clip(below, 0, cells) / cells
            assert abs(chance.mean() - law[token]) < size * 2.0**-bits
    assert 151_936 * 2.0**-52 < 1e-10
    assert 1_000 * 2.0**-52 < 1e-12


def test_the_fall_back_never_gives_nothing() -> None:
    extremes = exponential_of_bits(torch.tensor([0, -1, (1 << 63) - 1, -(1 << 63)]))
    assert (extremes > 0).all()
    assert extremes.isfinite().all()


def test_the_fall_back_by_draws() -> None:
    """Seeded chi-square of 200,000 draws over steps and rows; pairs of neighbouring steps must be independent."""
    torch.manual_seed(6)
    noise = CounterNoise(500, 6, CPU)
    choice = Coupled(noise)
    scores = torch.randn(6)
    law = torch.softmax(scores, -1).double()
    drawn = []
    for step in range(400):
        drawn.append(choice.choose(scores.expand(500, -1), [step] * 500, range(500), [None] * 500))
        noise.release(step)
    chosen = torch.stack(drawn)
    assert _chi_square(chosen.flatten(), law) < 25.7  # 5 degrees of freedom, once in 10,000
    by_step = chosen[:-1] * 6 + chosen[1:]
    assert _chi_square(by_step.flatten(), torch.outer(law, law).flatten()) < 74.9  # 35 degrees of freedom
    by_row = chosen[:, :-1] * 6 + chosen[:, 1:]
    assert _chi_square(by_row.flatten(), torch.outer(law, law).flatten()) < 74.9


def _chi_square(chosen: torch.Tensor, law: torch.Tensor) -> float:
    expected = law * chosen.numel()
    counts = torch.bincount(chosen, minlength=law.numel()).double()
    return float(((counts - expected) ** 2 / expected).sum())


def test_the_fall_back_depends_on_the_seed_alone() -> None:
    def draw(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return CounterNoise(2, 5, CPU).at(3)

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    generator = torch.Generator().manual_seed(9)
    before = torch.get_rng_state()
    CounterNoise(2, 5, CPU, generator)
    assert torch.equal(torch.get_rng_state(), before)
