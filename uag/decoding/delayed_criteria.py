"""Unknown stopping criteria when rows advance independently: they see an output step once all rows have passed it.

An unknown criterion may look at the whole batch, and may keep what it has seen. So it is called exactly as
plain decoding calls it: once per output step, in order, with the ids of every row at that step. Only later: the fastest
row is ahead by then, and what it wrote behind an end that a criterion gives it is cut off again.
"""

from dataclasses import dataclass

from uag.decoding.call import Call
from uag.decoding.rows import Rows


@dataclass
class DelayedCriteria:
    """Calls the unknown criteria with the steps that all rows have passed."""

    call: Call
    rows: Rows
    _num_steps: int = 0

    def catch_up(self) -> None:
        """Show every step that is ready, and end the rows that a criterion ends."""
        rows = self.rows
        if not rows.stopping.unknown:
            return
        while self._num_steps < self._num_ready():
            self._num_steps += 1
            answers = rows.stopping.ask_unknown(rows.ids_at(self._num_steps))
            for row, is_done in enumerate(self.call.ranks.share(answers).tolist()):
                if is_done:
                    rows.end_at(row, self._num_steps)

    def _num_ready(self) -> int:
        """Output steps that every row has passed; behind the last row's end plain decoding takes none."""
        rows = self.rows
        passed = rows.num_passed() if rows.going() else rows.num_steps()
        return min(passed, rows.num_steps()) if all(row.is_finished for row in rows.all) else passed
