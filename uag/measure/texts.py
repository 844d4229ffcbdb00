"""A text of the target, before and after the target has written it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """A prompt, how the target is to continue it, and the output once it exists.

    Attributes:
        text_id: unique among the texts of a run.
        prompt_ids: target ids.
        temperature: 0 is greedy.
        seed: the output is that of plain sampling after `torch.manual_seed(seed)`; None if the noise is not known.
        output_ids: target ids, the end-of-text token included; empty until they are written.
    """

    text_id: str
    prompt_ids: tuple[int, ...]
    temperature: float = 0.0
    seed: int | None = None
    output_ids: tuple[int, ...] = ()
