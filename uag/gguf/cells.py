"""A cache of sequences, as llama.cpp keeps one, and the passes that fill it."""

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from uag.gguf.llama import LlamaError, free, hearing, library, said
from uag.gguf.weights import Weights

NUM_BATCH = 512
"""Tokens of one pass at most; longer prompts take several. More take more memory, fewer more passes."""

MOST_SEQUENCES = 256
"""What llama.cpp is built for."""


class Cells:
    """A cache of sequences over some weights, and the passes that fill it.

    Args:
        weights: of the model.
        num_cells: tokens that it holds, over all sequences; tokens that sequences share count once.
        num_sequences: sequences at most.
        num_outputs: tokens of a pass, at most, whose scores are wanted.
        num_threads: threads of a pass.

    Raises:
        LlamaError: llama.cpp cannot make it: too little memory.
    """

    def __init__(
        self, weights: Weights, *, num_cells: int, num_sequences: int, num_outputs: int, num_threads: int
    ) -> None:
        llama = self._llama = library()
        self.weights = weights
        self.num_cells = num_cells
        parameters = llama.llama_context_default_params()
        parameters.n_ctx = num_cells
        parameters.n_batch = parameters.n_ubatch = min(NUM_BATCH, num_cells)
        parameters.n_seq_max = num_sequences
        parameters.n_outputs_max = min(num_outputs, parameters.n_batch)
        parameters.n_threads = parameters.n_threads_batch = num_threads
        parameters.kv_unified = True  # sequences share the cells of what they have in common
        parameters.swa_full = True  # layers with a window keep what falls out of it: it may come back in
        parameters.no_perf = True
        with hearing() as errors:
            self.pointer = llama.llama_init_from_model(weights.pointer, parameters)
        if not self.pointer:
            raise LlamaError(f"llama.cpp makes no cache of {num_cells} tokens{said(errors)}")
        self.close = weakref.finalize(self, free, llama.llama_free, self.pointer)
        self._memory = llama.llama_get_memory(self.pointer)
        size = int(parameters.n_batch)
        self._ids, self._positions, self._nums = (np.zeros(size, dtype=np.int32) for _ in range(3))
        self._sequences = np.zeros((size, num_sequences), dtype=np.int32)
        self._places = self._sequences.ctypes.data + np.arange(size, dtype=np.uintp) * self._sequences.strides[0]
        self._wanted = np.zeros(size, dtype=np.int8)

    def decode(
        self,
        ids: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[Sequence[int]],
        wanted: Sequence[bool],
    ) -> npt.NDArray[np.float32]:
        """Run one pass.

        Args:
            ids: tokens, at most `NUM_BATCH`.
            positions: where each stands in its sequences.
            sequences: those that each belongs to: it sees what they hold before it.
            wanted: whether the scores behind a token are asked for.

        Returns:
            [num_wanted, vocab_size], logits; they are written over by the next pass.

        Raises:
            LlamaError: llama.cpp says so.
        """
        size = len(ids)
        self._ids[:size], self._positions[:size], self._wanted[:size] = ids, positions, wanted
        for place, owners in enumerate(sequences):
            self._nums[place] = len(owners)
            self._sequences[place, : len(owners)] = owners
        llama = self._llama
        batch = llama.llama_batch(
            n_tokens=size,
            token=self._pointer(self._ids, ctypes.c_int32),
            embd=None,
            pos=self._pointer(self._positions, ctypes.c_int32),
            n_seq_id=self._pointer(self._nums, ctypes.c_int32),
            seq_id=ctypes.cast(self._places.ctypes.data, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
            logits=self._pointer(self._wanted, ctypes.c_int8),
        )
        with hearing() as errors:
            status = llama.llama_decode(self.pointer, batch)
        if status:
            why = "its cache is full" if status == 1 else f"status {status}"
            raise LlamaError(f"llama.cpp's pass over {size} tokens failed: {why}{said(errors)}")
        num_wanted = sum(wanted)
        if not num_wanted:
            return np.zeros((0, self.weights.vocab_size), dtype=np.float32)
        with hearing() as errors:
            logits = llama.llama_get_logits(self.pointer)
        if not logits:
            raise LlamaError(f"llama.cpp gives no scores{said(errors)}")
        return np.ctypeslib.as_array(logits, (num_wanted, self.weights.vocab_size))

    @staticmethod
    def _pointer(array: npt.NDArray[Any], kind: Any) -> Any:
        return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))

    def cut(self, sequence: int, first: int) -> None:
        """Take a sequence's tokens from position `first` on away.

        Raises:
            LlamaError: llama.cpp cannot.
        """
        if not self._llama.llama_memory_seq_rm(self._memory, sequence, first, -1):
            raise LlamaError(f"llama.cpp cannot take back the tokens from position {first} on")

    def share(self, source: int, other: int, num_tokens: int) -> None:
        """Let another sequence begin with the first tokens of this one; they are not copied."""
        self._llama.llama_memory_seq_cp(self._memory, source, other, 0, num_tokens)

    def clear(self) -> None:
        """Forget every sequence."""
        self._llama.llama_memory_clear(self._memory, False)

    def set_threads(self, num_threads: int) -> None:
        """Set the threads of the passes that follow."""
        with hearing():
            self._llama.llama_set_n_threads(self.pointer, num_threads, num_threads)

    def bring(self, other: "Cells", sequence: int) -> None:
        """Copy a sequence from another cache over the same weights.

        Raises:
            LlamaError: llama.cpp cannot.
        """
        llama = self._llama
        size = llama.llama_state_seq_get_size(other.pointer, sequence)
        state = (ctypes.c_uint8 * size)()
        with hearing() as errors:
            if not (
                llama.llama_state_seq_get_data(other.pointer, state, size, sequence) == size
                and llama.llama_state_seq_set_data(self.pointer, state, size, sequence)
            ):
                raise LlamaError(f"llama.cpp cannot move a sequence into a larger cache{said(errors)}")
