"""Attention one query at a time, so that a block in half precision rounds as single tokens do.

Sums are taken in float32 and rounded to half precision at the end. Where a matrix product rounds every row of a block
as it rounds that row alone, attention is what is left: its kernel for one query sums in another order than the one for
several, and one element in some thousand is rounded to the neighbour. Every later position sees that element in the
cache, so deciding near-ties by a one-token pass does not help (docs/half-precision.md has the figures). Computing each
query of a block by itself, over the keys that plain decoding shows it, does: then blocks are equal bit for bit.
"""

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import torch
from torch.nn import functional

from uag.decoding.call import Call
from uag.hf import models
from uag.stats import Stats

_HALF = (torch.bfloat16, torch.float16)

_NUM_TRIALS = 4
"""Blocks of a target whose first position is compared with the same token alone; each costs a pass, once a process."""

_num_equal: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""Of each target: how many such blocks were equal bit for bit; -1 where one was not."""

Span = tuple[int, int]

_here = threading.local()


class _Place:
    """Where the stand-in stands: what it stands in for, and for how many."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.own: Callable[..., Any] = functional.scaled_dot_product_attention
        self.num_users = 0


_place = _Place()


def _stand_in(*args: Any, **kwargs: Any) -> Any:
    active: OneQuery | None = getattr(_here, "active", None)
    return _place.own(*args, **kwargs) if active is None else active.attend(*args, **kwargs)


class OneQuery:
    """While it is entered, this thread's `scaled_dot_product_attention` takes the queries of a block one by one.

    A stand-in takes the function's place until the last thread has left. A `TorchFunctionMode` would touch nothing that
    threads share, but looks at every function: of a small model's pass that is a third more time.
    """

    def __init__(self) -> None:
        # Layers share a mask. It is held, so that no other one can come to lie where it lies.
        self._spans: dict[tuple[Any, ...], tuple[torch.Tensor, list[Span]]] = {}

    def __enter__(self) -> Self:
        """Begin, on this thread."""
        with _place.lock:
            if not _place.num_users:
                _place.own = functional.scaled_dot_product_attention
                functional.scaled_dot_product_attention = _stand_in
            _place.num_users += 1
        self._outer = getattr(_here, "active", None)
        _here.active = self
        return self

    def __exit__(self, *error: object) -> None:
        """End; the last one to do so puts the function back."""
        _here.active = self._outer
        with _place.lock:
            _place.num_users -= 1
            if not _place.num_users and functional.scaled_dot_product_attention is _stand_in:
                functional.scaled_dot_product_attention = _place.own

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> torch.Tensor:
        """Do what `scaled_dot_product_attention` does."""
        num_queries, num_keys = query.shape[-2], key.shape[-2]
        options["dropout_p"] = dropout_p
        if num_queries == 1 or is_causal:  # causal: a whole prompt, which plain decoding reads as one, too
            whole: torch.Tensor = _place.own(query, key, value, attn_mask=attn_mask, is_causal=is_causal, **options)
            return whole
        spans = [(0, num_keys)] * num_queries if attn_mask is None else self._spans_of(attn_mask, num_queries)
        parts = []
        for place, (first, end) in enumerate(spans):
            mask = attn_mask
            if mask is not None:
                mask = mask[..., place : place + 1, first:end] if mask.shape[-2] > 1 else mask[..., first:end]
            one, keys, values = query[..., place : place + 1, :], key[..., first:end, :], value[..., first:end, :]
            parts.append(_place.own(one, keys, values, attn_mask=mask, **options))
        return torch.cat(parts, dim=-2)

    def _spans_of(self, mask: torch.Tensor, num_queries: int) -> list[Span]:
        key = (mask.data_ptr(), mask.shape, mask.stride())
        if key not in self._spans:
            self._spans[key] = (mask, key_spans(mask, num_queries))
        return self._spans[key][1]


def key_spans(mask: torch.Tensor, num_queries: int) -> list[Span]:
    """Return from where to where plain decoding, one token at a time, has keys for each query of a block.

    Args:
        mask: [..., num_queries or 1, num_keys], truth values or numbers to add.
        num_queries: of the block.

    >>> key_spans(torch.ones(2, 6, dtype=torch.bool).tril(4), 2)  # each sees one key more
    [(0, 5), (0, 6)]
    >>> key_spans(torch.ones(2, 6, dtype=torch.bool).tril(4).triu(1), 2)  # in a window of four
    [(1, 5), (2, 6)]
    >>> key_spans(torch.tensor([[True, True, False]]), 2)  # another text: all see the same of it
    [(0, 3), (0, 3)]
    """
    num_keys = mask.shape[-1]
    if mask.shape[-2] == 1:
        return [(0, num_keys)] * num_queries
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    seen = seen.reshape(-1, num_queries, num_keys).any(dim=0).int()
    firsts = seen.argmax(dim=-1).tolist()
    ends = (num_keys - seen.flip(-1).argmax(dim=-1)).tolist()
    if len(set(ends)) == 1:
        return [(0, num_keys)] * num_queries
    if len(set(firsts)) == 1:  # no window that moves on: what is hidden there is padding, which stays
        firsts = [0] * num_queries
    return [(first, num_keys - (ends[-1] - end)) for first, end in zip(firsts, ends, strict=True)]


class SingleForm:
    """Makes a half-precision target's blocks round as its single tokens, and sees whether they do.

    Args:
        call: says whether that is asked for.
        stats: where it is recorded that they do not.

    Attributes:
        is_on: blocks are to be computed so.
    """

    def __init__(self, call: Call, stats: Stats) -> None:
        self._call = call
        self._stats = stats
        self.is_on = call.exact_half_precision and call.model.dtype in _HALF
        if self.is_on and (models.is_compiled(call.model) or _num_equal.get(call.model, 0) < 0):
            self._give_up()

    def form(self, width: int) -> AbstractContextManager[Any]:
        """Return what a pass over so many tokens behind the prompt runs in."""
        return OneQuery() if self.is_on and width > 1 else nullcontext()

    def is_due(self, width: int) -> bool:
        """Whether a block of this width is to be compared with a single token."""
        return self.is_on and width > 1 and _num_equal.get(self._call.model, 0) < _NUM_TRIALS

    def learn(self, alone: torch.Tensor, block: torch.Tensor) -> None:
        """Compare the logits of a single token with the first ones of a block behind the same cache.

        Both are [batch_size, num, vocab_size].
        """
        model = self._call.model
        if self._call.ranks.tell(torch.equal(alone[:, 0], block[:, 0])):
            _num_equal[model] = _num_equal.get(model, 0) + 1
        else:
            _num_equal[model] = -1
            self._give_up()

    def _give_up(self) -> None:
        self.is_on = False
        model = self._call.model
        what = f"{type(model).__name__} in {str(model.dtype).removeprefix('torch.')} on {model.device.type}"
        self._stats.fall_back(
            f"exact_half_precision: blocks of this target ({what}) round otherwise than single tokens, one query at a "
            "time or not, so near-ties may be decided otherwise than by plain decoding"
        )
