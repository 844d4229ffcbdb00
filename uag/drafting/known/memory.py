"""A memory of prompts and outputs, from which later calls get candidates."""

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from os import PathLike
from typing import Any, Self

import numpy as np
import safetensors
import safetensors.numpy

from uag import forks
from uag.drafting.known.index import END, NUM_LAST, KnownIds
from uag.errors import LoadingError, OptionError, PairError
from uag.proposal import num_equal

_MIN_TOKENS, _MAX_TOKENS = 64, np.iinfo(np.int32).max - NUM_LAST  # one text, and places of 32 bits
_NUM_SHARED = 16  # fewest ids that show that a prompt's beginning is stored, and that are stored again
_MAX_COMPARED = 4  # stored texts with which a prompt is compared

_UNREADABLE = (safetensors.SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError, MemoryError)
"""Errors for files that are damaged or of another kind."""


class Memory:
    """Remembers the texts of earlier calls; pass it as `uag.Assistant(..., memory=memory)`.

    Assistants of one tokenizer can share a memory, also in several threads. The speed of a call reveals what was asked
    before: share a memory only among users who may know that. See docs/free-candidates.md.

    Args:
        max_tokens: number of tokens to keep; the oldest are overwritten first. Each takes 12 bytes.

    Attributes:
        max_tokens: the argument.
        tokenizer: fingerprint of the tokenizer whose ids are stored; empty until an assistant uses the memory.

    Raises:
        OptionError: `max_tokens` is not a whole number of 64 or more.

    Example:
        memory = uag.Memory()
        assistant = uag.Assistant(None, None, tokenizer, memory=memory)
        assistant.generate(model, **inputs, max_new_tokens=200)
        memory.save("memory.safetensors")
    """

    def __init__(self, max_tokens: int = 1_000_000) -> None:
        if not isinstance(max_tokens, int) or not _MIN_TOKENS <= max_tokens <= _MAX_TOKENS:
            raise OptionError(f"{max_tokens=} must be a whole number from {_MIN_TOKENS} to {_MAX_TOKENS:,}.")
        self.max_tokens = max_tokens
        self.tokenizer = ""
        self._lock = forks.lock()
        self._known = KnownIds(max_tokens)

    def __len__(self) -> int:
        with self._lock:
            return int(np.count_nonzero(self._known.ids != END))

    def add(self, prompt_ids: Sequence[int], output_ids: Sequence[int] = ()) -> None:
        """Store a text, in target ids. The beginning of its prompt is not stored again if it is stored already.

        Raises:
            OptionError: an id is below 0 or does not fit into 32 bits.
        """
        texts, most = [*prompt_ids, *output_ids], np.iinfo(np.int32).max
        if texts and not 0 <= min(texts) <= max(texts) <= most:
            raise OptionError(f"A memory stores ids from 0 to {most:,}; others were passed.")
        with self._lock:
            num_known = self._num_known(texts[: len(prompt_ids)])
            self._known.append([*texts[max(num_known - _NUM_SHARED, 0) :], END])

    def _num_known(self, ids: list[int]) -> int:
        """Return how many of the first ids are stored, in one text or in texts that continue each other."""
        num_known = min(_NUM_SHARED, len(ids))
        while True:
            num_matching, places = self._known.find(ids[max(num_known - _NUM_SHARED, 0) : num_known])
            if num_matching < _NUM_SHARED:
                return num_known
            rest = ids[num_known:]
            known = (self._known.continuation(place, len(rest)) for place in places[-_MAX_COMPARED:].tolist())
            num_more = max(num_equal(each, rest) for each in known)
            num_known += num_more
            if num_more < _NUM_SHARED:  # also of a text that repeats itself, which would continue in steps of one id
                return num_known

    def look_up(self, last_ids: Sequence[int], num: int) -> tuple[int, list[int]]:
        """Return how many of a text's last `NUM_LAST` ids are stored together, and up to `num` ids that followed."""
        with self._lock:
            return self._known.look_up(last_ids, num)

    def clear(self) -> None:
        """Remove all texts; any tokenizer can use the memory then."""
        with self._lock:
            self._known = KnownIds(self.max_tokens)
            self.tokenizer = ""

    def bind(self, tokenizer: str) -> None:
        """Set the tokenizer of an empty memory; raise a `PairError` if the memory has ids of another one."""
        with self._lock:
            self.tokenizer = self.tokenizer or tokenizer
            is_same = self.tokenizer == tokenizer
        if not is_same:
            raise PairError(
                "The memory contains ids of another tokenizer. Use a separate uag.Memory for each tokenizer, or call "
                "memory.clear()."
            )

    def save(self, path: str | PathLike[str]) -> None:
        """Write the memory to a safetensors file, which is always complete and which only its owner can read."""
        state = self.__getstate__()
        metadata = {name: str(state[name]) for name in ("max_tokens", "tokenizer")}
        folder, name = os.path.split(os.path.abspath(path))
        number, partial = tempfile.mkstemp(prefix=f"{name}.", dir=folder)  # a new file, never someone's link
        try:
            with open(number, "wb") as file:
                file.write(safetensors.numpy.save({"ids": state["ids"]}, metadata))
            os.replace(partial, path)
        except BaseException:
            with suppress(FileNotFoundError):  # it has its name already
                os.unlink(partial)
            raise

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a memory that `save` wrote; only an assistant of the same tokenizer can use it.

        Raises:
            LoadingError: the file cannot be read, or is not a memory.
        """
        memory = cls.__new__(cls)
        try:
            with safetensors.safe_open(path, "numpy") as file:
                memory.__setstate__({**file.metadata(), "ids": file.get_tensor("ids")})
        except _UNREADABLE as error:
            raise LoadingError(
                f"{os.fspath(path)!r} cannot be loaded as a memory: {error!r}. Pass a file that Memory.save wrote."
            ) from error
        return memory

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copying, pickling and saving: the texts without their index."""
        with self._lock:
            return {"max_tokens": self.max_tokens, "tokenizer": self.tokenizer, "ids": self._known.ids.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ids = state["ids"]
        if ids.dtype != np.int32 or ids.ndim != 1 or ids.min(initial=END) < END:
            raise ValueError("it has no valid ids")
        Memory.__init__(self, int(state["max_tokens"]))
        self.tokenizer = str(state["tokenizer"])
        self._known.append(ids)

    def __repr__(self) -> str:
        return f"Memory({len(self):,} of {self.max_tokens:,} tokens)"


def as_memory(value: Any) -> Memory | None:
    """Return the memory for an option (a memory, True for a new one, False), or raise an `OptionError`."""
    if isinstance(value, Memory):
        return value
    if not isinstance(value, bool):
        raise OptionError(f"memory={value!r} must be True, False or a uag.Memory.")
    return Memory() if value else None
