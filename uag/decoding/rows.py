"""The rows of one call: what each has written, where it ends, and the ids to be returned."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from uag.decoding.call import Call
from uag.decoding.candidates import Candidates
from uag.decoding.stopping import Stopping
from uag.hf import passes
from uag.stats import TARGET, Stats

_ROOM = 64
"""Output tokens that the buffer holds before it grows for the first time."""


@dataclass
class Progress:
    """How far one row has come.

    Attributes:
        outputs: target ids written.
        sources: of each, where it came from; see `Stats`.
        end: output steps until a criterion ended the row; 0 while none has.
        rounds: of each round, where its candidates came from, and the outputs before it.
        num_counted: outputs that the prefill and these rounds gave.
        last_s: seconds until the last token was known.
    """

    outputs: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    end: int = 0
    rounds: list[tuple[list[str], int]] = field(default_factory=list)
    num_counted: int = 0
    last_s: float = 0.0

    @property
    def is_finished(self) -> bool:
        """Whether a criterion has ended the row."""
        return self.end > 0


class Rows:
    """All rows of a call.

    Attributes:
        all: each row's progress.
        buffer: [batch_size, capacity] int64: prompts, outputs, then the candidates under examination.
    """

    def __init__(self, call: Call, stopping: Stopping) -> None:
        self.stopping = stopping
        self.batch_size, self.prompt_length = call.input_ids.shape[:2]
        self.pad_id = passes.pad_id(call.generation_config)
        self.all = [Progress() for _ in range(self.batch_size)]
        self._began = time.perf_counter()
        # int64 whatever the prompt's type is: plain decoding's ids are, from the first one on.
        shape = (self.batch_size, self.prompt_length + _ROOM)
        self.buffer = torch.zeros(shape, dtype=torch.long, device=call.input_ids.device)
        self.buffer[:, : self.prompt_length] = call.input_ids

    # ------------------------------------------------------------------ how far they have come

    def length(self, row: int) -> int:
        """Return the ids of a row, prompt included."""
        return self.prompt_length + len(self.all[row].outputs)

    def room(self, row: int) -> int:
        """Candidates that a row may still take by its criteria: the target writes one token of its own behind them."""
        if self.is_padded(row):
            return 0
        most = self.stopping.max_length
        return 1 << 30 if most is None else max(most - self.length(row) - 1, 0)

    def is_padded(self, row: int) -> bool:
        """Whether a row has ended and is filled up; without EOS plain decoding goes on writing finished rows."""
        return self.all[row].is_finished and self.stopping.has_eos

    def is_done(self, row: int) -> bool:
        """Whether a row takes no more tokens."""
        if not self.all[row].is_finished:
            return False
        most = self.stopping.max_length
        at_limit = most is not None and self.length(row) >= most
        return self.batch_size == 1 or self.stopping.has_eos or at_limit

    def going(self) -> list[int]:
        """Return the rows that take more tokens."""
        return [row for row in range(self.batch_size) if not self.is_done(row)]

    def have_ended(self) -> bool:
        """Whether the call is over: every row finished, and written as far as plain decoding writes it."""
        if not all(row.is_finished for row in self.all):
            return False
        return self.stopping.has_eos or all(len(row.outputs) >= self.num_steps() for row in self.all)

    def num_steps(self) -> int:
        """Output steps of plain decoding: until the last row finished."""
        return max(row.end or len(row.outputs) for row in self.all)

    def num_passed(self) -> int:
        """Output steps that every row has passed."""
        return min((len(self.all[row].outputs) for row in self.going()), default=0)

    def end_at(self, row: int, step: int) -> None:
        """End a row that may have been written further; what lies behind is cut off where plain decoding pads."""
        progress = self.all[row]
        progress.end = min(progress.end or step, step)
        if self.stopping.has_eos:
            del progress.outputs[progress.end :], progress.sources[progress.end :]

    # ------------------------------------------------------------------ their ids

    def grow(self, num_outputs: int) -> None:
        """Make room for so many outputs."""
        size = self.prompt_length + num_outputs
        if size > self.buffer.shape[1]:
            grown = self.buffer.new_zeros((self.batch_size, 2 * size))
            grown[:, : self.buffer.shape[1]] = self.buffer
            self.buffer = grown

    def write(self, candidates: Candidates) -> None:
        """Write each row's candidates behind its outputs."""
        self.grow(max(len(self.all[row].outputs) for row in candidates.rows) + candidates.width)
        for row, line in zip(candidates.rows, candidates.lines, strict=True):
            if line:
                start = self.length(row)
                ids = torch.tensor([proposal.target_id for proposal in line], device=self.buffer.device)
                self.buffer[row, start : start + len(line)] = ids

    def sequences(self) -> torch.Tensor:
        """Return [batch_size, prompt_length + num_steps], as plain decoding returns it."""
        return self.ids_at(self.num_steps())

    def ids_at(self, num_steps: int) -> torch.Tensor:
        """Return [batch_size, prompt_length + num_steps] as plain decoding has it then; every row has come so far."""
        sequences = self.buffer[:, : self.prompt_length + num_steps].clone()
        for index, row in enumerate(self.all):
            if len(row.outputs) < num_steps:
                sequences[index, self.length(index) :] = self.pad_id or 0
        return sequences

    # ------------------------------------------------------------------ statistics

    def note_time(self, stats: Stats) -> None:
        """Note when the first token was known, and the last one of rows that have ended."""
        now = time.perf_counter() - self._began
        if not stats.first_token_s:
            stats.first_token_s = now
        for row in self.all:
            row.last_s = row.last_s if row.is_finished and row.last_s else now

    def count(self, stats: Stats, token_bytes: Sequence[bytes | None]) -> None:
        """Add what every row wrote, at the end of the call."""
        for index, row in enumerate(self.all):
            size = row.end or len(row.outputs)
            ends = [*(first for _, first in row.rounds[1:]), row.num_counted]
            for (candidates, first), end in zip(row.rounds, ends, strict=False):
                if first < size:
                    accepted = [source for source in row.sources[first : min(end, size)] if source != TARGET]
                    stats.count_round(index, candidates, len(accepted))
            stats.count_row(index, row.outputs[:size], row.sources[:size], token_bytes, row.last_s)


def check_selected(token_id: int) -> None:
    """Raise what plain sampling raises where no token is left to select."""
    if token_id < 0:
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
