"""To be described."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Progress:
    """One row's progress."""

    outputs: list[int] = field(default_factory=list)
    origins: list[bool] = field(default_factory=list)
    end: int = 0
    num_counted: int = 0
    last_s: float = 0.0

    @property
    def is_finished(self) -> bool:
        """Whether a criterion has ended the row, at output step `end`."""
        return self.end > 0
