"""How far the blocks of one call may reach: the model's positions, and lengths at which its forward changes."""

from uag.decoding.call import Call
from uag.hf import models, positions
from uag.stats import Stats


class Limits:
    """What the target's positions leave to candidates.

    Args:
        call: before its first pass.

    Attributes:
        max_positions: that the model can take.
        num_hidden: slots in front of the ids: a prompt that came as embeddings, or the user's cache.
    """

    def __init__(self, call: Call) -> None:
        self.max_positions = models.max_positions(call.model)
        self.num_hidden = 0
        self._cuts = call.cuts or ()
        self._prompt_slots = call.input_ids.shape[1]
        self._num_pads = 0
        ids = None if call.model.config.is_encoder_decoder else call.model_kwargs.get("position_ids")
        if ids is not None:
            self._prompt_slots = max(self._prompt_slots, ids.shape[-1])
            # Rows may be padded differently; what a pass looks at is the greatest position of all. Rotary factors of
            # images and video follow the last three kinds of position.
            last = ids[-3:, ..., -1] if ids.dim() > 2 else ids[:, -1]
            self._num_pads = ids.shape[-1] - (int(last.max()) + 1)

    def _reached(self, cut: positions.Cut, slots: int) -> int:
        return slots if cut.in_slots else slots - self._num_pads

    def room(self, length: int, is_first: bool = False) -> int:
        """Return the candidates that may stand behind `length` ids of a row, in the prompt's pass or a later one."""
        slots = length + self.num_hidden
        room = self.max_positions - slots
        for cut in self._cuts:
            reached = self._reached(cut, slots)
            if cut.kind == "count":
                continue
            if reached <= cut.at:
                room = min(room, cut.at - reached)
            elif cut.kind == "end" or is_first or reached == cut.at + 1:
                room = 0  # the pass that crosses a switch may make a new cache, which cannot be rewound yet
        return room

    def last_position(self) -> int:
        """Return the greatest position that filling behind a row may have."""
        return min([self.max_positions, *(cut.at for cut in self._cuts if not cut.in_slots)]) - 1

    def plain_reason(self) -> str:
        """Say why no candidate could ever be checked; empty where some can."""
        for cut in self._cuts:
            # One token of the target's own stands between the prompt and the first candidate.
            if cut.kind == "end" and self._reached(cut, self._prompt_slots) + 1 >= cut.at:
                return cut.why
        return ""

    def step_reason(self, batch_size: int, max_length: int | None) -> str:
        """Say why rows go in step in a call that ends at `max_length` ids, None for no bound; empty if they need not.

        A row that runs ahead, or ends early, would change what the others' passes look at.
        """
        for cut in self._cuts:
            # Slots of rows that lag are filled up, at most as many as the other rows write.
            most = None if max_length is None else self._reached(cut, max_length + self.num_hidden)
            if most is None or (most * batch_size if cut.in_slots else most) > cut.at:
                return cut.why
        return ""

    def note(self, stats: Stats, length: int) -> None:
        """Record why nothing is drafted behind `length` ids."""
        for cut in self._cuts:
            if cut.kind == "end" and self._reached(cut, length + self.num_hidden) >= cut.at:
                stats.fall_back(f"the target {cut.why}, so the rest of this call was decoded plainly")
