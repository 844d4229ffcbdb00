"""How many candidates the target's positions leave: its last position, and lengths at which its forward changes."""

from collections.abc import Sequence

from uag.decoding.call import Call
from uag.hf import models
from uag.hf.positions import Cut
from uag.stats import Stats


class Limits:
    """The lengths of one call.

    Args:
        call: before its first pass.
        cuts: lengths at which the target's forward changes.

    Attributes:
        max_positions: that the model can take.
        num_hidden: cache slots in front of the ids: a prompt that came as embeddings, or the caller's cache.
    """

    def __init__(self, call: Call, cuts: Sequence[Cut]) -> None:
        self.max_positions = models.max_positions(call.model)
        self._cuts = cuts
        self._prompt_slots = call.input_ids.shape[1]
        self._num_pads = 0
        ids = None if call.model.config.is_encoder_decoder else call.model_kwargs.get("position_ids")
        if ids is not None:
            self._prompt_slots = max(self._prompt_slots, ids.shape[-1])
            # Rows may be padded differently, and a pass looks at the greatest position of all. Rotary factors of images
            # and video follow the last three kinds of position.
            last = ids[-3:, ..., -1] if ids.dim() > 2 else ids[:, -1]
            self._num_pads = ids.shape[-1] - (int(last.max()) + 1)
        self.num_hidden = self._prompt_slots - call.input_ids.shape[1]

    def _reached(self, cut: Cut, slots: int) -> int:
        return slots if cut.in_slots else slots - self._num_pads

    def budget(self, length: int, is_first: bool = False) -> int:
        """Return the candidates that may stand behind `length` ids of a row, in the prompt's pass or a later one."""
        slots = length + self.num_hidden
        budget = self.max_positions - slots
        for cut in self._cuts:
            reached = self._reached(cut, slots)
            if cut.kind == "count":
                continue
            if reached <= cut.at:
                budget = min(budget, cut.at - reached)
            elif cut.kind == "end" or is_first or reached == cut.at + 1:
                budget = 0  # the pass that crosses a switch may make a new cache, which cannot be rolled back yet
        return budget

    def last_position(self) -> int:
        """Return the greatest position of the padding behind a row's candidates."""
        return min([self.max_positions, *(cut.at for cut in self._cuts if not cut.in_slots)]) - 1

    def plain_reason(self) -> str:
        """Say why no candidate could ever be checked; empty where some can."""
        for cut in self._cuts:
            # One token of the target's own stands between the prompt and the first candidate.
            if cut.kind == "end" and self._reached(cut, self._prompt_slots) + 1 >= cut.at:
                return cut.why
        return ""

    def lockstep_reason(self, batch_size: int, max_length: int | None) -> str:
        """Say why rows must advance in lockstep in a call that ends at `max_length` ids (None: no bound); empty if not.

        A row that runs ahead, or ends early, would change what the passes of the others compute.
        """
        for cut in self._cuts:
            # Slots of rows that lag are padded, at most as many as the other rows write.
            most = None if max_length is None else self._reached(cut, max_length + self.num_hidden)
            if most is None or (most * batch_size if cut.in_slots else most) > cut.at:
                return cut.why
        return ""

    def note(self, stats: Stats, length: int) -> None:
        """Record why nothing is drafted behind `length` ids."""
        for cut in self._cuts:
            if cut.kind == "end" and self._reached(cut, length + self.num_hidden) >= cut.at:
                stats.fall_back(f"the target {cut.why}, so the rest of this call was decoded plainly")
