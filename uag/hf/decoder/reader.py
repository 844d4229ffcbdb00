"""Reads the description of a decoder from the modules of a transformers model.

Nothing here names a class of transformers. Modules are recognized by the names that decoders share, and a norm or an
embedding by what it computes. `uag.kernels.decoder` runs a description, and a trial compares it with the model
(`uag.kernels.decoders`), so a model that is read wrongly is left to PyTorch.
"""

import inspect
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from uag.errors import UagError
from uag.hf import models, positions, wrapped
from uag.hf.cache import caches
from uag.hf.decoder.description import Attention, Block, Description, Linear, Mlp, Norm
from uag.hf.inspection import is_training, parameters

_PLAIN = (nn.Parameter, torch.Tensor)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_ACTIVATIONS = {
    "SiLU": "silu", "SiLUActivation": "silu", "GELUActivation": "gelu", "GELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh", "FastGELUActivation": "gelu_tanh", "QuickGELUActivation": "quick_gelu",
    "ReLU": "relu",
}  # fmt: skip


class UndescribedError(UagError):
    """A model has something that a description cannot express; the message follows "the model"."""


def _angles(rotary: Any, name: str, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cosines and sines of the first `num` positions, from the model's own module."""
    with torch.inference_mode():
        places = torch.arange(num, device="cpu")[None]
        arguments = torch.zeros(1, 1, 1, dtype=torch.float32, device="cpu"), places
        cos, sin = (each[0].float() for each in rotary(*arguments, *([name] if name else [])))
    half = cos.shape[-1] // 2
    if num > 1 and torch.equal(cos[:, :half], cos[:, half:]):
        cos, sin = cos[:, :half], sin[:, :half]
    elif num > 1 and torch.equal(cos[:, ::2], cos[:, 1::2]):
        raise UndescribedError("rotates neighboring numbers")
    return cos.contiguous(), sin.contiguous()


def _embedding_factor(embedding: Any, table: torch.Tensor) -> float:
    """Return what an embedding multiplies its rows by, measured on the first one that shows it."""
    first = table[:64].float()
    largest = first.abs().amax(-1)
    shown = ((largest > 1e-6) & (largest < 1e6)).nonzero().flatten().tolist()
    if not shown:
        raise UndescribedError("has an embedding whose rows are zero or not finite")
    found = embedding(torch.tensor(shown[:1]))[0].detach().float()
    place = int(first[shown[0]].abs().argmax())
    return float(found[place] / first[shown[0], place])


def describe(model: Any) -> Description:
    """Return the description of a causal LM whose weights are plain CPU tensors.

    Raises:
        UndescribedError: the model has something else.
    """
    return _Reader(model).description()


class _Reader:
    def __init__(self, model: Any) -> None:
        if model.config.is_encoder_decoder:
            raise UndescribedError("is an encoder-decoder")
        if models.default_cache_refusals(model) or models.state_layers(model):
            raise UndescribedError(f"keeps a state ({models.state_layers(model) or 'outside its cache'})")
        if is_training(model):
            raise UndescribedError("is in training mode")
        self.model, self.config = model, model.config.get_text_config(decoder=True)
        base = model.base_model
        self.base = getattr(base, "decoder", base)
        self.read: set[int] = set()  # the parameters that the description contains, by id
        self.rotary: Any = None
        self.shape = 0, 0, 0  # the numbers of heads and of key-value heads, and the size of a head
        self.has_softcap = models.attention_of(model) != "sdpa"  # which ignores it (Gemma 2, older transformers)
        self.gains: dict[type, float] = {}  # of each class of norms, what is added to its weights

    def description(self) -> Description:
        model, config, base = self.model, self.config, self.base
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        layers = self._first(base, "layers", "h", "blocks")
        has_blocks = isinstance(layers, nn.ModuleList) and len(layers) > 0
        if not isinstance(embedding, nn.Embedding) or head is None or not has_blocks:
            raise UndescribedError("is not a decoder of blocks with an embedding and a head")
        table = self._weight(embedding)
        learned = self._first(base, "wpe", "embed_positions", optional=True)
        windows = [getattr(layer, "sliding_window", None) or 0 for layer in caches.default_layers(model)]
        self.windows = windows if len(windows) == len(layers) else [0] * len(layers)
        blocks = tuple(self._block(layer, index) for index, layer in enumerate(layers))  # sets the numbers of heads
        final = self._first(base, "norm", "ln_f", "final_layer_norm", "final_layernorm", optional=True)
        description = Description(
            embedding=table,
            embedding_factor=_embedding_factor(embedding, table) * float(getattr(base, "embedding_multiplier", 1.0)),
            positions=None if learned is None else self._weight(learned),
            first_position=int(getattr(learned, "offset", 0)),
            blocks=blocks,
            norm=self._norm(final),
            head=self._linear(head),
            head_factor=float(getattr(config, "logit_scale", None) or 1.0)
            / float(getattr(config, "logits_scaling", None) or 1.0),
            head_softcap=float(getattr(config, "final_logit_softcapping", None) or 0.0),
            num_heads=self.shape[0],
            num_kv_heads=self.shape[1],
            head_dim=self.shape[2],
            angles=partial(_angles, self.rotary),
            max_positions=min([models.max_positions(model), *(cut.at for cut in positions.cuts(model))]),
        )
        unread = next((name for name, each in model.named_parameters() if id(each) not in self.read), None)
        if unread is not None:
            raise UndescribedError(f"has weights with an unknown meaning ({unread})")
        return description

    def _block(self, layer: Any, index: int) -> Block:
        attention = self._first(layer, "self_attn", "attn", "attention")
        names = {
            "before_attention": ("input_layernorm", "ln_1", "self_attn_layer_norm"),
            "before_mlp": ("pre_feedforward_layernorm", "post_attention_layernorm", "ln_2", "final_layer_norm"),
            "after_mlp": ("post_feedforward_layernorm",),
        }
        found = {role: self._first(layer, *of_role, optional=True) for role, of_role in names.items()}
        found["after_attention"] = None
        if found["after_mlp"] is not None:  # then the norm of this name is behind attention
            found["after_attention"] = self._first(layer, "post_attention_layernorm", optional=True)
            if found["before_mlp"] is found["after_attention"]:
                found["before_mlp"] = None
        has_own_norm = found["before_mlp"] is not None or found["after_mlp"] is not None
        is_parallel = bool(getattr(layer, "use_parallel_residual", False)) or not has_own_norm
        norms = {role: self._norm(norm) for role, norm in found.items()}
        if is_parallel and norms["before_mlp"] is None:
            norms["before_mlp"] = norms["before_attention"]
        if getattr(layer, "do_layer_norm_before", True) is False:
            raise UndescribedError("norms the sum of a block's input and output")
        return Block(
            attention=self._attention(attention, index),
            mlp=self._mlp(getattr(layer, "mlp", layer)),
            is_parallel=is_parallel,
            factor=float(getattr(layer, "residual_multiplier", 1.0)),
            **norms,
        )

    def _attention(self, module: Any, index: int) -> Attention:
        config = self.config
        num_heads = int(config.num_attention_heads)
        fused = self._first(module, "qkv_proj", "c_attn", "query_key_value", optional=True)
        out = self._linear(self._first(module, "o_proj", "out_proj", "c_proj", "dense"))
        size = getattr(module, "head_dim", None) or getattr(module, "head_size", None)
        size = size or out.weight.shape[1] // num_heads
        if fused is None:
            query, key, value = (self._linear(self._first(module, name)) for name in ("q_proj", "k_proj", "v_proj"))
        else:
            both = self._linear(fused)
            num_kv = (both.weight.shape[0] // size - num_heads) // 2
            ends = num_heads * size, (num_heads + num_kv) * size, (num_heads + 2 * num_kv) * size
            if hasattr(module, "query_key_value"):  # the query, key and value of each head follow each other
                if num_kv != num_heads:
                    raise UndescribedError("has fused queries, keys and values of different numbers of heads")
                order = torch.arange(ends[2]).view(num_heads, 3, size).transpose(0, 1).flatten()
                both = Linear(both.weight[order], None if both.bias is None else both.bias[order])
            query, key, value = both.part(0, ends[0]), both.part(ends[0], ends[1]), both.part(ends[1], ends[2])
        shape = query.weight.shape[0] // size, key.weight.shape[0] // size, size
        if index and shape != self.shape:
            raise UndescribedError("has layers with different numbers of heads")
        if value.weight.shape[0] != key.weight.shape[0] or size % 8 or shape[0] % shape[1]:
            raise UndescribedError("has heads of an unusual size")
        self.shape = shape
        query_norm = self._norm(self._first(module, "q_norm", "q_layernorm", optional=True))
        key_norm = self._norm(self._first(module, "k_norm", "k_layernorm", optional=True))
        norms_all = query_norm is not None and query_norm.weight is not None and len(query_norm.weight) != size
        sinks = getattr(module, "sinks", None)
        if sinks is not None:
            self.read.add(id(sinks))
        rotary = getattr(self.base, "rotary_emb", None) or getattr(module, "rotary_emb", None)
        self.rotary = self.rotary or rotary
        kind = (getattr(config, "layer_types", None) or [""] * (index + 1))[index]
        by_layer = rotary is not None and "layer_type" in inspect.signature(rotary.forward).parameters
        has_rotary = rotary is not None and bool(getattr(module, "use_rope", True))
        return Attention(
            query, key, value, out, query_norm, key_norm, norms_all,
            rotary=(kind if by_layer else "") if has_rotary else None,
            window=self.windows[index],
            scale=float(getattr(module, "scaling", size**-0.5)),
            softcap=float(getattr(module, "attn_logit_softcapping", None) or 0.0) * self.has_softcap,
            sinks=sinks,
        )  # fmt: skip

    def _mlp(self, module: Any) -> Mlp:
        fused = self._first(module, "gate_up_proj", optional=True)
        if fused is not None:
            both = self._linear(fused)
            half = both.weight.shape[0] // 2
            gate: Linear | None = both.part(0, half)
            up = both.part(half, 2 * half)
        else:
            gate_module = self._first(module, "gate_proj", optional=True)
            gate = None if gate_module is None else self._linear(gate_module)
            up = self._linear(self._first(module, "up_proj", "c_fc", "fc1", "dense_h_to_4h"))
        down = self._linear(self._first(module, "down_proj", "c_proj", "fc2", "dense_4h_to_h"))
        activation = self._first(module, "act_fn", "act", "activation_fn", "activation")
        name = _ACTIVATIONS.get(type(activation).__name__)
        if type(activation) is nn.GELU:
            name = "gelu" if activation.approximate == "none" else "gelu_tanh"
        if name is None:
            raise UndescribedError(f"has the activation {type(activation).__name__}")
        return Mlp(gate, up, down, name)

    def _norm(self, module: Any) -> Norm | None:
        """Return a norm, recognized by what it computes; None for None."""
        if module is None:
            return None
        self._check_parameters(module)
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if weight is None or weight.dim() != 1 or type(weight) not in _PLAIN:
            raise UndescribedError(f"has the norm {type(module).__name__}")
        eps = next((getattr(module, name) for name in ("eps", "variance_epsilon") if hasattr(module, name)), 0.0)
        center = isinstance(module, nn.LayerNorm) or bias is not None
        self.read.update(id(each) for each in (weight, bias) if each is not None)
        if type(module) not in self.gains:
            x = torch.sin(1.7 * torch.arange(len(weight), dtype=torch.float32) + 0.5)
            expected = module(x[None].to(weight.dtype))[0].float()
            base = x - x.mean() if center else x
            base = base / (base.square().mean() + eps).sqrt()
            found = [
                (base * (weight.float() + gain) + (0 if bias is None else bias.float()) - expected).abs().max()
                for gain in (0.0, 1.0)
            ]
            if min(found) > 0.05 * expected.abs().max() + 1e-6:
                raise UndescribedError(f"has the norm {type(module).__name__}")
            self.gains[type(module)] = float(found[1] < found[0])
        return Norm(weight.detach().float() + self.gains[type(module)], bias, float(eps or 0.0), center)

    def _linear(self, module: Any) -> Linear:
        if type(module) not in (nn.Linear, Conv1D) or vars(module).get("forward") is not None:
            raise UndescribedError(f"has the layer {type(module).__name__}")
        weight, bias = self._weight(module), parameters(module).get("bias")
        if bias is not None:
            self.read.add(id(bias))
        return Linear(weight.t() if isinstance(module, Conv1D) else weight, None if bias is None else bias.detach())

    def _weight(self, module: Any) -> torch.Tensor:
        self._check_parameters(module)
        weight: torch.Tensor = wrapped.weight_of(module)
        if type(weight) not in _PLAIN or weight.dtype not in _DTYPES or not weight.is_cpu:
            raise UndescribedError(
                f"has weights that are not plain tensors of floats on the CPU ({type(module).__name__})"
            )
        self.read.add(id(weight))
        return weight.detach()

    def _check_parameters(self, module: Any) -> None:
        """Refuse weights that were made plain attributes, whose changes `Decoder`'s owner does not notice."""
        if any(isinstance(vars(module).get(name), torch.Tensor) for name in ("weight", "bias")):
            raise UndescribedError(f"has weights that are no parameters ({type(module).__name__})")

    def _first(self, owner: Any, *names: str, optional: bool = False) -> Any:
        found = next((value for name in names if (value := getattr(owner, name, None)) is not None), None)
        if found is None and not optional:
            raise UndescribedError(f"has no {' or '.join(names)} in {type(owner).__name__}")
        return found
