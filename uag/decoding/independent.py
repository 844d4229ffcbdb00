"""Accepting for rows that advance independently: each goes as far as its own candidates carry it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from uag.decoding.call import Call
from uag.decoding.candidates import Candidates, Outcome
from uag.decoding.delayed_criteria import DelayedCriteria
from uag.decoding.drafts import Drafts
from uag.decoding.rows import Rows, check_selected
from uag.sampling import Selector
from uag.stats import TARGET, Stats


@dataclass
class Independent:
    """Accepts row by row what the selector, the target's own choice, says."""

    call: Call
    rows: Rows
    selector: Selector
    stats: Stats
    _num_streamed: int = 0

    def __post_init__(self) -> None:
        self._delayed = DelayedCriteria(self.call, self.rows)

    def draft(self, drafts: Drafts) -> Candidates:
        """Ask for candidates of the rows that still go on."""
        return drafts.propose(self.rows.going())

    def accept(self, logits: torch.Tensor, candidates: Candidates) -> Outcome:
        """Take the target's own tokens, each row's up to its first rejected candidate or its end."""
        rows, ranks, stopping = self.rows, self.call.ranks, self.rows.stopping
        starts = [len(rows.all[row].outputs) for row in candidates.rows]
        selected = ranks.tell(
            self.selector.select_block(
                logits,
                starts,
                candidates.rows,
                lambda line, position: rows.buffer[candidates.rows[line]][
                    None, : rows.prompt_length + starts[line] + position
                ],
                candidates.lines,
            )
        )
        rows.grow(max(starts) + logits.shape[1])
        is_out_of_time = stopping.has_time_limit and ranks.tell(stopping.is_out_of_time())
        outcomes = []
        for row, ids, line in zip(candidates.rows, selected, candidates.lines, strict=True):
            offered = list(zip((proposal.target_id for proposal in line), candidates.names(line), strict=True))
            outcomes.append(self._append(row, ids, offered, is_out_of_time))
        self._delayed.catch_up()
        rows.note_time(self.stats)
        return Outcome(candidates, [w for w, _ in outcomes], [a for _, a in outcomes], is_first=not any(starts))

    def _append(
        self, row: int, selected: Sequence[int], candidates: Sequence[tuple[int, str]], ends_now: bool
    ) -> tuple[int, int]:
        """Append the selected ids, up to the first rejected candidate or the row's end; returns (written, accepted)."""
        rows, progress = self.rows, self.rows.all[row]
        num_accepted = 0
        for position, token_id in enumerate(selected):
            check_selected(token_id)
            is_accepted = position < len(candidates) and token_id == candidates[position][0]
            progress.outputs.append(token_id)
            progress.sources.append(candidates[position][1] if is_accepted else TARGET)
            num_accepted += is_accepted
            length = rows.length(row)
            if not is_accepted:
                rows.buffer[row, length - 1] = token_id
            ids = rows.buffer[row][None, :length] if rows.stopping.needs_text else None
            if rows.stopping.ends(token_id, length, ids) or ends_now:
                progress.end = progress.end or len(progress.outputs)
            if not is_accepted or rows.is_done(row):
                return position + 1, num_accepted
        return len(selected), num_accepted

    def stream(self) -> None:
        """Give the streamer every step that all rows have passed, as plain decoding gives them."""
        streamer, rows = self.call.streamer, self.rows
        if streamer is None:
            return
        num_steps, going = rows.num_steps(), rows.going()
        ready = rows.num_passed() if going else num_steps
        if rows.have_ended():
            ready = min(ready, num_steps)
        for step in range(self._num_streamed, ready):
            line = [row.outputs[step] if step < len(row.outputs) else rows.pad_id for row in rows.all]
            streamer.put(torch.tensor(line))
        self._num_streamed = max(self._num_streamed, ready)
