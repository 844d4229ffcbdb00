"""The first stage: the target's texts, written into their folder until none is missing."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from uag.distill.engines import ENGINES, Request
from uag.distill.space import BYTES_PER_TEXT_TOKEN, check_space, told_where_full
from uag.distill.texts import Task, TextStore, batches
from uag.errors import OptionError


@dataclass(frozen=True)
class Writing:
    """What the target writes, and where.

    Attributes:
        temperatures: of a prompt's first, second, ... text; 0 is greedy.
        num_texts: texts in all; None for one of each prompt at each temperature.
        max_new_tokens: tokens of a text at most.
        batch_size: texts at once: more is faster, and takes more memory.
        max_minutes: stop writing then, counted from the first batch to learn from; None writes all.
        seed: of all sampling.
        is_chat: make each prompt a user turn of the target's chat template.
        engine: "transformers", "vllm" or "ray".
        engine_options: of `vllm.LLM`; for Ray `num_workers`, and of `map_batches` all else.
    """

    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    num_texts: int | None = None
    max_new_tokens: int = 128
    batch_size: int = 64
    max_minutes: float | None = None
    seed: int = 0
    is_chat: bool = False
    engine: str = "transformers"
    engine_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise OptionError(f"unknown engine {self.engine!r}: the engines are {', '.join(ENGINES)}")
        if not self.temperatures or min(self.temperatures) < 0:
            raise OptionError(f"temperatures are {self.temperatures!r}: give at least one, 0 (greedy) or more")
        if min(self.max_new_tokens, self.batch_size, 1 if self.num_texts is None else self.num_texts) < 1:
            raise OptionError("max_new_tokens, batch_size and num_texts must be 1 or more")

    def request(self, target: str, dtype: str | None, device: str | None) -> Request:
        """Return what an engine is told."""
        return Request(target, self.max_new_tokens, dtype, device, self.engine_options)


def write_texts(
    store: TextStore,
    held_out: Sequence[Task],
    due: Sequence[Task],
    writing: Writing,
    request: Request,
    tokenizer: Any,
    on_progress: Callable[[str, int, int], object] = lambda *_: None,
) -> None:
    """Write the texts that are not there yet, those of held-out prompts first; each is there as soon as it is written.

    Args:
        store: where they go.
        held_out: texts that are written whatever the time.
        due: the others.
        writing: how.
        request: what the engine is told.
        tokenizer: the target's, to show what a text says.
        on_progress: ("writing", texts there, texts in all).

    Raises:
        OSError: too little space on the disk; what was written is kept.
        ImportError: the engine is not installed.
    """
    done = store.ids()
    num_all = len(held_out) + len(due)
    missing = [
        [task for task in batch if task.text_id not in done]
        for part in (held_out, due)
        for batch in batches(part, writing.batch_size)
    ]
    missing = [batch for batch in missing if batch]
    held_ids = {task.text_id for task in held_out}
    sizes = [len(task.prompt_ids) + writing.max_new_tokens for batch in missing for task in batch]
    check_space(store.folder, BYTES_PER_TEXT_TOKEN * sum(sizes), f"writing {len(sizes)} texts")
    on_progress("writing", len(done), num_all)
    if not missing:
        return
    began: float | None = None
    for texts in ENGINES[writing.engine](request, missing):
        decoded = tokenizer.batch_decode([text.output_ids for text in texts], skip_special_tokens=True)
        with told_where_full(store.folder, f"{len(done)} texts are kept"):
            store.add(texts, decoded)
        done.update(text.text_id for text in texts)
        on_progress("writing", len(done), num_all)
        if held_ids.issuperset(text.text_id for text in texts):
            continue  # the time is for the others
        now = time.monotonic()
        began = now if began is None else began
        if writing.max_minutes is not None and now - began >= 60 * writing.max_minutes:
            return
