"""Selects tokens from the logits of a block.

Processors known to be functions of one row are called for each row, and those that ignore the ids for many positions at
once (`uag.hf.processors` lists both). All others are called as in plain decoding, in lockstep.
"""

import copy
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch

from uag.hf.processors import POSITION_FREE
from uag.proposal import Proposal
from uag.sampling.choice import Choice


class Selector:
    """Selects tokens from target logits, with the prepared logits processors of the call and its selection rule."""

    def __init__(self, processors: Sequence[Any], choice: Choice) -> None:
        self.processors = processors
        self.choice = choice
        self.is_position_free = all(type(p) in POSITION_FREE for p in processors)

    def select_block(
        self,
        logits: torch.Tensor,
        steps: Sequence[int],
        rows: Sequence[int],
        ids: Callable[[int, int], torch.Tensor],
        candidates: Sequence[Sequence[Proposal]],
    ) -> list[list[int]]:
        """Select the tokens of a block, for each row at least up to its first rejected candidate.

        Args:
            logits: [num_rows, width, vocab_size] float32; positions after a row's candidates are ignored.
            steps: output step of each row's first position.
            rows: index of each row in the batch.
            ids: maps (line, position) to the ids [1, length] before that position.
            candidates: each row's candidates.
        """
        if self.is_position_free and not self.choice.is_sequential:
            return self._select_at_once(logits, steps, rows, candidates)
        selected: list[list[int]] = []
        for line, proposals in enumerate(candidates):
            processors = [_of_row(processor, rows[line]) for processor in self.processors]
            chosen: list[int] = []
            for position, proposal in enumerate([*proposals, None]):
                scores = logits[line, position][None]
                for processor in processors:
                    scores = processor(ids(line, position), scores)
                token = self.choice.choose(scores, [(steps[line] + position, rows[line])], [proposal])
                chosen.append(int(token.item()))
                if proposal is not None and chosen[-1] != proposal.target_id:
                    break
            selected.append(chosen)
        return selected

    def _select_at_once(
        self, logits: torch.Tensor, steps: Sequence[int], rows: Sequence[int], candidates: Sequence[Sequence[Proposal]]
    ) -> list[list[int]]:
        widths = [len(proposals) + 1 for proposals in candidates]
        if set(widths) == {logits.shape[1]}:
            flat = logits.flatten(0, 1)
        else:
            flat = torch.cat([logits[line, :size] for line, size in enumerate(widths)])
        no_ids = torch.empty((flat.shape[0], 0), dtype=torch.long, device=flat.device)
        for processor in self.processors:
            flat = processor(no_ids, flat)
        places = [(steps[line] + position, rows[line]) for line, size in enumerate(widths) for position in range(size)]
        proposals = [proposal for line in candidates for proposal in (*line, None)]
        chosen = iter(self.choice.choose(flat, places, proposals).tolist())
        return [list(islice(chosen, size)) for size in widths]


def _of_row(processor: Any, row: int) -> Any:
    num_pads = getattr(processor, "prompt_ignore_length", None)  # of a repetition penalty, per row
    if not isinstance(num_pads, torch.Tensor):
        return processor
    view = copy.copy(processor)
    view.prompt_ignore_length = num_pads[row : row + 1]
    return view
