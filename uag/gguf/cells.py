"""llama.cpp's key-value cache of several sequences, and the forward passes that fill it."""

import ctypes
import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from uag.gguf.file import Weights
from uag.gguf.llama import LlamaError, call, library

NUM_BATCH = 512
"""Maximum number of tokens per pass. Increase to read long prompts in fewer passes; decrease to save memory."""

MOST_SEQUENCES = 256
"""llama.cpp's limit (`LLAMA_MAX_SEQ`)."""


class Cells:
    """A key-value cache of several sequences over shared weights, and the passes that fill it.

    Args:
        weights: the model's weights.
        num_cells: capacity in tokens over all sequences; tokens that sequences share count once.
        num_sequences: maximum number of sequences.
        num_outputs: maximum number of tokens of a pass whose scores are requested.
        num_threads: threads per pass.

    Raises:
        LlamaError: llama.cpp cannot allocate the cache.
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
        parameters.n_outputs_max = min(max(num_outputs, num_sequences), parameters.n_batch)
        parameters.n_threads = parameters.n_threads_batch = num_threads
        parameters.kv_unified = True  # sequences share the cells of common prefixes
        parameters.swa_full = True  # sliding-window layers keep all tokens, so that a rollback finds them
        parameters.no_perf = True
        self._pointer, why = call(llama.llama_init_from_model, weights.pointer, parameters)
        if not self._pointer:
            raise LlamaError(f"llama.cpp cannot allocate a cache of {num_cells} tokens{why}")
        weakref.finalize(self, call, llama.llama_free, self._pointer)
        self._memory = llama.llama_get_memory(self._pointer)

    def decode(
        self, ids: Sequence[int], positions: Sequence[int], sequences: Sequence[int], *, is_wanted: bool
    ) -> npt.NDArray[np.float32]:
        """Run one pass over at most `NUM_BATCH` tokens.

        Args:
            ids: the tokens.
            positions: their positions.
            sequences: the sequence of each token, to whose earlier tokens it attends.
            is_wanted: whether scores are requested.

        Returns:
            Logits [num_tokens, vocab_size], valid until the next pass; [0, vocab_size] if they are not wanted.

        Raises:
            LlamaError: the pass failed.
        """
        llama, size = self._llama, len(ids)
        integers, pointer = ctypes.c_int32 * size, ctypes.POINTER(ctypes.c_int32)
        owners = [ctypes.pointer(ctypes.c_int32(sequence)) for sequence in sequences]
        batch = llama.llama_batch(
            n_tokens=size,
            token=integers(*ids),
            embd=None,
            pos=integers(*positions),
            n_seq_id=integers(*[1] * size),
            seq_id=(pointer * size)(*owners),
            logits=(ctypes.c_int8 * size)(*[is_wanted] * size),
        )
        status, why = call(llama.llama_decode, self._pointer, batch)
        if status:
            reason = "its cache is full" if status == 1 else f"status {status}"
            raise LlamaError(f"llama.cpp's pass over {size} tokens failed: {reason}{why}")
        if not is_wanted:
            return np.zeros((0, self.weights.vocab_size), dtype=np.float32)
        logits, why = call(llama.llama_get_logits, self._pointer)
        if not logits:
            raise LlamaError(f"llama.cpp returned no scores{why}")
        return np.ctypeslib.as_array(logits, (size, self.weights.vocab_size))

    def cut(self, sequence: int, first: int) -> None:
        """Remove the tokens of a sequence from position `first` on; a LlamaError says that llama.cpp cannot do so."""
        if not self._llama.llama_memory_seq_rm(self._memory, sequence, first, -1):
            raise LlamaError(f"llama.cpp cannot remove the tokens from position {first} on")

    def copy(self, source: int, other: int) -> None:
        """Replace sequence `other` with a copy of `source`: the keys are shared, the states are copied."""
        self._llama.llama_memory_seq_rm(self._memory, other, -1, -1)
        self._llama.llama_memory_seq_cp(self._memory, source, other, -1, -1)

    def clear(self) -> None:
        """Remove all sequences."""
        self._llama.llama_memory_clear(self._memory, False)

    def set_threads(self, num_threads: int) -> None:
        """Set the number of threads for subsequent passes."""
        call(self._llama.llama_set_n_threads, self._pointer, num_threads, num_threads)
