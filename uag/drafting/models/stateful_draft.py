"""Draft passes of models with states beside or instead of attention (Mamba, LFM2, Qwen3.5, Granite 4).

Attention forgets a rejected token when its keys are cut, but a state sums over all tokens. So the states are copied
before each pass; a rollback puts back the nearest copy, and the next pass runs the tokens after it again.
"""

from collections.abc import Sequence
from typing import Any

import torch

from uag.drafting.models.passes import KEPT_POSITIONS, split
from uag.drafting.models.torch_draft import DraftModel
from uag.drafting.models.trials import takes_blocks
from uag.hf.cache.rewinding import RewindableCache
from uag.projection import Feed, Node


class StatefulDraft(DraftModel):
    """A `DraftModel` whose rows each have their own cache and passes, because padding would enter a state."""

    def __init__(self, model: Any, num_ids: int | None = None) -> None:
        super().__init__(model, num_ids)
        self._takes_blocks = takes_blocks(model)
        self._copies: list[RewindableCache] = []

    def _prepare(self) -> None:
        super()._prepare()
        self._copies = [RewindableCache(self.model) for _ in self.batch.rows]

    def _drop_cache(self) -> None:
        super()._drop_cache()
        self._copies = []

    def _run(self, requests: Sequence[tuple[int, Feed]]) -> None:
        logits: list[torch.Tensor] = []
        places: list[tuple[Node, int]] = []
        with self._without_gradients(), self._evaluating(), self._running():
            for row, request in requests:
                if not request.keep:
                    self._copies[row] = RewindableCache(self.model)
                cache = self._copies[row]
                cache.cut(request.keep)
                for part in self._parts(request):
                    cache.save(part[0].depth)
                    kept = part if len(part) <= KEPT_POSITIONS else part[-1:]
                    places += [(node, len(places) + index) for index, node in enumerate(kept)]
                    logits.append(self._logits(part, len(kept), cache.cache))
                self.batch.slots[row] += [node.depth for node in request.nodes]
        self._set_distributions(torch.cat(logits), places)

    def _parts(self, request: Feed) -> list[list[Node]]:
        """Split a pass, so that states are copied where the search may return to."""
        if self._takes_blocks:
            return [part.nodes for part in split(request)]
        # The model takes a block only if no state precedes it.
        first = 0 if request.keep else max(1, len(request.nodes) - KEPT_POSITIONS)
        parts = [request.nodes[:first], *([node] for node in request.nodes[first:])]
        return parts if first else parts[1:]

    def _logits(self, nodes: Sequence[Node], kept: int, cache: Any) -> torch.Tensor:
        """Run one pass of one row and return its last logits, [kept, vocab_size]."""
        ids = torch.tensor([self._embedded([node.draft_id for node in nodes])], device=self.device)
        positions = torch.tensor([[node.depth for node in nodes]], device=self.device)
        return self._call_model(ids, positions, None, kept, cache)[0, -kept:]
