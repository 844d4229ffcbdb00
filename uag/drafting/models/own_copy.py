"""A target that drafts for itself with a small copy of its own weights, over its own cache.

The copy reads the keys and values that the target has verified where they lie, and keeps its own for its candidates
only. So it reads no prompt, and starts each round from exact keys (`uag.kernels.decoder`).
"""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from uag.drafting.drafter import Ask, Counts, Drafter
from uag.drafting.models.base import Passes
from uag.drafting.models.model_drafter import ModelDrafter
from uag.drafting.models.rows import RowMaker, SharedRow
from uag.errors import PairError
from uag.hf.cache import caches
from uag.kernels import Cache, Decoder, decoder_of
from uag.lookahead import clock
from uag.projection import Node
from uag.proposal import Proposal


class CopyPasses(Passes):
    """Passes of a target's copy, behind the tokens in the target's cache; a `PairError` if it has no such copy.

    `form` is the form of the copy's weights: "int8" or "int4".
    """

    def __init__(self, target: Any, form: str) -> None:
        self._target, self._form = weakref.ref(target), form
        began = clock.now()
        self._decoder = self._find()
        counts = Counts(num_bytes=self._decoder.num_bytes, compile_s=clock.now() - began, passes=f"in one call, {form}")
        size = self._decoder.vocab_size
        super().__init__(f"copy of {type(target).__name__}", counts, size, self._decoder.max_positions, None)
        self._cache = Cache(self._decoder, 0)

    def _find(self) -> Decoder:
        target = self._target()
        found = decoder_of(target, self._form)
        if isinstance(found, str):
            raise PairError(
                f"The target {type(target).__name__!r} cannot draft for itself: it {found}. Pass a draft model."
            )
        return found

    def _begin(self, encoder_ids: Sequence[Sequence[int]]) -> None:  # noqa: ARG002 - no copy has an encoder
        began = clock.now()
        self._decoder = self._find()  # copied again if the weights have changed
        self.counts.compile_s += clock.now() - began
        self._cache = Cache(self._decoder, len(self.rows))

    def look(self, cache: Any, slots: Mapping[int, int]) -> bool:
        """Continue behind the rows of the target's cache; return whether the copy can read them."""
        self._cache.lengths = [0] * len(self.rows)
        self._cache.bases = [len(row.path) for row in self.rows]
        places = [slots.get(row, -1) for row in range(len(self.rows))]
        return self._cache.read(caches.self_attention_layers(cache), places)

    def _cut(self, row: int, length: int) -> int:
        base = self._cache.bases[row]
        self._cache.lengths[row] = max(0, min(self._cache.lengths[row], length - base))
        return min(length, base + self._cache.lengths[row])

    def _run(self, nodes: Mapping[int, list[Node]]) -> None:
        self._run_decoder(self._decoder, self._cache, nodes)

    def _free(self, *, has_failed: bool) -> None:  # noqa: ARG002 - the cache is small
        self._cache = Cache(self._decoder, 0)


class CopyDrafter(ModelDrafter):
    """Candidates from a target's copy; see `CopyPasses`."""

    source, strategy = "copy", "own copy"
    reads_prompts = False

    def __init__(self, target: Any, form: str) -> None:
        self.model: CopyPasses = CopyPasses(target, form)
        self._rows = []
        self._maker = RowMaker(target, None)

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        rows = [row for row in self._rows if isinstance(row, SharedRow)]
        if ask.verified is None or not any(ask.limits) or self.model.failure:
            return [[] for _ in rows]
        for row in rows:
            row.adopt(row.num_to_feed() - 1)  # the target's cache has all but the last token
        cache, slots = ask.verified()
        limits = [limit if place in slots else 0 for place, limit in enumerate(ask.limits)]
        if not self.model.look(cache, slots):
            return [[] for _ in rows]
        return super().propose(replace(ask, budgets=limits))

    def _fit_contexts(self) -> None:
        """Keep all tokens: they are in the target's cache."""


class CopyPairing:
    """The drafters of targets that draft for themselves, one for each; see `Pairing`."""

    for_all: Drafter | None = None
    mismatch = ""

    def __init__(self, form: str) -> None:
        self._form = form
        self._by_target: weakref.WeakKeyDictionary[Any, Drafter] = weakref.WeakKeyDictionary()

    def drafter_for(self, target: Any) -> tuple[Drafter, bool]:
        """Return the drafter for a target, and that its ids are not assumed, or raise a `PairError`."""
        if target not in self._by_target:
            self._by_target[target] = CopyDrafter(target, self._form)
        return self._by_target[target], False
