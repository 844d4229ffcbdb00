"""A memory of prompts and outputs, from which later calls get candidates."""

import os
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Sequence
from os import PathLike
from typing import Any, Self

import numpy as np

from uag.drafting.memory.index import END, MAX_SIZE, NUM_LAST, Ids, NgramIndex
from uag.errors import LoadingError, OptionError, PairError

_MIN_TOKENS = 64
"""Minimum size. Increase to refuse memories that hold less than one text; decrease to allow them."""

_MAX_PER_SHARED = 4
"""Maximum number of ids that are looked up per id of the n-gram. Increase for longer blocks after short n-grams;
decrease to spend less time on candidates that are rarely accepted."""

_UNREADABLE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, RuntimeError, OverflowError, MemoryError),
    *(zipfile.BadZipFile, zlib.error),
)
"""Errors of NumPy and zipfile for files that are damaged or of another kind."""


class Memory:
    """Remembers the texts of earlier calls; pass it as `uag.Assistant(..., memory=memory)` (see docs/memory.md).

    Assistants of one tokenizer can share a memory, also in several threads. The speed of a call reveals what was asked
    before: share a memory only among users who may know that.

    Args:
        max_tokens: number of tokens to keep; the oldest are overwritten first. Each takes 28 bytes.

    Attributes:
        max_tokens: the argument.
        tokenizer: fingerprint of the tokenizer whose ids are stored; empty until an assistant uses the memory.

    Raises:
        OptionError: `max_tokens` is not a whole number of 64 or more.

    Example:
        memory = uag.Memory()
        assistant = uag.Assistant(None, None, tokenizer, memory=memory)
        assistant.generate(model, **inputs, max_new_tokens=200)
        memory.save("memory.npz")
    """

    def __init__(self, max_tokens: int = 1_000_000) -> None:
        if not isinstance(max_tokens, int) or not _MIN_TOKENS <= max_tokens <= MAX_SIZE:
            raise OptionError(f"max_tokens={max_tokens!r} must be a whole number from {_MIN_TOKENS} to {MAX_SIZE:,}.")
        self.max_tokens = max_tokens
        self.tokenizer = ""
        self._lock = threading.Lock()
        self._index = NgramIndex(max_tokens)

    def __len__(self) -> int:
        """Return the number of stored tokens."""
        with self._lock:
            return len(self._index)

    def add(self, prompt_ids: Sequence[int], output_ids: Sequence[int] = ()) -> None:
        """Store a text, in target ids. The beginning of its prompt is not stored again if it is stored already.

        Raises:
            OptionError: an id is below 0 or does not fit into 32 bits.
        """
        texts, most = [*prompt_ids, *output_ids], np.iinfo(np.int32).max
        if texts and not 0 <= min(texts) <= max(texts) <= most:
            raise OptionError(f"A memory stores ids from 0 to {most:,}; others were passed.")
        ids = np.array(texts, dtype=np.int32)
        with self._lock:
            num_known = self._num_known(ids[: len(prompt_ids)])
            self._index.append(ids[max(num_known - NUM_LAST, 0) :])

    def _num_known(self, ids: Ids) -> int:
        """Return how many of the first ids are stored, in one text or in texts that continue each other."""
        num_known = min(NUM_LAST, len(ids))
        while True:
            length, slots = self._index.occurrences(ids[max(num_known - NUM_LAST, 0) : num_known].tolist())
            num_more = max((self._index.num_equal(slot, ids[num_known:]) for slot in slots), default=0)
            # A text that repeats itself would continue in steps of one id.
            if length < NUM_LAST or num_more < NUM_LAST:
                return num_known + (num_more if length == NUM_LAST else 0)
            num_known += num_more

    def look_up(self, last_ids: Sequence[int], num: int) -> tuple[int, dict[tuple[int, ...], int]]:
        """Return how many of the last ids of a text are stored together, and what followed their latest occurrences.

        Args:
            last_ids: the last ids of the text, at least `NUM_LAST` if it has so many.
            num: maximum number of ids of each continuation.

        Returns:
            The number of ids, and how often each continuation followed, the latest first.
        """
        counts: dict[tuple[int, ...], int] = {}
        with self._lock:
            num_shared, slots = self._index.occurrences(last_ids)
            for slot in slots:
                continuation = self._index.continuation(slot, min(num, _MAX_PER_SHARED * num_shared))
                counts[continuation] = counts.get(continuation, 0) + 1
        return num_shared, counts

    def clear(self) -> None:
        """Remove all texts; any tokenizer can use the memory then."""
        with self._lock:
            self._index = NgramIndex(self.max_tokens)
            self.tokenizer = ""

    def bind(self, tokenizer: str) -> None:
        """Set the tokenizer of an empty memory, or check that it is the same.

        Raises:
            PairError: the memory has ids of another tokenizer.
        """
        with self._lock:
            self.tokenizer = self.tokenizer or tokenizer
        if self.tokenizer != tokenizer:
            raise PairError(
                "The memory contains ids of another tokenizer. Use a separate uag.Memory for each tokenizer, or call "
                "memory.clear()."
            )

    def save(self, path: str | PathLike[str]) -> None:
        """Write the memory to an npz file, which is always complete and which only its owner can read."""
        folder, name = os.path.split(os.path.abspath(path))
        number, partial = tempfile.mkstemp(prefix=f"{name}.", dir=folder)  # a new file, never someone's link
        try:
            with open(number, "wb") as file:
                np.savez(file, **self.__getstate__())
            os.replace(partial, path)
        except BaseException:
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
            with np.load(path, allow_pickle=False) as arrays:
                memory.__setstate__(dict(arrays))
        except _UNREADABLE as error:
            raise LoadingError(
                f"{os.fspath(path)!r} cannot be loaded as a memory: {error!r}. Pass a file that Memory.save wrote."
            ) from error
        return memory

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copying, pickling and saving: the texts without their index."""
        with self._lock:
            return {"max_tokens": self.max_tokens, "tokenizer": self.tokenizer, "ids": self._index.all_ids()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state of `__getstate__`, and build the index."""
        ids = state["ids"]
        if ids.dtype != np.int32 or ids.ndim != 1 or ids.min(initial=END) < END:
            raise ValueError("it has no valid ids")
        Memory.__init__(self, int(state["max_tokens"]))
        self.tokenizer = str(state["tokenizer"])
        self._index.append(ids)

    def __repr__(self) -> str:
        return f"Memory({len(self):,} of {self.max_tokens:,} tokens)"


def as_memory(value: Any) -> Memory | None:
    """Return the memory for an option (a memory, True for a new one, False), or raise an `OptionError`."""
    if isinstance(value, Memory):
        return value
    if not isinstance(value, bool):
        raise OptionError(f"memory={value!r} must be True, False or a uag.Memory.")
    return Memory() if value else None
