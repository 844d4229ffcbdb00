"""Narrow passes of a model with Llama's blocks, computed without the modules around its products.

A pass of a small model over a few tokens is mostly Python: of the 1.8 ms that two layers of 192 take on one core, the
products are a tenth. Here the same weights are multiplied in the same order by a fifth of the calls; sums are added in
another order here and there, so logits are the model's own up to rounding. A model is taken where its parts have the
usual names and a trial gives the model's own logits; whatever somebody hooked, replaced or wrapped keeps its forward.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from uag.hf import caches
from uag.hf.positions import cuts

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")

_FIRST_POSITIONS = 1024
"""Positions whose rotations are computed at first, doubled as often as needed: more take longer and more memory."""

_MOST_OFF, _MOST_OFF_IN_HALF = 1e-3, 5e-2
"""Difference from the model's own logits, as a share of the largest, in float32 and in half precision: more would take
models whose forward does something else, less would refuse for rounding."""

_TRIED_IDS = 9

MOST_SHORT = 32
"""Tokens of a row in the widest pass that is computed so; what the modules cost is less in wider ones, and the model's
own forward is more careful with memory."""

_kept: weakref.WeakKeyDictionary[Any, "tuple[list[int], Blocks | None]"] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class _Norm:
    """A root mean square norm: the weights stay the module's, whoever puts others in their place."""

    module: Any
    eps: float
    added: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.module.weight
        if x.dtype != torch.float32 or weight.dtype != torch.float32:
            return F.rms_norm(x, weight.shape, weight, self.eps)
        # On a CPU `rms_norm` is made of ten calls.
        scale = torch.add(self.added, (x * x).sum(-1, keepdim=True), alpha=1.0 / x.shape[-1]).rsqrt_()
        return (x * scale).mul_(weight)

    @classmethod
    def of(cls, module: Any) -> Self | None:
        """Return a module as such a norm; None where it computes something else."""
        weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if not isinstance(weight, torch.Tensor) or weight.dim() != 1 or eps is None or len(list(module.children())):
            return None
        x = torch.linspace(-1.0, 2.0, weight.numel(), dtype=weight.dtype, device=weight.device)[None]
        found = cls(module, float(eps), torch.tensor(float(eps)))
        return found if torch.allclose(found(x).float(), module(x).float(), rtol=2e-2, atol=1e-5) else None


class _Block:
    """One decoder layer.

    Raises:
        AttributeError: a part has another name, or is missing.
        ValueError: a norm is of another kind.
    """

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.q, self.k, self.v, self.o = attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj
        self.gate, self.up, self.down, self.act = mlp.gate_proj, mlp.up_proj, mlp.down_proj, mlp.act_fn
        self.before_attention, self.before_mlp = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
        self.q_norm, self.k_norm = (
            _norm(getattr(attention, name)) if hasattr(attention, name) else None for name in ("q_norm", "k_norm")
        )
        self.head_dim = int(attention.head_dim)
        self.scaling = float(getattr(attention, "scaling", self.head_dim**-0.5))

    def __call__(
        self, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor], mask: torch.Tensor | None, layer: Any
    ) -> torch.Tensor:
        rows, width, _ = x.shape
        shape = rows, width, -1, self.head_dim
        h = self.before_attention(x)
        q, k, v = self.q(h).view(shape), self.k(h).view(shape), self.v(h).view(shape)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        num_heads, num_groups = q.shape[2], k.shape[2]
        cos, sin = turn
        both = torch.cat((q, k), dim=2)
        both = torch.addcmul(both * cos, both.roll(self.head_dim // 2, -1), sin)
        keys, values = layer.update(both[:, :, num_heads:].transpose(1, 2), v.transpose(1, 2))
        # Heads that share their keys are looked at as further tokens, so that no key is copied.
        q = both[:, :, :num_heads].view(rows, width, num_groups, -1, self.head_dim).permute(0, 2, 3, 1, 4)
        q = q.reshape(rows, num_groups, -1, self.head_dim)
        seen = F.scaled_dot_product_attention(q, keys, values, mask, scale=self.scaling)
        seen = seen.view(rows, num_groups, -1, width, self.head_dim).permute(0, 3, 1, 2, 4).reshape(rows, width, -1)
        x = x + self.o(seen)
        h = self.before_mlp(x)
        out: torch.Tensor = x + self.down(self.act(self.gate(h)) * self.up(h))
        return out


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
        x = self._embed(ids)
        turn = self._turn(positions, last, x)
        for index, block in enumerate(self._blocks):
            x = block(x, turn, mask, cache.layers[index])
        logits: torch.Tensor = self._head(self._norm(x[:, -num_logits:]))
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
    if itself.training or any(map(_is_changed, modules)):
        return None
    parts, found = _kept.get(itself, ([], None))
    if parts != [id(module) for module in modules]:  # new, or somebody put another part in
        found = _tried(itself)
        _kept[itself] = [id(module) for module in modules], found
    return found


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
