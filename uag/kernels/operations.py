"""PyTorch's and transformers' operations, computed by uag's kernels in the threads that asked for it.

Where the kernels do not serve, what they replace runs instead.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import torch
from transformers.activations import SiLUActivation
from transformers.integrations import moe
from transformers.integrations.moe import batched_mm_experts_forward, grouped_mm_experts_forward
from transformers.integrations.sdpa_attention import create_position_bias_mask, sdpa_attention_forward

from uag.hf import devices
from uag.hf.inspection import without_functions
from uag.kernels import kernel

ANY = 1 << 62  # the number of rows that no pass exceeds


class _State(threading.local):
    most_rows = 0  # the most rows for which this thread's passes use the kernels; 0 outside of them
    reads_prompt = False
    """Whether this thread's passes also use the kernels for the products of a prompt, however many rows they have."""
    replaces_functions = False
    """Whether `Functions` is active."""
    passed_on: Counter[tuple[str, Any]] | None = None
    """What this thread's passes left to PyTorch although a kernel exists, by name and None; None if nobody asks."""


state = _State()


def direct() -> AbstractContextManager[Any]:
    """Call functions of PyTorch without `Functions`, which would delay each by microseconds."""
    return without_functions() if state.replaces_functions else nullcontext()


def pass_on(name: str) -> None:
    """Count an operation that the kernels leave to PyTorch."""
    if state.passed_on is not None:
        state.passed_on[name, None] += 1


def is_usual(x: Any) -> bool:
    """Return whether the kernels serve an input: plain, with at most `state.most_rows` rows."""
    return state.most_rows > 0 and is_plain(x) and x.numel() <= state.most_rows * x.shape[-1]


def is_plain(x: Any) -> bool:
    """Return whether an input is a plain tensor on the CPU, without gradients, tracing and autocast."""
    return (
        type(x) in (torch.Tensor, torch.nn.Parameter)
        and x.is_cpu
        and not x.is_nested
        and x.dim() > 0
        and x.numel() > 0
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    )


def is_of_prompt(x: Any) -> bool:
    """Return whether the kernels serve an input of a product in a prompt's pass.

    They do where PyTorch has no products for the processor's own instructions, which was timed with AVX2 only.
    """
    if not state.reads_prompt or kernel.LEVEL != "AVX2" or not is_plain(x):
        return False
    return x.dtype in (torch.bfloat16, torch.float16) and not devices.multiplies(x.dtype)


def attention(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return uag's function for one of transformers' attention functions, or the function itself."""
    if not state.most_rows:
        return function
    known = _known_attention(function)
    if known is None:
        pass_on(f"the attention {getattr(function, '__name__', function)!r}")
        return function
    return partial(_attention, known, function)


_OF_EAGER = {
    "F", "cat", "contiguous", "dim", "dropout", "dtype", "expand", "float", "float32", "functional", "head_dim",
    "keepdim", "matmul", "max", "nn", "num_key_value_groups", "repeat_kv", "reshape", "shape", "sinks", "size",
    "softmax", "tanh", "to", "torch", "training", "transpose", "type", "values", "view",
}  # fmt: skip
"""The names that transformers' eager attention functions use if they are softmax attention with a mask and, where their
class has them, a position bias, a softcap, or sinks as one more logit per head."""


_READ = frozenset((
    "module", "query", "key", "value", "attention_mask", "dropout", "scaling", "is_causal", "position_bias", "softcap",
))  # fmt: skip
_NOT_READ = frozenset((
    "sliding_window", "s_aux", "indices", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx",
    "position_ids", "use_cache", "cache_position", "output_attentions", "output_hidden_states", "output_router_logits",
    "num_items_in_batch", "logits_to_keep",
))  # fmt: skip
"""The arguments that transformers' functions compute with, and those that its classes pass for other functions. With
any other, the kernels do not know what a function computes."""


@cache
def _known_attention(function: Callable[..., Any]) -> tuple[tuple[str, ...], bool] | None:
    """Return a function's parameters and whether it reads its module's sinks; None if the kernel does not serve it."""
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    parameters = code.co_varnames[: code.co_argcount]
    if function is sdpa_attention_forward:
        return parameters, False
    is_eager = function.__name__ == "eager_attention_forward" and function.__module__.startswith("transformers.models.")
    is_known = is_eager and _OF_EAGER.issuperset(code.co_names) and "sinks" not in parameters
    return (parameters, "sinks" in code.co_names) if is_known else None


def _attention(known: tuple[tuple[str, ...], bool], function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run one of transformers' attention functions by uag's kernel, or as it is if that does not serve its inputs."""
    parameters, has_sinks = known
    with direct():
        given = named(parameters, args, kwargs)
        output = _own_attention(has_sinks, function is sdpa_attention_forward, parameters, given)
    if output is None:
        pass_on("attention")
        return function(*args, **kwargs)
    return output, None


def named(parameters: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a function by name; those beyond its parameters are left out, and it refuses them."""
    return dict(zip(parameters, args, strict=False)) | kwargs


def _own_attention(
    has_sinks: bool, is_sdpa: bool, parameters: Sequence[str], given: dict[str, Any]
) -> torch.Tensor | None:
    get: Callable[[str], Any] = given.get
    module, query, key, value, mask = map(get, ("module", "query", "key", "value", "attention_mask"))
    is_known = all(name in _READ or name in _NOT_READ or value is None for name, value in given.items())
    if not (is_known and isinstance(query, torch.Tensor) and fits_attention(query, key, value)):
        return None
    if (get("dropout") and module.training) or (is_sdpa and get("softcap") is not None):
        return None
    bias = get("position_bias") if "position_bias" in parameters else None
    if any(x is not None and x.shape[-1] not in (1, key.shape[2]) for x in (bias, mask)):
        return None  # most classes raise an error
    is_causal: Any = False
    if mask is None and is_sdpa and query.shape[2] > 1:
        is_causal = get("is_causal")
        is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if bias is not None:
        mask, is_causal = create_position_bias_mask(bias, mask, is_causal, query, key), False
    sinks, softcap = module.sinks if has_sinks else None, get("softcap") if "softcap" in parameters else None
    mask = causal_mask(query, key) if is_causal else mask
    return kernel.attention(query, key, value, mask, get("scaling"), softcap, sinks)


def fits_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Return whether the kernel serves these inputs."""
    return (
        is_usual(query[..., 0, 0, :] if query.dim() == 4 else query)
        and query.dim() == key.dim() == value.dim() == 4
        and query.shape[0] * query.shape[2] <= state.most_rows
        and key.shape[2] > 0
    )


def causal_mask(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return PyTorch's causal mask [1, 1, num_tokens, num_keys], which is aligned to the upper left."""
    return torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril_()[None, None]


def experts(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return uag's function for one of transformers' functions of experts, or the function itself."""
    is_known = function in (batched_mm_experts_forward, grouped_mm_experts_forward)
    return partial(_experts, function) if state.most_rows and is_known else function


_OF_EXPERTS = "self", "hidden_states", "top_k_index", "top_k_weights"


def _experts(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run one of transformers' functions of experts by uag's kernels, or as it is if they do not serve its inputs."""
    given = named(_OF_EXPERTS, args, kwargs)
    is_known = len(args) + len(kwargs) == len(_OF_EXPERTS) and given.keys() == set(_OF_EXPERTS)
    output = _own_experts(*map(given.get, _OF_EXPERTS)) if is_known else None
    if output is None:
        pass_on("experts")
        return function(*args, **kwargs)
    return output


def _own_experts(layer: Any, x: Any, chosen: Any, shares: Any) -> torch.Tensor | None:
    """Run the chosen experts of each token, and add their outputs in the order of their numbers."""
    # Transformers before 5.20 has neither attribute.
    if getattr(layer, "_is_expert_parallel", False) or getattr(layer, "has_post_expert_norm", False) or not is_usual(x):
        return None
    is_plain = layer.has_gate and layer.is_concatenated and not (layer.has_bias or layer.is_transposed)
    if is_plain and type(layer)._apply_gate is moe._default_apply_gate and _is_silu(layer.act_fn):
        with direct():
            return kernel.experts(x, chosen, shares, layer.gate_up_proj, layer.down_proj)
    product = kernel.conv1d if layer.is_transposed else kernel.linear
    first = "gate_up_proj" if layer.has_gate else "up_proj"
    output = torch.zeros_like(x, dtype=torch.float32)
    for expert in sorted(set(chosen.flatten().tolist())):
        tokens, places = torch.where(chosen == expert)
        hidden: Any = x[tokens]
        for name in (first, "down_proj"):
            bias = getattr(layer, f"{name}_bias")[expert] if layer.has_bias else None
            hidden = product(hidden, getattr(layer, name)[expert], bias)
            if hidden is None:
                return None
            if name == first:
                hidden = layer._apply_gate(hidden) if layer.has_gate else layer.act_fn(hidden)
        output.index_add_(0, tokens, hidden.float() * shares[tokens, places, None].float())
    return output.to(x.dtype)


def _is_silu(activation: Any) -> bool:
    return isinstance(activation, torch.nn.SiLU | SiLUActivation)
