"""A decoder's pass: products over codes, and logits that depend neither on the block nor on threads, bit for bit."""

import sys
from functools import cache
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.models import tiny_model, tiny_target
from tests.unit.kernels.test_kernel import computed, every_level, noise
from uag.hf.decoder import Linear, describe
from uag.kernels import Cache, Decoder, decoder, decoders, kernel, steps

pytestmark = pytest.mark.skipif(not kernel.LEVEL, reason="the kernels were not compiled here")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(1, 1), (7, 33), (8, 32), (70, 100), (131, 64), (65, 737)]
VALUES: dict[str, float] = {"usual": 1.0, "zero": 0.0, "huge": 3e3, "tiny": 1e-4}
FORMS = ["int8", "int4"]
Floats = NDArray[Any]


def products(x: torch.Tensor, weight: torch.Tensor, bias: Any, form: str) -> torch.Tensor:
    """Return `x @ weight.T + bias` from a pass whose embedding is `x` and whose head is `weight`."""
    made: Any = object.__new__(Decoder)
    made.weights, made.num_bytes, made._kept, made._coded = form, 0, [], {}
    made.windows, made.shape, made._num_heads, made.vocab_size = [0], (1, 1, 8), 1, len(weight)
    made.sizes, made._head_factor, made._head_softcap = (x.shape[1], 8, 24, 8, 8), 1.0, 0.0
    embed = steps.CStep(kind=steps.EMBED, to=steps.HIDDEN, num_weights=1, factor=1.0)
    embed.w[0] = steps.CWeight(x.data_ptr(), 0, 0, *x.shape, 0)
    head = made._linear(steps.HIDDEN, 0, [Linear(weight, bias)], form)
    head.is_head = 1
    made._steps = (steps.CStep * 2)(embed, head)
    logits: torch.Tensor = made._part(Cache(made, 1), [list(range(len(x)))], [len(x)])
    return logits


def divided(most: Floats, by: float) -> Floats:
    """Return the factors of codes, 0 for values that are too small."""
    return np.divide(np.float32(by), most, out=np.zeros_like(most), where=most > 1e-30)


def by_codes(x: Floats, weight: Floats, form: str) -> tuple[Floats, Floats]:
    """Return the products of the same codes in float64, and the sums of the terms' sizes."""
    missing = -x.shape[1] % 32
    x, weight = (np.pad(part, ((0, 0), (0, missing))).reshape(len(part), -1, 32) for part in (x, weight))
    most = np.abs(x).max(2, keepdims=True)
    read = np.rint(x * divided(most, 127.0)) * (most / np.float32(127)).astype(np.float64)
    if form == "int8":
        most = np.abs(weight).max((1, 2), keepdims=True)
        coded = np.rint(weight * divided(most, 127.0)) * (most / np.float32(127)).astype(np.float64)
    else:
        low, high = weight.min(2, keepdims=True), weight.max(2, keepdims=True)
        scale = ((high - low) / np.float32(15)).astype(np.float16).astype(np.float32)
        low = low.astype(np.float16).astype(np.float32)
        inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
        coded = np.rint((weight - low) * inverse).clip(0, 15) * scale.astype(np.float64) + low
    x, coded = read.reshape(len(x), -1), coded.reshape(len(weight), -1)
    return x @ coded.T, np.abs(x) @ np.abs(coded).T


@every_level
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("values", VALUES)
def test_products_over_codes_equal_those_of_numpy(shape: tuple[int, int], values: str, form: str, level: int) -> None:
    for dtype in DTYPES if values == "usual" else DTYPES[:1]:
        weight = (VALUES[values] * noise(*shape)).to(dtype)
        weight[0] = 0  # codes of one output that are all zeros
        weight[-1, 0] += VALUES[values] * 8  # an outlier
        bias = noise(shape[0], seed=2)
        for num_rows in (1, 4, 7, 20):
            x = noise(num_rows, shape[1], seed=num_rows)
            x[0] *= 1e-6
            expected, sizes = by_codes(x.numpy(), weight.float().numpy(), form)
            with computed(level, 1 + num_rows % 3):
                plain, added = products(x, weight, None, form), products(x, weight, bias, form)
            assert (np.abs(plain.numpy() - expected) <= 2e-6 * sizes + 1e-12).all()
            assert torch.allclose(added, plain + bias, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_codes_are_near_the_weights(form: str) -> None:
    x, weight = noise(3, 256), noise(40, 256, seed=1)
    error = (products(x, weight, None, form) - x @ weight.T).square().mean().sqrt() / (x @ weight.T).std()
    assert error < {"int8": 0.02, "int4": 0.1}[form]


NUM_IDS = 90
MODELS = ["llama", "gemma2", "gpt2", "phi", "gpt_neox"]
MOST = decoder._FIRST_POSITIONS


@cache
def made(name: str, form: str, level: int) -> tuple[Decoder, list[int], torch.Tensor]:
    """Return a decoder, ids, and the logits of each, computed one by one by one thread."""
    with computed(level):
        found = Decoder(describe(tiny_target(name)[0]), form)
        ids = torch.randint(found.num_ids, (NUM_IDS,), generator=torch.Generator().manual_seed(4)).tolist()
        row = Cache(found, 1)
        return found, ids, torch.cat([found.run(row, [[token]], 1) for token in ids])


@every_level
@pytest.mark.parametrize("form", ["int8", "int4", "model"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_depend_neither_on_the_block_nor_on_the_threads(name: str, form: str, level: int) -> None:
    found, ids, expected = made(name, form, level)
    for width, num_threads in ((3, 2), (8, 1), (70, 3), (NUM_IDS, 1)):
        row = Cache(found, 1)
        with computed(level, num_threads):
            parts = [found.run(row, [ids[at : at + width]], width) for at in range(0, NUM_IDS, width)]
        assert torch.equal(torch.cat(parts), expected), (width, num_threads)
        assert row.lengths == [NUM_IDS]


@every_level
@pytest.mark.parametrize("form", ["int8", "int4", "model"])
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_logits_depend_on_no_other_sequence_and_nothing_cut(form: str, level: int, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(MODELS))
    found, ids, expected = made(name, form, level)
    num_rows = data.draw(st.integers(1, 4))
    rows = Cache(found, num_rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder, "_MOST_TOKENS", data.draw(st.sampled_from([1, 5, 64])))
        for _ in range(data.draw(st.integers(1, 6))):
            kept = [data.draw(st.integers(0, length)) for length in rows.lengths]
            junk = [data.draw(st.integers(0, 3)) for _ in kept]
            wide = [data.draw(st.integers(0, NUM_IDS - length)) for length in kept]
            num_wanted = data.draw(st.integers(1, 12))
            rows.lengths = list(kept)
            with computed(level, data.draw(st.integers(1, 3))):
                if any(junk):
                    found.run(rows, [[7] * num for num in junk], 1)
                    rows.lengths = list(kept)
                if not any(wide):
                    continue
                lines = [ids[start : start + num] for start, num in zip(kept, wide, strict=True)]
                logits = found.run(rows, lines, num_wanted)
            ends = [start + num for start, num in zip(kept, wide, strict=True)]
            assert rows.lengths == ends
            wanted = [expected[max(start, end - num_wanted) : end] for start, end in zip(kept, ends, strict=True)]
            assert torch.equal(logits, torch.cat(wanted))


@every_level
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_cache_and_its_angles_grow(name: str, level: int) -> None:
    """Beyond the slots of a new cache, with tokens at its start that later ones still see, or in a window no longer."""
    model = tiny_target(name, max_position_embeddings=4 * MOST)[0]
    with computed(level):
        found, ids = Decoder(describe(model), "model"), torch.arange(2 * MOST + 40) * 7 % 600
        row = Cache(found, 1)
        found.run(row, [ids[: MOST - 2].tolist()], 1)
        assert row.tensor.shape[4] == MOST
        logits = [found.run(row, [ids[at : at + 1].tolist()], 1) for at in range(MOST - 2, MOST + 3)]
        logits.append(found.run(row, [ids[MOST + 3 :].tolist()], 3))
        with torch.no_grad():
            expected = model(ids[None]).logits[0]
    for part, end in zip(logits, [*range(MOST - 1, MOST + 4), len(ids)], strict=True):
        assert (part - expected[end - len(part) : end]).abs().max() < 0.02 * expected.std()


def test_two_threads_may_need_more_angles_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass must not start before the angles that another thread computes are there."""
    model = tiny_target("llama", max_position_embeddings=4 * MOST)[0]
    found, ids = Decoder(describe(model), "model"), [[5 + place % 90 for place in range(MOST + 90)]]
    expected = Decoder(describe(model), "model").run(Cache(found, 1), ids, 1)
    compute = found._compute_angles
    others: list[Thread] = []
    logits: list[torch.Tensor] = []

    def computes(name: str, num: int) -> Any:
        if not others:
            others.append(Thread(target=lambda: logits.append(found.run(Cache(found, 1), ids, 1))))
            others[0].start()
            others[0].join(1)
        return compute(name, num)

    monkeypatch.setattr(found, "_compute_angles", computes)
    found.run(Cache(found, 1), [[5] * (2 * MOST + 20)], 1)
    others[0].join()
    assert torch.equal(logits[0], expected)


@pytest.mark.parametrize("most", [40, MOST + 60])
def test_angles_end_with_the_models_positions(most: int) -> None:
    """Those of some models depend on the largest position that is asked for."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": most}
    rope |= {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    model = tiny_target("llama", max_position_embeddings=4 * MOST, rope_parameters=rope)[0]
    found, ids = Decoder(describe(model), "model"), torch.arange(most) % 90
    assert found.max_positions == most
    row = Cache(found, 1)
    found.run(row, [ids[: most - 12].tolist()], 1)
    logits = torch.cat([found.run(row, [[token]], 1) for token in ids[most - 12 :].tolist()])
    with torch.no_grad():
        expected = model(ids[None]).logits[0, -12:]
    assert (logits - expected).abs().max() < 0.02 * expected.std()


def test_a_thread_that_puts_forwards_on_layers_does_not_disturb_another() -> None:
    model = tiny_model("llama", 700)
    owners, is_over = [vars(layer) for layer in model.modules()], Event()

    def change() -> None:
        while not is_over.is_set():
            for owner in owners:
                owner["forward"] = None
            for owner in owners:
                del owner["forward"]

    interval = sys.getswitchinterval()
    thread = Thread(target=change)
    thread.start()
    try:
        sys.setswitchinterval(1e-6)
        for _ in range(60):
            decoders._fingerprint(model)
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(interval)
