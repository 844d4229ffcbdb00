"""The weights of a GGUF file, as llama.cpp holds them."""

import threading
import weakref
from typing import Any

import numpy as np

from uag.errors import UnsupportedError
from uag.gguf.cells import Cells
from uag.gguf.file import GgufFile
from uag.gguf.llama import LlamaError, free, hearing, library, said

_TOLERANCE = 1e-2
"""Scores of a token read again may differ by this share of their spread: sums in another order do by less."""

_lock = threading.RLock()
_weights: "weakref.WeakValueDictionary[Any, Weights]" = weakref.WeakValueDictionary()


class Weights:
    """The weights of a file, memory-mapped, for any number of caches.

    Attributes:
        pointer: llama.cpp's own.
        vocab_size: entries of the head.
        num_parameters: weights.
        num_bytes: what they take.
        max_positions: positions that the model was trained with.
    """

    def __init__(self, file: GgufFile, gpu_layers: int) -> None:
        llama = library()
        parameters = llama.llama_model_default_params()
        parameters.n_gpu_layers = gpu_layers
        with hearing() as errors:
            self.pointer = llama.llama_model_load_from_file(str(file.path).encode(), parameters)
        if not self.pointer:
            raise UnsupportedError(f"llama.cpp cannot load the draft {str(file.path)!r}{said(errors)}.")
        weakref.finalize(self, free, llama.llama_model_free, self.pointer)
        self.vocab_size = int(llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.pointer)))
        self.num_parameters = int(llama.llama_model_n_params(self.pointer))
        self.num_bytes = int(llama.llama_model_size(self.pointer))
        self.max_positions = int(llama.llama_model_n_ctx_train(self.pointer))
        self.refusal = self._refusal(llama)

    @classmethod
    def of(cls, file: GgufFile, gpu_layers: int = 0) -> "Weights":
        """Return the weights of a file: the same for all that use them at a time.

        Raises:
            UnsupportedError: llama.cpp cannot load them, or cannot take back what such a model has read.
        """
        state = file.path.stat()
        key = file.path, state.st_mtime_ns, state.st_size, gpu_layers
        with _lock:
            found = _weights.get(key)
            if found is None:
                found = _weights[key] = cls(file, gpu_layers)
        if found.refusal:
            raise UnsupportedError(f"The draft {str(file.path)!r} {found.refusal}. Use a draft with attention alone.")
        return found

    def _refusal(self, llama: Any) -> str:
        """Say why a rejected candidate cannot be taken back; empty where it can, which is tried."""
        if llama.llama_model_is_recurrent(self.pointer) or llama.llama_model_is_hybrid(self.pointer):
            return "keeps a state that cannot be rewound after a rejected candidate"
        if llama.llama_model_is_diffusion(self.pointer):
            return "writes by diffusion, not one token after the other"
        if llama.llama_model_has_encoder(self.pointer) or not llama.llama_model_has_decoder(self.pointer):
            return "is no decoder-only model"
        try:
            cells = Cells(self, num_cells=256, num_sequences=2, num_outputs=2, num_threads=1)
            first = cells.decode([0, 1], [0, 1], [(0,), (0,)], [True, True])[1].copy()
            cells.cut(0, 1)
            again = cells.decode([1], [1], [(0,)], [True])[0]
        except LlamaError as error:
            return f"cannot be run by llama.cpp: {error}"
        spread = float(first.std()) or 1.0
        if not np.isfinite(first).all() or float(np.abs(first - again).max()) > _TOLERANCE * spread:
            return "gives other scores after a token was taken back"
        return ""
