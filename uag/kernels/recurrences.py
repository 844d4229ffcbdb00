"""Recurrences of blocks, run token by token: by the function that a class calls for a single token after its state.

For a block, transformers' classes call another function, which computes all tokens at once and rounds otherwise. What
surrounds the recurrence, above all the projections, still runs once for the block.
"""

import inspect
from collections.abc import Callable
from functools import cache, partial
from types import CodeType, FunctionType
from typing import Any

import torch

from uag.kernels import operations

_Function = Callable[..., Any]


def stepped(kind: Any) -> _Function | None:
    """Return the forward of a class of layers with its recurrence run token by token; None if it has none."""
    found = getattr(kind, "forward", None)
    forward: Any = inspect.unwrap(found) if isinstance(found, FunctionType) else None
    names = _recurrences_in(getattr(forward, "__code__", None))
    if not names:
        return None
    # A copy of the function with names of its own, so that the class and its module stay as they are.
    known = dict(forward.__globals__)
    for of_block in names:
        of_token, token, block = _RECURRENCES[of_block]
        step = partial(token, known[of_token])
        known |= {of_token: step, of_block: partial(block, step, known[of_block])}
    copied = FunctionType(forward.__code__, known, forward.__name__, forward.__defaults__, forward.__closure__)
    copied.__kwdefaults__ = forward.__kwdefaults__
    return copied


@cache
def _recurrences_in(code: CodeType | None) -> tuple[str, ...]:
    """Return the functions for blocks that a forward's code calls, if it also calls their function for a token."""
    names = set(code.co_names if code else ())
    return tuple(of_block for of_block, (of_token, *_) in _RECURRENCES.items() if {of_block, of_token} <= names)


def _alone(x: torch.Tensor) -> torch.Tensor:
    """Return a copy in memory of its own, so that no operation chooses its code by strides or addresses."""
    return x.clone(memory_format=torch.contiguous_format)


def _delta_token(function: _Function, *args: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, **kwargs: Any) -> Any:
    """Run the delta rule for one token: queries, keys, values, decay and beta are [batch, 1, heads, ...]."""
    with operations.direct():
        return function(*map(_alone, args), g=_alone(g), beta=_alone(beta), **kwargs)


def _delta_block(step: _Function, function: _Function, *args: torch.Tensor, initial_state: Any, **kwargs: Any) -> Any:
    """Run the delta rule token by token after a state, for as many tokens as the kernels serve; otherwise as it is."""
    if initial_state is None or not operations.is_usual(kwargs["beta"]):
        return function(*args, initial_state=initial_state, **kwargs)
    inputs, state, outputs = (*args, kwargs.pop("g"), kwargs.pop("beta")), initial_state, []
    for *of_token, g, beta in zip(*(x.split(1, dim=1) for x in inputs), strict=True):
        output, state = step(*of_token, g=g, beta=beta, initial_state=state, **kwargs)
        state = state.to(initial_state.dtype)  # as the cache keeps it
        outputs.append(output)
    return torch.cat(outputs, dim=1), state


def _mamba_token(function: _Function, state: torch.Tensor, *args: torch.Tensor, z: Any, **kwargs: Any) -> Any:
    """Run Mamba 2's update of a state for one token: x and dt are [batch, heads, size], B and C [batch, groups, n]."""
    x, dt, a, b, c, *others = args
    with operations.direct():
        output = function(state, _alone(x), _alone(dt), a, _alone(b), _alone(c), *others, z=None, **kwargs)
    return output if z is None else output * torch.nn.functional.silu(z)  # as classes compute it after a block


def _mamba_block(step: _Function, function: _Function, *args: torch.Tensor, initial_states: Any, **kwargs: Any) -> Any:
    """Run Mamba 2 token by token after a state, for as many tokens as the kernels serve; otherwise as it is."""
    x, dt, a, b, c = args
    if initial_states is None or operations.state.most_rows != operations.ANY:  # of a prompt, which is PyTorch's
        return function(*args, initial_states=initial_states, **kwargs)
    if not operations.is_usual(dt):
        operations.pass_on("mamba2_chunk_scan")
        no_limit = {"dt_limit": (0.0, float("inf"))}  # as for a single token
        return function(*args, initial_states=initial_states, **kwargs | no_limit)
    wide, skip, bias = (of_head[:, None].expand(-1, x.shape[-1]) for of_head in (a, kwargs["D"], kwargs["dt_bias"]))
    wide = wide[..., None].expand(-1, -1, b.shape[-1])
    options = {"z": None, "dt_bias": bias, "dt_softplus": kwargs["dt_softplus"]}
    outputs = [
        step(initial_states, of_x, of_dt[..., None].expand_as(of_x), wide, of_b, of_c, skip, **options)
        for of_x, of_dt, of_b, of_c in zip(*(each.unbind(1) for each in (x, dt, b, c)), strict=True)
    ]
    output = torch.stack(outputs, dim=1)
    return (output, initial_states) if kwargs["return_final_states"] else output


_RECURRENCES: dict[str, tuple[str, _Function, _Function]] = {
    "torch_chunk_gated_delta_rule": ("torch_recurrent_gated_delta_rule", _delta_token, _delta_block),
    "chunk_kimi_delta_attention": ("recurrent_kimi_delta_attention", _delta_token, _delta_block),
    "mamba2_chunk_scan": ("mamba2_selective_state_update", _mamba_token, _mamba_block),
}
"""transformers' functions for blocks, each with its function for a token, and what runs instead of both."""
