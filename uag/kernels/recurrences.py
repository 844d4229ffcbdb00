"""Recurrences of blocks, run token by token: by the function that a class calls for a single token after its state.

For a block, transformers' classes call another function, which computes all tokens at once and rounds otherwise. What
surrounds the recurrence, above all the projections, still runs once for the block.
"""

import inspect
from collections.abc import Callable
from functools import cache, partial
from types import FunctionType
from typing import Any

import torch

from uag.kernels import operations


def stepped(kind: type) -> Callable[..., Any] | None:
    """Return the forward of a class of layers with its recurrence run token by token; None if it has none."""
    names = _recurrences_in(kind)
    if not names:
        return None
    # A copy of the function with names of its own, so that the class and its module stay as they are.
    forward = inspect.unwrap(kind.forward)  # type: ignore[attr-defined]
    known = dict(forward.__globals__)
    for of_block in names:
        of_token, token, block = _RECURRENCES[of_block]
        step = partial(token, known[of_token])
        known |= {of_token: step, of_block: partial(block, step, known[of_block])}
    copied = FunctionType(forward.__code__, known, forward.__name__, forward.__defaults__, forward.__closure__)
    copied.__kwdefaults__ = forward.__kwdefaults__
    return copied


@cache
def _recurrences_in(kind: type) -> tuple[str, ...]:
    """Return the functions for blocks that a class's forward calls beside their function for a token."""
    names = getattr(inspect.unwrap(getattr(kind, "forward", None)), "__code__", stepped.__code__).co_names
    return tuple(name for name, (of_token, *_) in _RECURRENCES.items() if {name, of_token} <= set(names))


def _alone(x: torch.Tensor) -> torch.Tensor:
    """Return a copy in memory of its own, so that no operation chooses its code by strides or addresses."""
    return x.clone(memory_format=torch.contiguous_format)


def _delta_token(function: Callable[..., Any], *args: torch.Tensor, **kwargs: Any) -> Any:
    """Run the delta rule for a token: queries, keys, values, decay and beta [batch, 1, heads, ...]."""
    given = {name: _alone(kwargs.pop(name)) for name in ("g", "beta")}
    with operations.direct():
        return function(*map(_alone, args), **given, **kwargs)


def _delta_block(
    step: Callable[..., Any],
    function: Callable[..., Any],
    *args: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None,
    **kwargs: Any,
) -> Any:
    """Run the delta rule token by token, if there is a state; as it is for a prompt."""
    if initial_state is None:
        return function(*args, g=g, beta=beta, initial_state=initial_state, **kwargs)
    state, outputs = initial_state, []
    for place in range(g.shape[1]):
        *inputs, of_g, of_beta = (x[:, place : place + 1] for x in (*args, g, beta))
        output, state = step(*inputs, g=of_g, beta=of_beta, initial_state=state, **kwargs)
        state = state.to(initial_state.dtype)  # as the cache keeps it
        outputs.append(output)
    return torch.cat(outputs, dim=1), state


def _mamba_token(
    function: Callable[..., Any],
    state: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    *args: torch.Tensor,
    z: torch.Tensor | None,
    **kwargs: Any,
) -> torch.Tensor:
    """Run Mamba 2's update for a token, which changes the state: x and dt [batch, heads, size], b, c [batch, .., n]."""
    with operations.direct():
        output: torch.Tensor = function(state, _alone(x), _alone(dt), a, _alone(b), _alone(c), *args, z=None, **kwargs)
    return output if z is None else output * torch.nn.functional.silu(z)  # as it is outside of a block's function


def _mamba_block(
    step: Callable[..., Any],
    function: Callable[..., Any],
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    *,
    initial_states: torch.Tensor | None,
    **kwargs: Any,
) -> Any:
    """Run Mamba 2 token by token, if there is a state; as it is for a prompt."""
    if initial_states is None:
        return function(x, dt, a, b, c, initial_states=None, **kwargs)
    size, options = x.shape[-1], {"z": None, "dt_softplus": kwargs["dt_softplus"]}
    wide, skip, bias = (each[:, None].expand(-1, size) for each in (a, kwargs["D"], kwargs["dt_bias"]))
    wide = wide[..., None].expand(-1, -1, b.shape[-1])
    outputs = [
        step(initial_states, of_x, of_dt[..., None].expand_as(of_x), wide, of_b, of_c, skip, dt_bias=bias, **options)
        for of_x, of_dt, of_b, of_c in zip(*(each.unbind(1) for each in (x, dt, b, c)), strict=True)
    ]
    output = torch.stack(outputs, dim=1)
    return (output, initial_states) if kwargs["return_final_states"] else output


_RECURRENCES: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "torch_chunk_gated_delta_rule": ("torch_recurrent_gated_delta_rule", _delta_token, _delta_block),
    "chunk_kimi_delta_attention": ("recurrent_kimi_delta_attention", _delta_token, _delta_block),
    "mamba2_chunk_scan": ("mamba2_selective_state_update", _mamba_token, _mamba_block),
}
"""transformers' functions for blocks, each with its function for a token, and what runs instead of both."""
