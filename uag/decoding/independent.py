"""Rows that advance independently: each keeps as many tokens of a pass as its own candidates allow.

Gaps in an attention mask change the logits of some models. So rows are shifted right until all end in the same cache
slot, and left padding that all rows share is removed.

An unknown criterion may read the whole batch and keep state. So it is called as in plain decoding, once per output step
in order, when all rows have passed the step. If it ends a row that is already ahead, its later tokens are removed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from uag.decoding.call import Call, Candidates, Outcome
from uag.decoding.rows import Rows, check_selected
from uag.decoding.target import Target
from uag.hf import passes
from uag.hf.cache import caches
from uag.lookahead import clock
from uag.proposal import Proposal
from uag.sampling import Selector


@dataclass
class Independent:
    """Accepts each row's candidates up to the first that differs from the token the selector chooses for the target."""

    call: Call
    rows: Rows
    selector: Selector
    _num_checked: int = 0  # steps passed to the unknown criteria
    _num_streamed: int = 0

    def accept(self, logits: torch.Tensor, candidates: Candidates) -> Outcome:
        """Append the target's tokens, up to each row's first rejected candidate or its end."""
        rows = self.rows
        starts = [len(rows.all[row].outputs) for row in candidates.rows]

        def ids_before(index: int, position: int) -> torch.Tensor:
            return rows.buffer[candidates.rows[index]][None, : rows.prompt_length + starts[index] + position]

        selected = self.call.ranks.broadcast(
            self.selector.select_block(logits, starts, candidates.rows, ids_before, candidates.by_row)
        )
        counts = [self._append(*of_row) for of_row in zip(candidates.rows, selected, candidates.by_row, strict=True)]
        self._call_unknown_criteria()
        num_written, num_accepted = map(list, zip(*counts, strict=True))
        return Outcome(candidates, num_written, num_accepted, is_prefill=not any(starts))

    def _append(self, row: int, selected: Sequence[int], candidates: Sequence[Proposal]) -> tuple[int, int]:
        """Append selected ids up to the first rejected candidate or the row's end, and return (written, accepted)."""
        rows, progress = self.rows, self.rows.all[row]
        num_accepted = 0
        for position, token_id in enumerate(selected):
            check_selected(token_id)
            is_accepted = rows.append(row, token_id, candidates[position] if position < len(candidates) else None)
            num_accepted += is_accepted
            length = rows.length(row)
            if not is_accepted:
                rows.buffer[row, length - 1] = token_id
            ids = rows.buffer[row][None, :length] if rows.stopping.strings else None
            if rows.stopping.ends(token_id, length, ids):
                progress.end = progress.end or len(progress.outputs)
            if not is_accepted or rows.is_done(row):
                return position + 1, num_accepted
        return len(selected), num_accepted

    def _call_unknown_criteria(self) -> None:
        """Call the unknown criteria for every step that all rows have passed, and end rows accordingly."""
        rows = self.rows
        while rows.stopping.others and self._num_checked < rows.num_ready():
            self._num_checked += 1
            done = rows.stopping.others(rows.ids_at(self._num_checked), None)
            for row, is_done in enumerate(self.call.ranks.broadcast_tensor(done).tolist()):
                if is_done:
                    rows.end_at(row, self._num_checked)

    def stream(self) -> None:
        streamer, rows = self.call.streamer, self.rows
        if streamer is None:
            return
        for step in range(self._num_streamed, rows.num_ready()):
            tokens = [row.outputs[step] if step < len(row.outputs) else rows.pad_id for row in rows.all]
            streamer.put(torch.tensor(tokens, device="cpu"))
            self._num_streamed = step + 1


class Ragged:
    """Runs the target's passes for rows of different lengths, after the pass over the left-padded prompts."""

    def __init__(self, target: Target) -> None:
        self.target = target
        kwargs = target.kwargs
        # The prompt's length comes from the positions, because a prompt of embeddings has no ids.
        positions, mask = kwargs.pop("position_ids"), kwargs.pop("attention_mask", None)
        self._rows = list(range(positions.shape[0]))
        # For each row, the slots before its first token, and that token's position, which is not 0 behind tokens that
        # the caller's cache holds: a token in slot i has the position i - pad + first. Then the slots of all rows.
        self._pads = [0] * len(self._rows) if mask is None else (mask.cumsum(-1) == 0).sum(-1).tolist()
        starts = (positions[:, -1] - (positions.shape[1] - 1)).tolist()
        self._firsts = [start + pad for start, pad in zip(starts, self._pads, strict=True)]
        self._length = caches.length(target.cache) - 1  # `keep` adds the prompt pass's own token

    def verify(self, rows: Rows, candidates: Candidates) -> torch.Tensor:
        """Run each row's last token and its candidates, and return logits [num_rows, width, vocab_size], float32."""
        if list(candidates.rows) != self._rows:
            indices = [self._rows.index(row) for row in candidates.rows]
            self.target.cache.batch_select_indices(torch.tensor(indices, device="cpu"))
            self._pads, self._firsts = ([of[index] for index in indices] for of in (self._pads, self._firsts))
            self._rows = self.target.rows = list(candidates.rows)
        rows.write(candidates, candidates.width - 1)
        return self._run(rows.last(candidates.rows, candidates.width))

    def _run(self, block: torch.Tensor) -> torch.Tensor:
        target, width, end = self.target, block.shape[1], self._length + block.shape[1]
        start_time = clock.now()
        slots = torch.arange(end, device=block.device)
        pads = torch.tensor(self._pads, device=block.device)[:, None]
        firsts = torch.tensor(self._firsts, device=block.device)[:, None]
        positions = (slots[None, self._length :] - pads + firsts).clamp_(min=0)
        mask = (slots[None] >= pads).long() if any(self._pads) else None
        kwargs = target.kwargs | {"position_ids": positions, "attention_mask": mask}
        # Candidates fit within the model's positions; the filler ids of shorter rows must too.
        passes.limit_positions(kwargs, width, target.limits.last_position)
        inputs = target.model.prepare_inputs_for_generation(block, next_sequence_length=width, **kwargs)
        return target.run(inputs, width, block.device, start_time)

    def undo(self) -> None:
        caches.crop(self.target.cache, caches.length(self.target.cache) - self._length)

    def keep(self, outcome: Outcome) -> None:
        """Keep the tokens that each row wrote, except the last one, which is the next pass's first."""
        most, cache = max(outcome.num_written), self.target.cache
        shifts = [most - kept for kept in outcome.num_written]
        if any(shifts):
            caches.shift_rows(cache, shifts)
            self._pads = [pad + shift for pad, shift in zip(self._pads, shifts, strict=True)]
        caches.crop(cache, outcome.candidates.width - most)
        self._length += most
        self._trim()

    def _trim(self) -> None:
        """Remove the padding that all rows share. Sliding windows contain none."""
        common, cache = min(self._pads), self.target.cache
        if common == 0 or any(caches.is_sliding(layer) for layer in caches.self_attention_layers(cache)):
            return
        caches.cut_slots(cache, common)
        self._pads = [pad - common for pad in self._pads]
        self._length -= common
