"""Short passes of a Llama-style model without the overhead of its modules.

A short pass of a small model is mostly Python overhead. This forward applies the same weights in the same order with
far fewer calls. Some sums are reordered, so logits match the model's up to rounding. `uag.hf.trials.forward` decides
which models use it.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

MOST_SHORT = 32
"""Maximum tokens per row in a pass that uses this forward.

Increase to use this forward for wider passes; decrease to leave them to the model, whose forward needs less memory.
"""


class _Norm:
    """An RMSNorm that reads the module's weight at every pass, so that a replaced weight takes effect.

    Raises:
        ValueError: the module has other parts; the trial detects norms that compute something else.
    """

    def __init__(self, module: Any) -> None:
        weight = module._parameters.get("weight")
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if weight is None or weight.dim() != 1 or eps is None or len(list(module.children())):
            raise ValueError(f"{type(module).__name__} is not a root mean square norm")
        self._parameters, self._eps = module._parameters, float(eps)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weight: torch.Tensor = self._parameters["weight"]
        return F.rms_norm(x, weight.shape, weight, self._eps)


class _Block:
    """One decoder layer.

    Raises:
        AttributeError: a submodule is missing or has another name.
        ValueError: a norm is not an RMSNorm.
    """

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.q, self.k, self.v, self.o = attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj
        self.gate, self.up, self.down, self.act = mlp.gate_proj, mlp.up_proj, mlp.down_proj, mlp.act_fn
        self.before_attention, self.before_mlp = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        has_norms = hasattr(attention, "q_norm") and hasattr(attention, "k_norm")
        self.head_norms = (_Norm(attention.q_norm), _Norm(attention.k_norm)) if has_norms else None
        self.head_dim = int(attention.head_dim)
        self.scaling = float(getattr(attention, "scaling", self.head_dim**-0.5))

    def __call__(
        self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], mask: torch.Tensor | None, layer: Any
    ) -> torch.Tensor:
        """Return the layer's output for `x` [num_rows, width, size]; `layer` is its cache."""
        num_rows, width, _ = x.shape
        shape = num_rows, width, -1, self.head_dim
        h = self.before_attention(x)
        q, k, v = self.q(h).view(shape), self.k(h).view(shape), self.v(h).view(shape)
        if self.head_norms is not None:
            q, k = self.head_norms[0](q), self.head_norms[1](k)
        num_heads, num_groups = q.shape[2], k.shape[2]
        cos, sin = rotation
        both = torch.cat((q, k), dim=2)
        both = torch.addcmul(both * cos, both.roll(self.head_dim // 2, -1), sin)
        keys, values = layer.update(both[:, :, num_heads:].transpose(1, 2), v.transpose(1, 2))
        # Heads that share keys are treated as additional tokens, so that no key is copied.
        q = both[:, :, :num_heads].view(num_rows, width, num_groups, -1, self.head_dim).permute(0, 2, 3, 1, 4)
        q = q.reshape(num_rows, num_groups, -1, self.head_dim)
        attended = F.scaled_dot_product_attention(q, keys, values, mask, scale=self.scaling)
        attended = attended.view(num_rows, num_groups, -1, width, self.head_dim).permute(0, 3, 1, 2, 4)
        x = x + self.o(attended.reshape(num_rows, width, -1))
        h = self.before_mlp(x)
        output: torch.Tensor = x + self.down(self.act(self.gate(h)) * self.up(h))
        return output


class Blocks:
    """The forward of a causal LM with Llama-style decoder layers.

    Raises:
        AttributeError, TypeError, ValueError: the model has another structure.
    """

    def __init__(self, model: Any) -> None:
        base = model.model
        self._embed, self._head, self._rotary = base.embed_tokens, model.get_output_embeddings(), base.rotary_emb
        self._norm = _Norm(base.norm)
        config = model.config.get_text_config(decoder=True)
        self._blocks = [_Block(layer) for layer in base.layers[: config.num_hidden_layers]]
        self._num_shared = config.num_attention_heads // config.num_key_value_heads

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, cache: Any, num_logits: int
    ) -> torch.Tensor:
        """Run a pass and append its keys and values to the cache.

        Args:
            ids: [num_rows, width].
            positions: [num_rows, width].
            mask: [num_rows, 1, width, slots], added to the attention scores; None if every token attends to all slots.
            cache: a dynamic cache.
            num_logits: number of last tokens whose logits are returned.

        Returns:
            [num_rows, num_logits, vocab_size].
        """
        if mask is not None and self._num_shared > 1:
            mask = mask.repeat(1, 1, self._num_shared, 1)
        x = self._embed(ids)
        rotation = self._rotation(positions, x)
        for block, layer in zip(self._blocks, cache.layers, strict=True):
            x = block(x, rotation, mask, layer)
        logits: torch.Tensor = self._head(self._norm(x[:, -num_logits:]))
        return logits

    def _rotation(self, positions: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cosines and the sines (negated in the first half): [num_rows, width, 1, head_dim] each."""
        cos, sin = self._rotary(x, positions)
        signs = torch.ones_like(sin)
        signs[..., : sin.shape[-1] // 2] = -1
        return cos.unsqueeze(2), (sin * signs).unsqueeze(2)
