"""Rows that advance freely: each as far as its own candidates carry it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from uag.decoding.state import LoopState, check_selected
from uag.proposal import Proposal


class FreeRounds(LoopState):
    """Rounds for rows that nothing looks at together."""

    def _run_alone(self, logits: torch.Tensor, proposals: list[list[Proposal]]) -> None:
        """Advance a single row."""
        is_prefill = not proposals[0]
        is_first = True
        while True:
            width = len(proposals[0]) + 1
            num_written, num_matched = self._accept_block([0], logits, proposals)[0]
            if is_prefill:
                self.target.advance(1)
            else:
                self.target.keep(num_written, width)
                self._learn(width, [0], proposals, [num_matched], is_first)
            self._stream_ready()
            if self._has_ended():
                return
            is_prefill = is_first = False
            proposals = self._draft([0])
            logits = self._verify_even(proposals)
            self._release_noise()

    def _run_ragged(self, logits: torch.Tensor, proposals: list[list[Proposal]]) -> None:
        """Advance several rows, each as far as its own candidates carry it."""
        active = list(range(self.batch_size))
        width = len(proposals[0]) + 1
        outcomes = self._accept_block(active, logits, proposals)
        self.target.start_ragged(width)
        self.target.keep_ragged([written for written, _ in outcomes], width)
        if width > 1:
            self._learn(width, active, proposals, [matched for _, matched in outcomes], is_first=True)
        while True:
            self._stream_ready()
            if self._has_ended():
                return
            remaining = [row for row in active if not self._is_done(self.rows[row])]
            if remaining != active:
                self.target.select_rows([active.index(row) for row in remaining])
                active = remaining
            proposals = self._draft(active)
            width = max(len(p) for p in proposals) + 1
            self._write_candidates(active, proposals)
            logits = self.target.verify_ragged(self._block(active, proposals, width))
            outcomes = self._accept_block(active, logits, proposals)
            self.target.keep_ragged([written for written, _ in outcomes], width)
            self._learn(width, active, proposals, [matched for _, matched in outcomes])
            self._release_noise()

    def _block(self, active: Sequence[int], proposals: Sequence[Sequence[Proposal]], width: int) -> torch.Tensor:
        lines = []
        for row, candidates in zip(active, proposals, strict=True):
            line = [self.rows[row].outputs[-1], *(p.target_id for p in candidates)]
            lines.append(line + line[-1:] * (width - len(line)))
        return torch.tensor(lines, device=self.device)

    def _accept_block(
        self, active: Sequence[int], logits: torch.Tensor, proposals: Sequence[Sequence[Proposal]]
    ) -> list[tuple[int, int]]:
        """Select and append each row's tokens; returns (tokens written, candidates accepted) per active row."""
        starts = [self.prompt_length + len(self.rows[row].outputs) for row in active]
        selected = self.ranks.tell(
            self.selector.select_block(
                logits,
                [start - self.prompt_length for start in starts],
                active,
                lambda line, position: self.buffer[active[line]][None, : starts[line] + position],
                proposals,
            )
        )
        self._grow(max(starts) + logits.shape[1])
        is_out_of_time = self.stopping.has_time_limit and self.ranks.agree(self.stopping.is_out_of_time())
        outcomes = []
        for line, row in enumerate(active):
            candidates = [proposal.target_id for proposal in proposals[line]]
            num_written, num_matched = self._append(row, selected[line], candidates, is_out_of_time)
            outcomes.append((num_written, num_matched))
            if self.drafter is not None and not self._is_done(self.rows[row]):
                self.drafter.accept(row, num_matched, selected[line][:num_written])
        self._note_time()
        return outcomes

    def _append(self, row: int, selected: Sequence[int], candidates: Sequence[int], ends_now: bool) -> tuple[int, int]:
        """Append the selected tokens up to the first rejected candidate or the row's end."""
        sequence = self.rows[row]
        num_matched = 0
        for position, token_id in enumerate(selected):
            check_selected(token_id)
            is_match = position < len(candidates) and token_id == candidates[position]
            sequence.outputs.append(token_id)
            sequence.origins.append(is_match)
            num_matched += is_match
            length = self.prompt_length + len(sequence.outputs)
            if not is_match:
                self.buffer[row, length - 1] = token_id
            ids = self.buffer[row][None, :length] if self.stopping.needs_text else None
            if self.stopping.ends(token_id, length, ids) or ends_now:
                sequence.end = sequence.end or len(sequence.outputs)
            if not is_match or self._is_done(sequence):
                return position + 1, num_matched
        return len(selected), num_matched

    def _stream_ready(self) -> None:
        """Give the streamer every step that all rows have passed, as plain decoding gives them."""
        streamer = self.request.streamer
        if streamer is None:
            return
        ended = self._has_ended()
        ready = min((len(row.outputs) for row in self.rows if not self._is_done(row)), default=self._num_steps())
        if ended:
            ready = min(ready, self._num_steps())
        for step in range(self.num_streamed, ready):
            line = [row.outputs[step] if step < len(row.outputs) else self.pad_id for row in self.rows]
            streamer.put(torch.tensor(line))
        self.num_streamed = max(self.num_streamed, ready)
