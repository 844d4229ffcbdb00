"""The first target token of each draft token, worked out when it is asked for."""

import weakref
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from uag.adapters import TokenizerAdapter
from uag.projection.tree import IntArray

NO_TOKEN = -1
"""Stands where no target token can start the text."""

_UNKNOWN = -2


class FirstTokens(NDArrayOperatorsMixin):
    """[draft_vocab_size] int64: the first target token of each draft token taken alone, or `NO_TOKEN`.

    To encode all 262,000 texts of a vocabulary takes seconds, and a sequence asks for some hundreds of them: an entry
    is encoded when it is read first. `numpy.asarray`, and whatever computes with the whole, reads all.

    The target's adapter is held weakly, so that a map that is kept keeps no tokenizer alive.

    Args:
        known: [draft_vocab_size], the entries that are known.
        unknown: the draft ids of the others: those that carry text.
        texts: [draft_vocab_size], bytes of each draft id, None where it carries no text.
        target_bytes: [target_vocab_size], the same for the target.
    """

    def __init__(
        self,
        known: IntArray,
        unknown: IntArray,
        texts: Sequence[bytes | None],
        target_bytes: Sequence[bytes | None],
    ) -> None:
        self._known = known.copy()
        self._texts = texts
        self._target_bytes = target_bytes
        self._targets: tuple[weakref.ref[TokenizerAdapter], ...] = ()
        self._known[unknown] = _UNKNOWN

    def encode_with(self, target: TokenizerAdapter) -> None:
        """Use an adapter of the target's tokenizer from now on, for as long as it lives, beside those known."""
        living = tuple(ref for ref in self._targets if ref() not in (None, target))
        self._targets = (*living, weakref.ref(target))

    def __len__(self) -> int:
        return len(self._known)

    @property
    def shape(self) -> tuple[int, ...]:
        """(draft_vocab_size,)."""
        return self._known.shape

    @overload
    def __getitem__(self, ids: int | np.integer[Any]) -> int: ...
    @overload
    def __getitem__(self, ids: IntArray) -> IntArray: ...
    def __getitem__(self, ids: int | np.integer[Any] | IntArray) -> int | IntArray:
        """Return the first target token of one draft token, or of each of an array."""
        if isinstance(ids, np.ndarray):
            ids = np.flatnonzero(ids) if ids.dtype == np.bool_ else ids
            firsts: IntArray = self._known[ids]
            unknown = firsts == _UNKNOWN
            if unknown.any():
                self._work_out(np.unique(ids[unknown]))
                firsts = self._known[ids]
            return firsts
        if self._known[ids] == _UNKNOWN:
            self._work_out(np.array([ids], dtype=np.int64))
        return int(self._known[ids])

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Work out what is left, and return all of it."""
        del copy  # never the array itself: it is this object's own
        return np.array(self[np.arange(len(self))], dtype=dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Compute with the whole, as with an array."""
        return getattr(ufunc, method)(*(np.asarray(i) if isinstance(i, FirstTokens) else i for i in inputs), **kwargs)

    def _work_out(self, ids: IntArray) -> None:
        texts = [self._texts[i] or b"" for i in ids.tolist()]
        target = next((target for ref in self._targets if (target := ref()) is not None), None)
        if target is None:
            raise RuntimeError("the adapter of the target's tokenizer is gone: keep it as long as the map is in use")
        encodings = [target.encode_continuation(texts[0])] if len(texts) == 1 else target.encode_continuations(texts)
        firsts = [first_matching(self._target_bytes, row, text) for row, text in zip(encodings, texts, strict=True)]
        self._known[ids] = firsts


def first_matching(target_bytes: Sequence[bytes | None], ids: Sequence[int], text: bytes) -> int:
    """Return the first of `ids` if its bytes really begin `text`, else `NO_TOKEN`: a lossy tokenizer changes text."""
    if not ids:
        return NO_TOKEN
    first = target_bytes[ids[0]]
    return ids[0] if first and text.startswith(first) else NO_TOKEN
