"""Draft passes in llama.cpp, of a model in a GGUF file that uag's kernels do not run.

A row is a sequence of llama.cpp's cache, and a rollback removes tokens from it. The states of a hybrid model (LFM2,
Qwen3.5) cannot forget tokens, so such a rollback restores a copy of them.
"""

import ctypes
import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from uag import forks
from uag.drafting.drafter import Counts
from uag.drafting.models.base import KEPT_POSITIONS, PassError, Passes, split
from uag.errors import UnsupportedError
from uag.gguf import GgufDraft
from uag.hf.cache.states import Copies
from uag.projection import Node

_NUM_BATCH = 512  # tokens of a pass
_FIRST_CELLS = 1024  # tokens of the smallest cache; a new one takes 20 ms, and the text is read again

_messages: deque[str] = deque(maxlen=3)  # llama.cpp's last errors


class _Owned:
    """Something of llama.cpp's, freed with this object; `kept` lives as long."""

    def __init__(self, pointer: Any, free: Callable[[Any], None], kept: Any = None) -> None:
        self.pointer, self._kept = pointer, kept
        weakref.finalize(self, free, pointer)


_models: weakref.WeakValueDictionary[Any, _Owned] = weakref.WeakValueDictionary()
_lock = forks.turn()


def check_in_llama(draft: GgufDraft, reason: str) -> None:
    """Refuse, with an `UnsupportedError`, what llama.cpp cannot run; `reason` is why uag does not ("the file ...")."""
    draft.check()
    try:
        _library()
    except (ImportError, OSError, RuntimeError) as error:
        forks.let_pass(error)
        raise UnsupportedError(
            f"This GGUF draft needs llama-cpp-python, which cannot be imported ({error}). Install it with pip install "
            "llama-cpp-python (it is built from source: see docs/integrations.md). uag does not run the model itself: "
            f"the file {reason}."
        ) from error


@lru_cache(maxsize=1)
def _library() -> Any:
    """Return llama-cpp-python's low-level functions. llama.cpp then writes no messages to the terminal."""
    import llama_cpp

    llama_cpp.llama_log_set(_receive, None)
    llama_cpp.llama_backend_init()
    return llama_cpp


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)  # type: ignore[untyped-decorator]
def _receive(level: int, text: bytes, _: Any) -> None:
    if level == 4:  # an error
        _messages.append(text.decode("utf-8", "replace").strip())


def _why() -> str:
    """Return llama.cpp's last messages in parentheses; empty if there are none."""
    why = "; ".join(_messages)[:300]
    _messages.clear()
    return f" ({why})" if why else ""


def _open(draft: GgufDraft) -> _Owned:
    """Return the weights of a file, memory-mapped, shared by all drafts that use them at the same time."""
    llama, key = _library(), (*draft.version, draft.gpu_layers)
    with _lock:
        if (model := _models.get(key)) is not None:
            return model
        parameters = llama.llama_model_default_params()
        parameters.n_gpu_layers = draft.gpu_layers
        if not (pointer := llama.llama_model_load_from_file(os.fsencode(draft.path), parameters)):
            raise UnsupportedError(
                f"llama.cpp cannot read {str(draft.path)!r}{_why()}. If this is a GGUF file of a language model, it is "
                "incomplete or damaged (download it again), too large for the memory, or newer than the installed "
                "llama-cpp-python."
            )
        model = _models[key] = _Owned(pointer, llama.llama_model_free)
    return model


class LlamaPasses(Passes):
    """Runs draft passes of a GGUF file, or refuses it as `check_in_llama` does; see `Passes`."""

    def __init__(self, draft: GgufDraft, num_ids: int | None, reason: str) -> None:
        check_in_llama(draft, reason)
        llama, model = self._llama, self._model = _library(), _open(draft)
        counts = Counts(num_bytes=int(llama.llama_model_size(model.pointer)), passes=f"in llama.cpp: the file {reason}")
        if llama.llama_model_is_diffusion(model.pointer):
            raise UnsupportedError(f"The draft {str(draft.path)!r} generates by diffusion, not token by token.")
        size = int(llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model.pointer)))
        max_positions = int(llama.llama_model_n_ctx_train(model.pointer))
        super().__init__(draft.path.name, counts, size, min(max_positions, draft.context or max_positions), num_ids)
        self._has_states = llama.llama_model_is_recurrent(model.pointer) or llama.llama_model_is_hybrid(model.pointer)
        self._threads, self._flags = draft.threads, llama.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY

    def _begin(self, encoder_ids: Sequence[Sequence[int]] = ()) -> None:  # noqa: ARG002 - no GGUF draft has an encoder
        self._context: Any = None  # llama.cpp's cache and buffers
        self._num_cells = 0  # tokens that fit into it
        self._lengths = [0] * len(self.rows)  # of the rows in the cache
        self._copies: list[Copies[Any]] = [Copies() for _ in self.rows]  # of their states, without keys and values

    def _free(self, *, has_failed: bool) -> None:  # noqa: ARG002 - nothing is kept for the next call
        self._begin()

    def _cut(self, row: int, length: int) -> int:
        if length >= self._lengths[row]:
            return self._lengths[row]
        llama, copies = self._llama, self._copies[row]
        if self._has_states:
            length = copies.nearest(length)
            copies.drop(length + 1)
            if (states := copies.by_length.get(length)) is not None:
                llama.llama_state_seq_set_data_ext(self._context.pointer, states, len(states), row, self._flags)
        memory = llama.llama_get_memory(self._context.pointer)
        if not llama.llama_memory_seq_rm(memory, row, length, -1):
            length = 0
            llama.llama_memory_seq_rm(memory, row, -1, -1)
        self._lengths[row] = length
        return length

    def _save(self, row: int) -> None:
        llama, copies, length = self._llama, self._copies[row], self._lengths[row]
        if length and length not in copies.by_length:
            copies.thin_out()
            states = (ctypes.c_uint8 * llama.llama_state_seq_get_size_ext(self._context.pointer, row, self._flags))()
            llama.llama_state_seq_get_data_ext(self._context.pointer, states, len(states), row, self._flags)
            copies.by_length[length] = states

    def _run(self, nodes: Mapping[int, list[Node]]) -> None:
        needed = sum(self._lengths) + sum(map(len, nodes.values()))
        if needed > self._num_cells:
            # The new cache is empty. Rows without new tokens are read with their next ones.
            nodes = {row: self.rows[row].path[: of_row[0].depth] + of_row for row, of_row in nodes.items()}
            self._allocate(max(_FIRST_CELLS, 2 * needed))
        parts = {row: split(of_row) for row, of_row in nodes.items()}
        self._read({row: of_row[0] for row, of_row in parts.items() if len(of_row) > 1}, is_wanted=False)
        self._read({row: of_row[-1] for row, of_row in parts.items()}, is_wanted=True)

    def _read(self, nodes: Mapping[int, list[Node]], *, is_wanted: bool) -> None:
        for row in nodes if self._has_states else ():
            self._save(row)
        tokens = [(row, node) for row, of_row in nodes.items() for node in of_row]
        for start in range(0, len(tokens), _NUM_BATCH):
            self._decode(tokens[start : start + _NUM_BATCH], is_wanted=is_wanted)
        for row, of_row in nodes.items():
            self._lengths[row] += len(of_row)

    def _decode(self, tokens: Sequence[tuple[int, Node]], *, is_wanted: bool) -> None:
        """Read nodes of rows in one of llama.cpp's passes, and set their distributions if they are wanted."""
        size, num_ids = len(tokens), self.vocab_size
        integers, pointers = ctypes.c_int32 * size, ctypes.POINTER(ctypes.c_int32) * size
        batch = self._llama.llama_batch(
            n_tokens=size,
            token=integers(*[node.draft_id if node.draft_id < num_ids else 0 for _, node in tokens]),  # 0 is any other
            embd=None,
            pos=integers(*[node.depth for _, node in tokens]),
            n_seq_id=integers(*[1] * size),
            seq_id=pointers(*[ctypes.pointer(ctypes.c_int32(row)) for row, _ in tokens]),
            logits=(ctypes.c_int8 * size)(*[is_wanted] * size),
        )
        if status := self._llama.llama_decode(self._context.pointer, batch):
            raise PassError(f"llama.cpp's pass over {size} tokens failed: status {status}{_why()}")
        if is_wanted:
            logits = np.ctypeslib.as_array(self._llama.llama_get_logits(self._context.pointer), (size, num_ids))
            self._set_distributions(torch.from_numpy(logits), [(node, i) for i, (_, node) in enumerate(tokens)])

    def _allocate(self, num_cells: int) -> None:
        llama, rows = self._llama, len(self.rows)
        if rows > (most := llama.llama_max_parallel_sequences()):
            raise PassError(f"llama.cpp takes {most} rows at most, and there are {rows}")
        parameters = llama.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max = num_cells, rows
        parameters.n_batch = parameters.n_ubatch = _NUM_BATCH
        parameters.n_outputs_max = min(rows * KEPT_POSITIONS, _NUM_BATCH)
        # As many as PyTorch: they share OpenMP's thread pool, which would be recreated whenever the number changes.
        parameters.n_threads = parameters.n_threads_batch = self._threads or torch.get_num_threads()
        parameters.kv_unified = True  # else each row has a fixed part of the cells
        parameters.swa_full = True  # sliding-window layers keep all tokens, so that a rollback finds them
        self._begin()
        if not (pointer := llama.llama_init_from_model(self._model.pointer, parameters)):
            raise PassError(f"llama.cpp cannot allocate a cache of {num_cells} tokens{_why()}")
        self._context, self._num_cells = _Owned(pointer, llama.llama_free, self._model), num_cells
