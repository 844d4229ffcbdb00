"""A decoder's whole pass in one call of the compiled kernels (`_decoder.h`), over weights in 8 or 4 bits.

Weights of 8 bits have a scale for each output. Those of 4 bits have a scale and a minimum for each output and 32
inputs; the head and the embedding keep 8. Activations are float32, and are rounded to 8 bits in groups of 32 for
products with such weights. A token's logits depend neither on the other tokens of a pass nor on the number of threads.
"""

import ctypes
from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import torch

from uag import forks
from uag.hf.decoder import Attention, Block, Description, Linear, Norm
from uag.kernels import kernel, steps
from uag.kernels.decoder_cache import Cache
from uag.kernels.steps import TYPES

_CODED = {"int8": 4, "int4": 5}
_FIRST_POSITIONS = 512  # positions whose angles are computed at first; they double when a text is longer

_MOST_TOKENS = 64
"""Tokens of one call; a longer text is read in parts. More would be read again from the cache less often, but need more
memory for activations."""


class Decoder:
    """The weights of one decoder, and the steps of its pass; shared by all calls.

    Args:
        description: what the decoder computes.
        weights: their form: "int8" or "int4", or "model" for the model's own, read in place.

    Attributes:
        num_bytes: bytes that the codes take; 0 with the model's own weights.
        vocab_size: size of the head.
        num_ids: number of embeddings.
        max_positions: how many positions a row may have.
        signature: what it computes, but for the weights.
    """

    def __init__(self, description: Description, weights: str) -> None:
        self.weights, self.num_bytes = weights, 0
        self.vocab_size, self.num_ids = description.head.weight.shape[0], description.embedding.shape[0]
        self.max_positions = description.max_positions
        self.windows = [block.attention.window for block in description.blocks]
        self.shape = len(description.blocks), description.num_kv_heads, description.head_dim  # of a cache
        self._num_heads, self._compute_angles = description.num_heads, description.angles
        self._head_factor, self._head_softcap = description.head_factor, description.head_softcap
        self._kept: list[torch.Tensor] = []  # what the steps point to
        self._coded: dict[tuple[int, str], steps.CWeight] = {}
        self._angles: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._tables = [block.attention.rotary for block in description.blocks]
        self._num_angles, self._lock = 0, forks.turn()
        size, heads = description.embedding.shape[1], description.num_heads + 2 * description.num_kv_heads
        inner = max(block.mlp.up.weight.shape[0] for block in description.blocks)
        attended = description.num_heads * description.head_dim
        self.sizes = (size, size, heads * description.head_dim, attended, inner)
        listed = [self._embedding(description)]
        for layer, block in enumerate(description.blocks):
            listed += self._block(block, layer)
        head = self._linear(steps.HIDDEN, 0, [description.head], "int8", norm=description.norm)
        head.is_head = 1
        self._steps = (steps.CStep * (len(listed) + 1))(*listed, head)
        self.signature = tuple(
            (step.kind, step.then, step.act, step.window, step.rotated, f"{step.factor:.4g}", f"{step.softcap:.4g}")
            for step in self._steps
        )
        self._reach(1)

    # ------------------------------------------------------------------ steps

    def _embedding(self, of: Description) -> steps.CStep:
        step = steps.CStep(
            kind=steps.EMBED, to=steps.HIDDEN, num_weights=1, factor=of.embedding_factor, shift=of.first_position
        )
        step.w[0] = self._weight(Linear(of.embedding), "int8")
        if of.positions is not None:
            step.w[1], step.num_weights = self._weight(Linear(of.positions), "model"), 2
        return step

    def _block(self, block: Block, layer: int) -> list[steps.CStep]:
        attention, mlp = block.attention, block.mlp
        parts = [attention.query, attention.key, attention.value]
        before = self._linear(steps.HIDDEN, steps.QKV, parts, norm=block.before_attention)
        out = self._output(steps.ATTENDED, attention.out, block.after_attention, block.factor)
        gate = [mlp.up] if mlp.gate is None else [mlp.gate, mlp.up]
        up = self._linear(steps.HIDDEN, steps.GATED, gate, norm=block.before_mlp)
        up.then = steps.ACTIVATE if mlp.gate is None else steps.GATE_FIRST
        up.a, up.b, up.act = (0.0, 0.0, -1) if mlp.activation == "relu" else kernel.GATES[mlp.activation]
        down = self._output(steps.GATED, mlp.down, block.after_mlp, block.factor)
        attend = self._attention(attention, layer)
        if block.is_parallel:  # both read the block's input
            return [before, *attend, up, *out, *down]
        return [before, *attend, *out, up, *down]

    def _attention(self, attention: Attention, layer: int) -> list[steps.CStep]:
        rotate = steps.CStep(kind=steps.ROTATE, layer=layer, whole=attention.norms_all)
        rotate.norm, rotate.key_norm = self._norm(attention.query_norm), self._norm(attention.key_norm)
        if attention.rotary is not None:
            self._angles.setdefault(attention.rotary, self._compute_angles(attention.rotary, 2))
            rotate.rotated = 2 * self._angles[attention.rotary][0].shape[1]
        attend = steps.CStep(
            kind=steps.ATTEND, layer=layer, window=attention.window, factor=attention.scale, softcap=attention.softcap
        )
        if attention.sinks is not None:
            attend.sinks = self._floats(attention.sinks)
        return [rotate, attend]

    def _output(self, source: int, layer: Linear, norm: Norm | None, factor: float) -> list[steps.CStep]:
        """Return the steps that add a product, normed first if there is a norm, to the hidden state."""
        if norm is None:
            listed = [self._linear(source, steps.HIDDEN, [layer])]
        else:
            add = steps.CStep(kind=steps.ADD, source=steps.ADDED, to=steps.HIDDEN, norm=self._norm(norm))
            listed = [self._linear(source, steps.ADDED, [layer]), add]
        listed[-1].then, listed[-1].factor = steps.ACCUMULATE, factor
        return listed

    def _linear(
        self, source: int, to: int, layers: Sequence[Linear], form: str = "", norm: Norm | None = None
    ) -> steps.CStep:
        step = steps.CStep(kind=steps.LINEAR, source=source, to=to, num_weights=len(layers), norm=self._norm(norm))
        for place, layer in enumerate(layers):
            step.w[place] = self._weight(layer, form)
        return step

    def _norm(self, norm: Norm | None) -> steps.CNorm:
        if norm is None:
            return steps.CNorm()
        return steps.CNorm(self._floats(norm.weight), self._floats(norm.bias), norm.eps, norm.center, True)

    def _floats(self, tensor: torch.Tensor | None) -> int:
        return 0 if tensor is None else self._keep(tensor.detach().float())

    def _keep(self, tensor: torch.Tensor) -> int:
        self._kept.append(tensor.contiguous())
        return self._kept[-1].data_ptr()

    def _weight(self, layer: Linear, form: str = "") -> steps.CWeight:
        """Return a weight in the decoder's form, or in another one."""
        form = "model" if self.weights == "model" else form or self.weights
        weight = layer.weight
        key = weight.data_ptr(), form
        num_out, num_in = weight.shape
        if key not in self._coded:  # an embedding may be the head's weight
            if form == "model":
                weight = weight if weight.stride(0) == 1 else weight.contiguous()
                stride = 0 if weight.is_contiguous() else weight.stride(1)
                self._kept.append(weight)
                self._coded[key] = steps.CWeight(weight.data_ptr(), 0, 0, num_out, num_in, TYPES[weight.dtype], stride)
            else:
                self._coded[key] = self._codes(weight.contiguous(), form)
        found = steps.CWeight.from_buffer_copy(self._coded[key])
        found.bias = self._floats(layer.bias)
        return found

    def _codes(self, weight: torch.Tensor, form: str) -> steps.CWeight:
        num_out, num_in = weight.shape
        library, level = kernel._library, kernel._level
        codes = torch.zeros(
            library.rows_coded_size(ctypes.c_int64(num_out), ctypes.c_int64(num_in), _CODED[form], level),
            dtype=torch.uint8,
        )
        scales = torch.zeros(num_out + 64, dtype=torch.float32) if form == "int8" else None
        coding = steps.CCoding(
            weight.data_ptr(), codes.data_ptr(), 0 if scales is None else scales.data_ptr(), num_out, num_in,
            TYPES[weight.dtype], _CODED[form], level, torch.get_num_threads(),
        )  # fmt: skip
        library.rows_code(ctypes.byref(coding))
        self.num_bytes += codes.numel() + (0 if scales is None else 4 * scales.numel())
        return steps.CWeight(
            self._keep(codes), 0 if scales is None else self._keep(scales), 0, num_out, num_in, _CODED[form]
        )

    def _reach(self, num_positions: int) -> None:
        """Compute the angles of at least so many positions.

        Of no more than the model has: the angles of some models depend on the largest position.
        """
        with self._lock:
            if num_positions <= self._num_angles or not self._angles:
                return
            num_angles = max(num_positions, min(max(_FIRST_POSITIONS, 2 * self._num_angles), self.max_positions))
            for name in self._angles:
                self._kept += self._angles[name]  # another thread's pass may read them
                self._angles[name] = self._compute_angles(name, num_angles)
            for step in self._steps:
                if step.kind == steps.ROTATE and (name := self._tables[step.layer]) is not None:
                    step.cos, step.sin = (angles.data_ptr() for angles in self._angles[name])
            self._num_angles = num_angles

    # ------------------------------------------------------------------ passes

    def run(self, cache: Cache, ids: Sequence[Sequence[int]], num_wanted: int) -> torch.Tensor:
        """Append tokens to the sequences of a cache of this decoder: `ids` are the new ones of each, which may be none.

        Returns logits [tokens, vocab_size], float32, of each sequence's last `num_wanted` tokens at most, in their
        order. Raises a `MemoryError` if there is no memory for the pass.
        """
        starts = list(cache.lengths)
        longest = max(start + len(line) for start, line in zip(starts, ids, strict=True))
        self._reach(max(base + start + len(line) for base, start, line in zip(cache.bases, starts, ids, strict=True)))
        cache.reserve(longest)
        parts, done = [], 0
        while done < max(map(len, ids)):
            share = max(_MOST_TOKENS // max(sum(len(line) > done for line in ids), 1), 1)
            lines = [line[done : done + share] for line in ids]
            kept = [
                max(0, min(len(part), done + len(part) - (len(line) - num_wanted)))
                for part, line in zip(lines, ids, strict=True)
            ]
            parts.append((self._part(cache, lines, kept), kept))
            done += share
        if len(parts) == 1:
            return parts[0][0]
        by_sequence = [torch.split(logits, kept) for logits, kept in parts]
        return torch.cat([of_part[place] for place in range(len(ids)) for of_part in by_sequence])

    def _part(self, cache: Cache, ids: Sequence[Sequence[int]], kept: Sequence[int]) -> torch.Tensor:
        _, kv_heads, dim = self.shape
        counts = [len(line) for line in ids]
        firsts = list(accumulate(counts, initial=0))[:-1]
        starts = [base + length for base, length in zip(cache.bases, cache.lengths, strict=True)]
        lists = {
            "ids": [token for line in ids for token in line],
            "positions": [start + i for start, count in zip(starts, counts, strict=True) for i in range(count)],
            "sequences": [place for place, count in enumerate(counts) for _ in range(count)],
            "counts": counts,
            "first": firsts,
            "base": cache.bases,
            "places": cache.places,
            "wanted": [first + i for first, n, of in zip(firsts, counts, kept, strict=True) for i in range(n - of, n)],
        }
        arrays = {name: (ctypes.c_int64 * (len(values) or 1))(*values) for name, values in lists.items()}
        size, num_wanted = len(lists["ids"]), len(lists["wanted"])
        # Users may have set another default dtype and device.
        empty = partial(torch.empty, dtype=torch.float32, device="cpu")
        logits, buffers = empty(num_wanted, self.vocab_size), [empty(size, width) for width in self.sizes]
        job = steps.CPass(
            steps=ctypes.addressof(self._steps), num_steps=len(self._steps), num_tokens=size, num_wanted=num_wanted,
            past=None if cache.past is None else ctypes.addressof(cache.past), cache=cache.tensor.data_ptr(),
            logits=logits.data_ptr(), num_sequences=len(ids), heads=self._num_heads, kv_heads=kv_heads, dim=dim,
            capacity=cache.tensor.shape[4], cache_type=TYPES[cache.tensor.dtype], level=kernel._level,
            threads=cache.num_threads or torch.get_num_threads(),
            **{name: ctypes.addressof(array) for name, array in arrays.items()},
        )  # fmt: skip
        job.buffers[:], job.sizes[:] = [buffer.data_ptr() for buffer in buffers], self.sizes
        if kernel._library.rows_pass(ctypes.byref(job)):
            raise MemoryError("There is no memory for a pass in one call")
        for place, count in enumerate(counts):
            cache.lengths[place] += count
        if self._head_factor != 1.0:
            logits *= self._head_factor
        cap = self._head_softcap
        return logits.div_(cap).tanh_().mul_(cap) if cap else logits
