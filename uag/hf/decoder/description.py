"""The parts of a decoder: embeddings, blocks and head."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Norm:
    """`(x - mean) / deviation * weight + bias`; without `center`, `x / root mean square * weight + bias`."""

    weight: torch.Tensor | None
    bias: torch.Tensor | None
    eps: float
    center: bool


@dataclass(frozen=True)
class Linear:
    """`x @ weight.T + bias`: weight [num_out, num_in]."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def part(self, start: int, stop: int) -> "Linear":
        """Return the layer of some of the outputs."""
        return Linear(self.weight[start:stop], None if self.bias is None else self.bias[start:stop])


@dataclass(frozen=True)
class Attention:
    """Causal attention over the last `window` positions; 0 for all.

    `rotary` names the table of angles; None for no rotary positions. Queries and keys are normed by head, or over all
    heads at once if `norms_all`.
    """

    query: Linear
    key: Linear
    value: Linear
    out: Linear
    query_norm: Norm | None
    key_norm: Norm | None
    norms_all: bool
    rotary: str | None
    window: int
    scale: float
    softcap: float
    sinks: torch.Tensor | None


@dataclass(frozen=True)
class Mlp:
    """`down(activation(gate(x)) * up(x))`, or `down(activation(up(x)))` without a gate."""

    gate: Linear | None
    up: Linear
    down: Linear
    activation: str


@dataclass(frozen=True)
class Block:
    """Attention and MLP, each with a norm before or after it or both; `is_parallel` if both read the block's input."""

    attention: Attention
    mlp: Mlp
    before_attention: Norm | None
    after_attention: Norm | None
    before_mlp: Norm | None
    after_mlp: Norm | None
    is_parallel: bool
    factor: float


@dataclass(frozen=True)
class Description:
    """A decoder.

    Attributes:
        embedding: [num_ids, size].
        embedding_factor: what embeddings are multiplied by.
        positions: [positions, size], added to the embeddings; None without learned positions.
        first_position: the row of `positions` for position 0.
        angles: returns the cosines and sines [num_positions, rotated size / 2] of the first positions; by the name of a
            table.
        head_factor: what logits are multiplied by.
        head_softcap: bounds the logits; 0 for no bound.
        max_positions: how many positions a row may have.
    """

    embedding: torch.Tensor
    embedding_factor: float
    positions: torch.Tensor | None
    first_position: int
    blocks: tuple[Block, ...]
    norm: Norm | None
    head: Linear
    head_factor: float
    head_softcap: float
    num_heads: int
    num_kv_heads: int
    head_dim: int
    angles: Callable[[str, int], tuple[torch.Tensor, torch.Tensor]]
    max_positions: int

    def layers(self) -> Iterator[Linear]:
        """Yield all products."""
        for block in self.blocks:
            attention, mlp = block.attention, block.mlp
            gates = [] if mlp.gate is None else [mlp.gate]
            yield from (attention.query, attention.key, attention.value, attention.out, *gates, mlp.up, mlp.down)
        yield self.head
