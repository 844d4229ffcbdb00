"""Narrow passes of a model with Llama's blocks, computed without the modules around its products.

A pass of a small model over a few tokens is mostly Python: of the 1.8 ms that two layers of 192 take on one core, the
products are a tenth. Here the same weights are multiplied in the same order by a fifth of the calls; sums are added in
another order here and there, so logits are the model's own up to rounding. Which models this serves is found out in
`uag.hf.trials.forward`.
"""

from typing import Any, Self

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

_FIRST_POSITIONS = 1024
"""Positions whose rotations are computed at first, doubled as often as needed: more take longer and more memory."""

MOST_SHORT = 32
"""Tokens of a row in the widest pass that is computed so; what the modules cost is less in wider ones, and the model's
own forward is more careful with memory."""

_LINEAR = nn.Linear.forward
"""Where somebody puts another in its place, that one is called."""

_IS_LINEAR_OWN = _LINEAR.__globals__["__name__"] == nn.Linear.__module__

_MOST_POSITIONS = 1 << 15
"""Positions whose rotations are kept; others are computed for each pass. More take memory: 32 MB at heads of 128."""


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
    """A linear layer; a plain one whose forward nobody replaced is computed without its module, in half the time.

    Others get their tokens [num_rows, width, size], as they do from the model.
    """

    __slots__ = ("_changes", "_is_plain", "_module", "_parts")

    def __init__(self, module: Any) -> None:
        self._module, self._changes, self._parts = module, vars(module), module._parameters
        self._is_plain = type(module) is nn.Linear and _IS_LINEAR_OWN

    def __call__(self, x: torch.Tensor, num_rows: int) -> torch.Tensor:
        """Return the product of `x` [num_rows * width, size]."""
        if self._is_plain and "forward" not in self._changes and nn.Linear.forward is _LINEAR:
            return F.linear(x, self._parts["weight"], self._parts["bias"])
        out: torch.Tensor = self._module(x.view(num_rows, -1, x.shape[-1]))
        return out.view(len(x), -1)


class _Block:
    """One decoder layer.

    Raises:
        AttributeError: a part has another name, or is missing.
        ValueError: a norm is of another kind.
    """

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.q, self.k, self.v = _Product(attention.q_proj), _Product(attention.k_proj), _Product(attention.v_proj)
        self.o = _Product(attention.o_proj)
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
        q, k, v = self.q(h, num_rows).view(shape), self.k(h, num_rows).view(shape), self.v(h, num_rows).view(shape)
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
        x = x + self.o(seen, num_rows)
        h = self.before_mlp(x)
        return x + self.down(self.act(self.gate(h, num_rows)) * self.up(h, num_rows), num_rows)


class Blocks:
    """The forward of a causal LM whose decoder layers are Llama's.

    Args:
        model: the model.

    Raises:
        AttributeError, TypeError, ValueError: it is built otherwise.
    """

    def __init__(self, model: Any) -> None:
        base = model.model
        self._embed, self._head, self._rotary = base.embed_tokens, model.get_output_embeddings(), base.rotary_emb
        self._norm = _norm(base.norm)
        config = model.config.get_text_config(decoder=True)
        self._blocks = [_Block(layer) for layer in base.layers[: config.num_hidden_layers]]
        self._turns: tuple[torch.Tensor, torch.Tensor] | None = None
        self._num_shared = config.num_attention_heads // config.num_key_value_heads

    def __len__(self) -> int:
        """Return the number of layers."""
        return len(self._blocks)

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
        if last >= _MOST_POSITIONS:
            found = self._rotations(positions, x)
            return found[0].unsqueeze(2), found[1].unsqueeze(2)
        if turns is None or last >= len(turns[0]) or (turns[0].dtype, turns[0].device) != (x.dtype, x.device):
            num = max(_FIRST_POSITIONS, 1 << last.bit_length())
            cos, sin = self._rotations(torch.arange(num, device=x.device)[None], x)
            turns = self._turns = cos[0].contiguous(), sin[0].contiguous()
        cos, sin = (F.embedding(positions, table).unsqueeze(2) for table in turns)
        return cos, sin

    def _rotations(self, positions: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = self._rotary(x, positions)
        signs = torch.ones_like(sin)
        signs[..., : sin.shape[-1] // 2] = -1
        return cos, sin * signs


def _norm(module: Any) -> _Norm:
    found = _Norm.of(module)
    if found is None:
        raise ValueError(f"{type(module).__name__} is no root mean square norm")
    return found
