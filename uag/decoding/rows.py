"""The rows of one call: their outputs, where they end, and the ids to return."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from uag.decoding.call import Call, Candidates
from uag.hf import passes
from uag.proposal import Proposal
from uag.stats import TARGET, Stats

_FIRST_CAPACITY = 64  # initial capacity of the buffer, in output tokens


@dataclass
class Progress:
    """The progress of one row.

    `end` is the number of output steps after which a criterion ended the row; 0 while none has. `rounds` has, for each
    round, the sources of its candidates, and the numbers of outputs before and after it.
    """

    outputs: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    end: int = 0
    rounds: list[tuple[list[str], int, int]] = field(default_factory=list)
    num_counted: int = 0


class Rows:
    """All rows of a call; `buffer` [batch_size, capacity] int64 has prompts, outputs and the current candidates."""

    def __init__(self, call: Call) -> None:
        self.stopping = call.stopping
        self.batch_size, self.prompt_length = call.input_ids.shape[:2]
        self.pad_id = passes.pad_id(call.generation_config)
        self.all = [Progress() for _ in range(self.batch_size)]
        # int64 for any type of prompt, as in plain decoding.
        shape = (self.batch_size, self.prompt_length + _FIRST_CAPACITY)
        self.buffer = torch.zeros(shape, dtype=torch.long, device=call.input_ids.device)
        self.buffer[:, : self.prompt_length] = call.input_ids

    def length(self, row: int) -> int:
        """Return the number of ids of a row, prompt included."""
        return self.prompt_length + len(self.all[row].outputs)

    def budget(self, row: int) -> int:
        """Return how many candidates a row's criteria allow; the target adds its own token after them."""
        if self.is_padded(row):
            return 0
        max_length = self.stopping.max_length
        return 1 << 30 if max_length is None else max(max_length - self.length(row) - 1, 0)

    def is_padded(self, row: int) -> bool:
        """Whether a row has ended and is padded. Without an EOS id, plain decoding keeps writing finished rows."""
        return self.all[row].end > 0 and self.stopping.has_eos

    def is_done(self, row: int) -> bool:
        if not self.all[row].end:
            return False
        max_length = self.stopping.max_length
        is_full = max_length is not None and self.length(row) >= max_length
        return self.batch_size == 1 or self.stopping.has_eos or is_full

    def active(self) -> list[int]:
        return [row for row in range(self.batch_size) if not self.is_done(row)]

    def have_ended(self) -> bool:
        """Whether every row has finished and is as long as in plain decoding."""
        if not all(row.end for row in self.all):
            return False
        return self.stopping.has_eos or all(len(row.outputs) >= self.num_steps() for row in self.all)

    def num_steps(self) -> int:
        """Return plain decoding's number of output steps, up to the end of the last row."""
        return max(row.end or len(row.outputs) for row in self.all)

    def append(self, row: int, token_id: int, candidate: Proposal | None) -> bool:
        """Append an output token to a row, but not to the buffer; return whether the token is this candidate."""
        progress, is_accepted = self.all[row], candidate is not None and candidate.target_id == token_id
        progress.outputs.append(token_id)
        progress.sources.append(candidate.source if candidate is not None and is_accepted else TARGET)
        return is_accepted

    def num_passed(self) -> int:
        """Return the number of output steps that every active row has passed."""
        return min((len(self.all[row].outputs) for row in self.active()), default=0)

    def num_ready(self) -> int:
        """Return the number of output steps of plain decoding that are final for all rows."""
        num_ready = self.num_passed() if self.active() else self.num_steps()
        is_last_known = all(row.end for row in self.all)
        return min(num_ready, self.num_steps()) if is_last_known else num_ready

    def end_at(self, row: int, step: int) -> None:
        """End a row at a step that it may have passed; later tokens are removed where plain decoding pads."""
        progress = self.all[row]
        progress.end = min(progress.end or step, step)
        if self.stopping.has_eos:
            del progress.outputs[progress.end :], progress.sources[progress.end :]

    def reserve(self, num_outputs: int) -> None:
        size = self.prompt_length + num_outputs
        if size > self.buffer.shape[1]:
            larger = self.buffer.new_zeros((self.batch_size, 2 * size))
            larger[:, : self.buffer.shape[1]] = self.buffer
            self.buffer = larger

    def write(self, candidates: Candidates, num_new: int) -> None:
        """Write each row's candidates after its outputs, up to `num_new` ids; shorter rows repeat their last id."""
        self.reserve(max(len(self.all[row].outputs) for row in candidates.rows) + num_new + 1)
        for row, proposals in zip(candidates.rows, candidates.by_row, strict=True):
            start = self.length(row)
            end = start + len(proposals)
            if proposals:
                ids = torch.tensor([proposal.target_id for proposal in proposals], device=self.buffer.device)
                self.buffer[row, start:end] = ids
            if 0 < end < start + num_new:
                self.buffer[row, end : start + num_new] = self.buffer[row, end - 1]

    def last(self, rows: Sequence[int], width: int) -> torch.Tensor:
        """Return the last output of each of these rows and what was written after it, [num_rows, width] int64."""
        return torch.stack([self.buffer[row, self.length(row) - 1 :][:width] for row in rows])

    def ids_at(self, num_steps: int) -> torch.Tensor:
        """Return plain decoding's ids [batch_size, prompt_length + num_steps] at a step that all rows have reached."""
        sequences = self.buffer[:, : self.prompt_length + num_steps].clone()
        for index, row in enumerate(self.all):
            if len(row.outputs) < num_steps:
                sequences[index, self.length(index) :] = self.pad_id or 0
        return sequences

    def count(self, stats: Stats) -> None:
        """Add the output of every row to the statistics, at the end of the call."""
        for index, row in enumerate(self.all):
            size = row.end or len(row.outputs)
            for candidates, first, end in row.rounds:
                if first < size:
                    accepted = [source for source in row.sources[first : min(end, size)] if source != TARGET]
                    stats.count_round(index, candidates, len(accepted))
            stats.count_row(index, row.sources[:size])


def check_selected(token_id: int) -> None:
    """Raise plain sampling's error if no token could be selected."""
    if token_id < 0:
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
