"""The compiled kernels: right for any shape, and a row's result depends on that row alone, bit for bit."""

import math
import runpy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from uag.kernels import kernel

pytestmark = pytest.mark.skipif(not kernel.LEVEL, reason="the kernels were not compiled here")

own: Any = kernel  # its functions may return None, which fails here

SIZE = 768
SHAPES = [(1, 1), (5, 3), (33, 17), (100, 1_536), (7, 4_100), (64, 16), (31, 8), (200, 129), (520, 70)]
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
ROUNDING = {torch.float32: 4e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Largest error relative to the sum of the terms' sizes."""

drawn_cases = settings(max_examples=20, deadline=None)


def noise(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


@contextmanager
def computed(level: int, num_threads: int = 1) -> Iterator[None]:
    """Compute with an instruction set, and share even the smallest work among threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_level", level)
        patch.setattr(kernel, "_FEWEST_FOR_THREADS", 0)
        patch.setattr(kernel, "_FEWEST_GATES_FOR_THREADS", 0)
        patch.setattr(torch, "get_num_threads", lambda: num_threads)
        yield


def drawing(data: st.DataObject) -> Callable[[int, int], int]:
    return lambda least, most: data.draw(st.integers(least, most))


every_level = pytest.mark.parametrize("level", range(1, max(kernel._level, 1) + 1))
PRODUCTS: dict[str, Callable[..., Any]] = {
    "linear": own.linear,
    "conv1d": lambda x, weight, bias=None: own.conv1d(x, weight.t().contiguous(), bias),
}
every_product = pytest.mark.parametrize("product", PRODUCTS)


@every_level
@every_product
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_equals_one_in_float64_up_to_rounding(shape: tuple[int, int], product: str, level: int) -> None:
    for dtype, tolerance in ROUNDING.items():
        for num_rows in (*range(1, 10), 16, 33):
            x, weight, bias = (noise(*size).to(dtype) for size in ((num_rows, shape[1]), shape, shape[:1]))
            sizes = x.double().abs() @ weight.double().abs().t() + bias.double().abs()
            for added in (None, bias):
                expected = x.double() @ weight.double().t() + (0.0 if added is None else added.double())
                with computed(level):
                    y = PRODUCTS[product](x, weight, added)
                assert (y.shape, y.dtype, y.is_contiguous()) == (expected.shape, dtype, True)
                assert ((y.double() - expected).abs() / sizes).max() < tolerance


@every_level
@every_product
@drawn_cases
@given(st.integers(1, 80), st.integers(1, 300), st.integers(1, 200), DTYPES, st.integers(1, 3), st.booleans())
def test_a_row_of_a_product_depends_on_that_row_alone(
    product: str,
    level: int,
    num_rows: int,
    num_out: int,
    num_in: int,
    dtype: torch.dtype,
    num_threads: int,
    has_bias: bool,
) -> None:
    x, weight = noise(num_rows, num_in).to(dtype), noise(num_out, num_in).to(dtype)
    bias = noise(num_out).to(dtype) if has_bias else None
    with computed(level, num_threads):
        together = PRODUCTS[product](x, weight, bias)
    with computed(level):
        alone = torch.cat([PRODUCTS[product](row[None], weight, bias) for row in x])
    assert torch.equal(together, alone)


def attended(q: Any, k: Any, v: Any, mask: Any, scale: float, softcap: float, sinks: Any) -> tuple[Any, Any]:
    """Return attention in float64 and the sum of its terms' sizes."""
    q, k, v = (tensor.double() for tensor in (q, k, v))
    k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], 1) for tensor in (k, v))
    scores = q @ k.transpose(2, 3) * scale
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask.double()
    if sinks is not None:
        scores = torch.cat([scores, sinks.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], 3)
    shares = scores.softmax(3)[..., : k.shape[2]].nan_to_num(0)
    return (shares @ v).transpose(1, 2), (shares @ v.abs()).transpose(1, 2)


@every_level
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_row_of_attention_is_right_and_depends_on_its_visible_keys_alone(level: int, data: st.DataObject) -> None:
    draw = drawing(data)
    batch, kv_heads, rows, size, value_size = draw(1, 2), draw(1, 3), draw(1, 12), draw(1, 100), draw(1, 140)
    heads, keys, dtype = kv_heads * draw(1, 5), rows + draw(0, 150), data.draw(DTYPES)
    q = noise(batch, rows, heads, size).to(dtype).transpose(1, 2)
    k, v = (noise(batch, kv_heads, keys + 7, n, seed=n).to(dtype)[:, :, 3 : keys + 3] for n in (size, value_size))
    scale, softcap = 0.3, data.draw(st.sampled_from([0.0, 5.0]))
    sinks = data.draw(st.sampled_from([None, noise(heads)]))
    kept = noise(batch, 1, rows, keys) > -0.7
    for number, row in enumerate(kept):
        row[..., : draw(0, keys - rows)] = False
        row &= torch.ones(rows, keys).tril(keys - rows) > 0
        row[:, torch.arange(rows), torch.arange(rows) + keys - rows] = number == 0 or draw(0, 3) > 0
    kind = data.draw(st.sampled_from(["none", "kept", "added", "added in half"]))
    mask: Any = {
        "none": None,
        "kept": kept.expand(batch, heads, rows, keys) if draw(0, 1) else kept,
        "added": torch.where(kept, noise(1, heads, rows, keys), -math.inf),
        "added in half": torch.zeros(kept.shape, dtype=dtype).masked_fill(~kept, -math.inf),
    }[kind]
    with computed(level, draw(1, 3)):
        together = own.attention(q, k, v, mask, scale, softcap, sinks)
    expected, sizes = attended(q, k, v, mask, scale, softcap, sinks)
    assert (together.shape, together.dtype) == ((batch, rows, heads, value_size), dtype)
    assert ((together.double() - expected).abs() <= (sizes + 1e-3) * (2 * ROUNDING[dtype] + 2e-5)).all()
    with computed(level):
        for b in range(batch):
            for r in range(rows):
                seen = torch.arange(keys) if mask is None else kept[b, 0, r].nonzero()[:, 0]
                added = None if kind != "added" else mask[b if len(mask) > 1 else 0, None, :, r : r + 1, seen]
                one_k, one_v = (tensor[b : b + 1, :, seen] for tensor in (k, v))
                alone = own.attention(q[b : b + 1, :, r : r + 1], one_k, one_v, added, scale, softcap, sinks)
                assert alone is not None
                assert torch.equal(together[b, r], alone[0, 0])


@every_level
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_masked_key_adds_nothing_even_if_it_is_not_finite(bad: float, dtype: torch.dtype, level: int) -> None:
    q, k, v = (noise(1, heads, n, 24).to(dtype) for heads, n in ((6, 4), (2, 40), (2, 40)))
    kept = torch.ones(4, 40, dtype=torch.bool).tril(36)
    lowest = torch.zeros(4, 40, dtype=dtype).masked_fill(~kept, torch.finfo(dtype).min)
    for mask in (kept, torch.where(kept, 0.0, -math.inf), lowest):
        with computed(level):
            expected = own.attention(q, k, v, mask)
            poisoned = [tensor.clone() for tensor in (k, v)]
            for tensor in poisoned:
                tensor[:, :, 38:] = bad
            found = own.attention(q, *poisoned, mask)
        assert torch.equal(found[:, :2], expected[:, :2])
        assert not found[:, 2:].isfinite().all()


@every_level
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("key", [math.inf, 60000.0])
def test_a_masked_key_adds_nothing_even_if_it_outweighs_the_mask(key: float, dtype: torch.dtype, level: int) -> None:
    """In float16, the mask's lowest number is -65504, and a finite score may be larger."""
    q, k, v = (noise(1, heads, n, 24).to(dtype) for heads, n in ((6, 4), (2, 40), (2, 40)))
    q[..., 0] = 9.0
    kept = torch.ones(4, 40, dtype=torch.bool).tril(36)
    mask = torch.zeros(4, 40, dtype=dtype).masked_fill(~kept, torch.finfo(dtype).min)
    with computed(level):
        expected = own.attention(q, k, v, mask)
        k[:, :, 38:, 0] = key
        found = own.attention(q, k, v, mask)
    assert torch.equal(found[:, :2], expected[:, :2])


def test_many_queries_are_taken_some_at_a_time() -> None:
    """More scores than `MOST_SCORES` in _rows.c."""
    q, k, v = noise(1, 32, 40, 4), noise(1, 1, 16_400, 4), noise(1, 1, 16_400, 3)
    mask = torch.ones(40, 16_400, dtype=torch.bool).tril(16_360)
    together = own.attention(q, k, v, mask)
    for r in (0, 17, 31, 32, 39):
        assert torch.equal(together[:, r : r + 1], own.attention(q[:, :, r : r + 1], k, v, mask[r : r + 1]))


@every_level
@drawn_cases
@given(st.data())
def test_a_row_of_a_mixture_of_experts_is_right_and_depends_on_that_row_alone(level: int, data: st.DataObject) -> None:
    draw = drawing(data)
    rows, num_experts, hidden, inner, dtype = draw(1, 20), draw(1, 12), draw(1, 100), draw(1, 60), data.draw(DTYPES)
    x, up, down = noise(rows, hidden), noise(num_experts, 2 * inner, hidden), noise(num_experts, hidden, inner, seed=1)
    x, up, down = x.to(dtype), (0.2 * up).to(dtype), (0.2 * down).to(dtype)
    shares, chosen = noise(rows, num_experts).softmax(1).topk(draw(1, min(num_experts, 4)))
    with computed(level, draw(1, 3)):
        together = own.experts(x, chosen, shares, up, down)
    with computed(level):
        single = [own.experts(x[r : r + 1], chosen[r : r + 1], shares[r : r + 1], up, down) for r in range(rows)]
    assert torch.equal(together, torch.cat(single))
    for r in range(rows):
        gate, other = (up[chosen[r]].double() @ x[r].double()).chunk(2, 1)
        inputs = (functional.silu(gate) * other).to(dtype).double()
        terms = shares[r].double()[:, None, None] * down[chosen[r]].double() * inputs[:, None]
        error = (together[r].double() - terms.sum((0, 2))).abs()
        assert (error <= terms.abs().sum((0, 2)) * (3 * ROUNDING[dtype] + 1e-5) + 1e-6).all()


@every_level
@pytest.mark.parametrize("kind", kernel.GATES)
@pytest.mark.parametrize("dtype", ROUNDING)
def test_a_gate_is_right_and_depends_on_no_other_value(dtype: torch.dtype, kind: str, level: int) -> None:
    functions: dict[str, Callable[[Any], Any]] = {
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
        "sigmoid": torch.sigmoid,
        "softplus": functional.softplus,
    }
    x = torch.linspace(-30, 30, 20_003).to(dtype)
    with computed(level, 3):
        y = own.gate(x, kind)
        expected = functions[kind](x.double())
        assert ((y.double() - expected).abs() <= expected.abs() * ROUNDING[dtype] + 1e-6).all()
        for start, length in ((0, 1), (1, 3), (7, 100), (19_000, 1_003)):
            part = x[start : start + length]
            assert torch.equal(own.gate(part, kind), y[start : start + length])


def misaligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy that does not begin at a multiple of its values' size."""
    size = tensor.element_size()
    memory = torch.zeros(tensor.numel() * size + 1, dtype=torch.uint8)
    memory[1:] = tensor.contiguous().view(-1).view(torch.uint8)
    return torch.frombuffer(memory.numpy(), dtype=tensor.dtype, offset=1, count=tensor.numel()).view(tensor.shape)


def variants(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Give the same values in other places of the memory."""
    yield torch.stack([tensor, noise(*tensor.shape).to(tensor.dtype)], -1)[..., 0]
    yield torch.cat([noise(1, *tensor.shape[1:]).to(tensor.dtype), tensor])[1:]
    yield torch.cat([tensor, tensor], -1)[..., : tensor.shape[-1]]
    yield tensor.transpose(0, -1).contiguous().transpose(0, -1)
    yield misaligned(tensor)
    yield tensor.clone().requires_grad_()
    with torch.inference_mode():
        yield tensor.clone()


@pytest.mark.parametrize("dtype", ROUNDING)
@torch.no_grad()
def test_arguments_are_read_wherever_their_values_are(dtype: torch.dtype) -> None:
    """A fused bias that was split was read as if it were contiguous; so was an expanded one."""
    x, weight, bias = (noise(*sizes).to(dtype) for sizes in ((3, 40), (24, 40), (24,)))
    expected = own.linear(x, weight, bias)
    for product in PRODUCTS.values():
        expected = product(x, weight, bias)
        assert all(torch.equal(product(other, weight, bias), expected) for other in variants(x))
        assert all(torch.equal(product(x, weight, other), expected) for other in variants(bias))
        assert torch.equal(product(x, misaligned(weight), bias), expected)
        assert torch.equal(product(x[:1].expand(3, 40), weight, bias), expected[:1].expand(3, 24))
        zero = torch.zeros(1, dtype=dtype).expand(24)
        assert torch.equal(product(x, weight, zero), product(x, weight))
        assert product(x[:0], weight, bias).shape == (0, 24)
        assert torch.equal(product(x[:, :0], weight[:, :0].contiguous(), bias), bias.expand(3, 24))
        assert product(x, weight[:0], bias[:0]).shape == (3, 0)
        assert torch.equal(product(x[0], weight, bias), expected[0])
    square = noise(24, 24).to(dtype)  # a weight that is its own input
    assert torch.equal(own.linear(square, square), own.linear(square.clone(), square))

    q, k, v, mask = (noise(2, 4, n, 24).to(dtype) for n in (3, 9, 9, 3))
    mask = mask[..., :9]
    attention = own.attention(q, k, v, mask)
    for number, tensor in enumerate((q, k, v, mask)):
        for other in variants(tensor):
            read = [other if place == number else right for place, right in enumerate((q, k, v, mask))]
            found = own.attention(*read)
            if number in (0, 3) or other.stride(-1) == 1:
                assert found is not None
            assert found is None or torch.equal(found, attention)
    shared = own.attention(q, k[:, :1].expand(2, 4, 9, 24), v[:, :1].expand(2, 4, 9, 24), mask)
    assert torch.equal(shared, own.attention(q, k[:, :1], v[:, :1], mask))
    one = mask[:, :, :, :1]  # for all keys
    assert torch.equal(own.attention(q, k, v, one), own.attention(q, k, v, one.expand(2, 4, 3, 9).contiguous()))
    assert own.attention(q[:, :, :0], k, v).shape == (2, 0, 4, 24)
    assert not own.attention(q, k[:, :, :0], v[:, :, :0]).any()
    assert all(torch.equal(own.gate(other, "silu"), own.gate(x, "silu")) for other in variants(x))


@torch.no_grad()
def test_what_cannot_be_read_is_left_to_pytorch() -> None:
    x, weight, bias = noise(3, 40), noise(24, 40), noise(24)
    assert kernel.can_read(weight, bias)
    assert kernel.can_read(nn.Parameter(weight), None)
    others = noise(40, 24).t(), noise(1, 40).expand(24, 40), noise(24, 80)[:, :40], torch._neg_view(weight)
    for other in (*others, weight.double(), weight.to_sparse(), weight.to("meta")):
        assert not kernel.can_read(other, bias)
        assert own.linear(x, other, bias) is None
        assert own.conv1d(noise(3, 24), other) is None
    for other in (x.double(), x.bfloat16(), x[:, :39], x.to("meta"), torch._neg_view(x), x[0, 0]):
        assert own.linear(other, weight, bias) is None
    assert torch.equal(torch.func.vmap(lambda row: functional.linear(row, weight))(x), functional.linear(x, weight))

    def batched(row: torch.Tensor) -> torch.Tensor:
        assert own.linear(row, weight) is own.gate(row, "silu") is None
        return row

    torch.func.vmap(batched)(x)
    for other in (bias.double(), bias[:23], bias.to("meta"), torch._neg_view(bias)):
        assert own.linear(x, weight, other) is None
    q, k = noise(1, 4, 2, 8), noise(1, 2, 5, 8)
    for bad in ((q, k, k.half()), (q, noise(1, 3, 5, 8), noise(1, 3, 5, 8)), (q, k, k[:, :, :4]), (q[0], k, k)):
        assert own.attention(*bad) is None
    assert own.attention(q, k, k, torch.ones(2, 5, dtype=torch.int64)) is None
    assert own.attention(q, k, k, sinks=noise(3)) is None
    up, down, shares = noise(3, 16, 6), noise(3, 6, 8), noise(2, 2)
    assert own.experts(noise(2, 6), torch.tensor([[0, 1], [2, 0]]), shares, up, down) is not None
    assert own.experts(noise(2, 6), torch.tensor([[0, 1], [3, 0]]), shares, up, down) is None
    assert own.experts(noise(2, 6), torch.tensor([[0, 1], [-1, 0]]), shares, up, down) is None
    assert own.experts(noise(2, 6), torch.tensor([[0, 1], [2, 0]]), shares, up, down.transpose(1, 2)) is None


def test_threads_that_call_at_once_get_their_own_results() -> None:
    x, weight, bias = noise(6, 257), noise(3_000, 257), noise(3_000)
    expected = own.linear(x, weight, bias)
    with ThreadPoolExecutor(4) as pool:
        found: list[Any] = list(pool.map(lambda _: own.linear(x, weight, bias), range(200)))
    assert all(torch.equal(product, expected) for product in found)


@pytest.mark.parametrize(
    ("switch", "capability", "level"), [("off", "AVX2", ""), ("", "AVX2", "AVX2"), ("", "DEFAULT", "")]
)
@pytest.mark.skipif(kernel.LEVEL == "NEON", reason="PyTorch's instruction set is another one")
def test_switches_lower_the_kernels(switch: str, capability: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ATEN_CPU_CAPABILITY` lowers PyTorch's."""
    monkeypatch.setenv("UAG_KERNELS", switch)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    loaded = runpy.run_path(kernel.__file__)
    described = {"": "PyTorch's operations, without uag's kernels: ", "AVX2": "uag's kernels (AVX2)"}
    assert (loaded["LEVEL"], loaded["describe"]()) == (level, described[level] + loaded["MISSING"])
    assert bool(loaded["MISSING"]) == (not level)
