"""The target's passes for rows of different length: each keeps what it accepted.

Holes under an attention mask give wrong logits in some models, so rows are shifted right until all end in one slot, and
padding that all rows share on the left is cut off.
"""

import time
from collections.abc import Sequence

import torch

from uag.decoding.candidates import Candidates, Outcome
from uag.decoding.rows import Rows
from uag.decoding.target import Target
from uag.hf.cache import caches


class Ragged:
    """Goes on with a target behind the pass over its left-padded prompts.

    Args:
        target: has read the prompts.
        width: tokens of that pass that gave logits: the last one of the prompt, and candidates behind it.
    """

    def __init__(self, target: Target, width: int) -> None:
        self.target = target
        kwargs = target.kwargs
        # Positions tell how long the prompt is; its ids do not where it came as embeddings.
        positions, mask = kwargs.pop("position_ids"), kwargs.pop("attention_mask", None)
        self._rows = list(range(positions.shape[0]))
        self._pads = [0] * len(self._rows) if mask is None else (mask.cumsum(-1) == 0).sum(-1).tolist()
        self._shift = [int(p) for p in (positions[:, -1] - (positions.shape[1] - 1)).tolist()]
        self._length = target.cache.get_seq_length() - width

    def verify(self, rows: Rows, candidates: Candidates) -> torch.Tensor:
        """Run a block for rows that end in one slot: each row's last token, then its candidates, then filling.

        Returns:
            Logits [num_rows, width, vocab_size], float32; behind a row's candidates they mean nothing.
        """
        if list(candidates.rows) != self._rows:
            self._select(candidates.rows)
        rows.write(candidates)
        lines = []
        for row, line in zip(candidates.rows, candidates.lines, strict=True):
            ids = [rows.all[row].outputs[-1], *(proposal.target_id for proposal in line)]
            lines.append(ids + ids[-1:] * (candidates.width - len(ids)))
        return self._run(torch.tensor(lines, device=rows.buffer.device))

    def _run(self, block: torch.Tensor) -> torch.Tensor:
        target, width, end = self.target, block.shape[1], self._length + block.shape[1]
        began = time.perf_counter()
        slots = torch.arange(end, device=block.device)
        pads = torch.tensor(self._pads, device=block.device)[:, None]
        shift = torch.tensor(self._shift, device=block.device)[:, None]
        positions = (slots[None, self._length :] + shift).clamp_(min=0)
        # Candidates fit the model's positions; what fills up a shorter row must not lie beyond them either.
        positions = positions.minimum(positions[:, :1].clamp(min=target.limits.last_position()))
        mask = (slots[None] >= pads).long() if any(self._pads) else None
        kwargs = target.kwargs | {"position_ids": positions, "attention_mask": mask}
        inputs = target.model.prepare_inputs_for_generation(block, next_sequence_length=width, **kwargs)
        return target.run(inputs, width, block.device, began)

    def keep(self, outcome: Outcome) -> None:
        """Keep what each row wrote; the token behind it is the next pass's first."""
        most, cache = max(outcome.num_written), self.target.cache
        shifts = [most - kept for kept in outcome.num_written]
        if any(shifts):
            caches.shift_rows(cache, shifts)
            self._pads = [pad + shift for pad, shift in zip(self._pads, shifts, strict=True)]
            self._shift = [old - shift for old, shift in zip(self._shift, shifts, strict=True)]
        caches.crop(cache, outcome.candidates.width - most)
        self._length += most
        self._trim()

    def _select(self, rows: Sequence[int]) -> None:
        """Go on with these rows only."""
        places = [self._rows.index(row) for row in rows]
        caches.select_rows(self.target.cache, places)
        self._pads = [self._pads[place] for place in places]
        self._shift = [self._shift[place] for place in places]
        self._rows = list(rows)

    def _trim(self) -> None:
        """Cut off the padding that all rows share; windows hold no padding of their own."""
        common, cache = min(self._pads), self.target.cache
        if common == 0 or any(caches.is_sliding(layer) for layer in caches.self_attention_layers(cache)):
            return
        caches.cut_slots(cache, common)
        self._pads = [pad - common for pad in self._pads]
        self._shift = [old + common for old in self._shift]
        self._length -= common
