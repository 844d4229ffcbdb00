"""Narrow passes of a model with Llama's blocks, computed without the modules around its products.

A pass of a small model over a few tokens is mostly Python: of the 1.8 ms that two layers of 192 take on one core, the
products are a tenth. Here the same weights are multiplied in the same order by a fifth of the calls; sums are added in
another order here and there, so logits are the model's own up to rounding. A model is taken where its parts have the
usual names and a trial gives the model's own logits; whatever somebody hooked, replaced or wrapped keeps its forward.
"""

import weakref
from collections.abc import Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.modules import module as torch_module

from uag.hf import caches
from uag.hf.positions import cuts

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")

_FIRST_POSITIONS = 1024
"""Positions whose rotations are computed at first, doubled as often as needed: more take longer and more memory."""

_MOST_OFF, _MOST_OFF_IN_HALF = 1e-3, 5e-2
"""Difference from the model's own logits, as a share of the largest, in float32 and in half precision: more would take
models whose forward does something else, less would refuse for rounding."""

_TRIED_IDS = 9

MOST_SHORT = 32
"""Tokens of a row in the widest pass that is computed so; what the modules cost is less in wider ones, and the model's
own forward is more careful with memory."""

_LINEAR = nn.Linear.forward
"""Where somebody puts another in its place, that one is called."""

_kept: weakref.WeakKeyDictionary[Any, "tuple[list[int], Blocks | None]"] = weakref.WeakKeyDictionary()


class _Norm:
    """A root mean square norm: the weight stays the module's, whoever puts another in its place."""

    __slots__ = ("_added", "_eps", "_parts")

    def __init__(self, module: Any, eps: float) -> None:
        self._parts, self._eps, self._added = module._parameters, eps, torch.tensor(eps)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weight: torch.Tensor = self._parts["weight"]
        if x.dtype != torch.float32 or weight.dtype != torch.float32:
            return F.rms_norm(x, weight.shape, weight, self._eps)
        # On a CPU `rms_norm` is made of ten calls.
        scale = torch.add(self._added, (x * x).sum(-1, keepdim=True), alpha=1.0 / x.shape[-1]).rsqrt_()
        return (x * scale).mul_(weight)

    @classmethod
    def of(cls, module: Any) -> Self | None:
        """Return a module as such a norm; None where it computes something else."""
        weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if not isinstance(weight, torch.Tensor) or weight.dim() != 1 or eps is None or len(list(module.children())):
            return None
        if "weight" not in module._parameters:
            return None
        x = torch.linspace(-1.0, 2.0, weight.numel(), dtype=weight.dtype, device=weight.device)[None]
        found = cls(module, float(eps))
        return found if torch.allclose(found(x).float(), module(x).float(), rtol=2e-2, atol=1e-5) else None


class _Product:
    """A linear layer; a plain one whose forward nobody replaced is computed without its module, in half the time."""

    __slots__ = ("_changes", "_is_plain", "_module", "_parts")

    def __init__(self, module: Any) -> None:
        self._module, self._changes, self._parts = module, vars(module), module._parameters
        self._is_plain = type(module) is nn.Linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._is_plain and "forward" not in self._changes and nn.Linear.forward is _LINEAR:
            return F.linear(x, self._parts["weight"], self._parts["bias"])
        out: torch.Tensor = self._module(x)
        return out


class _Block:
    """One decoder layer.

    Raises:
        AttributeError: a part has another name, or is missing.
        ValueError: a norm is of another kind.
    """

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.q, self.k, self.v, self.o = (_Product(getattr(attention, f"{name}_proj")) for name in "qkvo")
        self.gate, self.up, self.down = _Product(mlp.gate_proj), _Product(mlp.up_proj), _Product(mlp.down_proj)
        self.act = mlp.act_fn
        self.before_attention, self.before_mlp = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
        self.q_norm, self.k_norm = (
            _norm(getattr(attention, name)) if hasattr(attention, name) else None for name in ("q_norm", "k_norm")
        )
        self.head_dim = int(attention.head_dim)
        self.scaling = float(getattr(attention, "scaling", self.head_dim**-0.5))

    def __call__(
        self,
        x: torch.Tensor,
        num_rows: int,
        turn: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor | None,
        layer: Any,
    ) -> torch.Tensor:
        """Return what becomes of `x` [num_rows * width, size]; in two dimensions products take fewer steps."""
        width, size = x.shape[0] // num_rows, self.head_dim
        shape = num_rows, width, -1, size
        h = self.before_attention(x)
        q, k, v = self.q(h).view(shape), self.k(h).view(shape), self.v(h).view(shape)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        num_heads, num_groups = q.shape[2], k.shape[2]
        cos, sin = turn
        both = torch.cat((q, k), dim=2)
        both = torch.addcmul(both * cos, both.roll(size // 2, -1), sin)
        keys, values = layer.update(both[:, :, num_heads:].transpose(1, 2), v.transpose(1, 2))
        # Heads that share their keys are looked at as further tokens, so that no key is copied.
        q = both[:, :, :num_heads].view(num_rows, width, num_groups, -1, size).permute(0, 2, 3, 1, 4)
        q = q.reshape(num_rows, num_groups, -1, size)
        seen = F.scaled_dot_product_attention(q, keys, values, mask, scale=self.scaling)
        seen = seen.view(num_rows, num_groups, -1, width, size).permute(0, 3, 1, 2, 4).reshape(len(x), -1)
        x = x + self.o(seen)
        h = self.before_mlp(x)
        return x + self.down(self.act(self.gate(h)) * self.up(h))


class Blocks:
    """The forward of a causal LM whose decoder layers are Llama's.

    Args:
        model: the model.

    Attributes:
        off: how far a trial was from the model's own logits, as a share of the largest.

    Raises:
        AttributeError, TypeError, ValueError: it is built otherwise.
    """

    def __init__(self, model: Any) -> None:
        base = model.model
        self._embed, self._head, self._rotary = base.embed_tokens, model.get_output_embeddings(), base.rotary_emb
        self._norm = _norm(base.norm)
        self._blocks = [_Block(layer) for layer in base.layers]
        self._turns: tuple[torch.Tensor, torch.Tensor] | None = None
        config = model.config.get_text_config(decoder=True)
        self._num_shared = config.num_attention_heads // config.num_key_value_heads
        self.off = 0.0

    def __call__(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        last: int,
        mask: torch.Tensor | None,
        cache: Any,
        num_logits: int,
    ) -> torch.Tensor:
        """Run a pass that the cache grows by.

        Args:
            ids: [num_rows, width].
            positions: [num_rows, width].
            last: the largest of them.
            mask: [num_rows, 1, width, slots], added to the scores of attention; None where every token sees all slots.
            cache: a dynamic cache.
            num_logits: tokens at the end whose logits are wanted.

        Returns:
            [num_rows, num_logits, vocab_size].
        """
        if mask is not None and self._num_shared > 1:
            mask = mask.repeat(1, 1, self._num_shared, 1)
        num_rows, width = ids.shape
        x = self._embed(ids)
        turn = self._turn(positions, last, x)
        x = x.view(num_rows * width, -1)
        for block, layer in zip(self._blocks, cache.layers, strict=True):
            x = block(x, num_rows, turn, mask, layer)
        logits: torch.Tensor = self._head(self._norm(x.view(num_rows, width, -1)[:, -num_logits:]))
        return logits

    def _turn(self, positions: torch.Tensor, last: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rotations at positions, [num_rows, width, 1, head_dim]: cosines, and sines with the halves' signs."""
        turns = self._turns
        if turns is None or last >= len(turns[0]) or (turns[0].dtype, turns[0].device) != (x.dtype, x.device):
            num = max(_FIRST_POSITIONS, 1 << last.bit_length())
            cos, sin = self._rotary(x, torch.arange(num, device=x.device)[None])
            signs = torch.ones_like(sin)
            signs[..., : sin.shape[-1] // 2] = -1
            turns = self._turns = cos[0].contiguous(), (sin * signs)[0].contiguous()
        cos, sin = (F.embedding(positions, table).unsqueeze(2) for table in turns)
        return cos, sin


def _norm(module: Any) -> _Norm:
    found = _Norm.of(module)
    if found is None:
        raise ValueError(f"{type(module).__name__} is no root mean square norm")
    return found


def blocks_of(model: Any) -> Blocks | None:
    """Return the short forward of a model, None where it has none; the first asking takes three small passes."""
    modules = list(model.modules())
    itself = modules[0]  # a draft may come as a weak proxy, which cannot be a key
    if itself.training or has_global_hooks() or any(map(_is_changed, modules)):
        return None
    parts, found = _kept.get(itself, ([], None))
    if parts != [id(module) for module in modules]:  # new, or somebody put another part in
        found = _tried(itself)
        _kept[itself] = [id(module) for module in modules], found
    return found


def has_global_hooks() -> bool:
    """Whether somebody watches every module of the process."""
    return any(getattr(torch_module, name, None) for name in _GLOBAL_HOOKS)


def _is_changed(module: Any) -> bool:
    """Whether somebody hooked a module or replaced its forward: compiled, offloaded, watched."""
    known = vars(module)
    replaced = "forward" in known and not isinstance(module, nn.Linear)  # products are called as they are
    return replaced or any(known.get(name) for name in _HOOKS)


def _tried(model: Any) -> Blocks | None:
    try:
        found = Blocks(model)
        return found if not cuts(model) and _agrees(model, found) else None
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        return None


def _agrees(model: Any, found: Blocks) -> bool:
    size, device = int(model.get_input_embeddings().weight.shape[0]), model.get_input_embeddings().weight.device
    ids = torch.tensor([[(size // 3 + 7 * i) % size for i in range(_TRIED_IDS)]], device=device)
    positions = torch.arange(_TRIED_IDS, device=device)[None]
    own: Sequence[Any] = caches.dynamic_cache(), caches.dynamic_cache()
    with torch.inference_mode():
        for cache in own:
            model(input_ids=ids[:, :-4], position_ids=positions[:, :-4], past_key_values=cache, use_cache=True)
        expected = model(
            input_ids=ids[:, -4:], position_ids=positions[:, -4:], past_key_values=own[0], use_cache=True
        ).logits.float()
        hidden = torch.full((1, 1, 4, _TRIED_IDS), torch.finfo(model.dtype).min, dtype=model.dtype, device=device)
        got = found(ids[:, -4:], positions[:, -4:], _TRIED_IDS - 1, hidden.triu(_TRIED_IDS - 3), own[1], 4).float()
    found.off = float((got - expected).abs().max() / expected.abs().max())
    return found.off <= (_MOST_OFF if model.dtype == torch.float32 else _MOST_OFF_IN_HALF)
