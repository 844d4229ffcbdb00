"""The weights of a GGUF file, as llama.cpp holds them."""

import os
import weakref

from uag.errors import UnsupportedError
from uag.gguf.file import GgufFile
from uag.gguf.llama import collected_errors, free, in_parentheses, library


class Weights:
    """The weights of a file, memory-mapped, for any number of caches.

    Args:
        file: the file.
        gpu_layers: layers to keep on a GPU, -1 for all.

    Attributes:
        pointer: llama.cpp's pointer to the model.
        vocab_size: entries of the head.
        num_parameters: number of weights.
        num_bytes: their size.
        max_positions: positions that the model was trained with.

    Raises:
        UnsupportedError: llama.cpp cannot load them.
    """

    def __init__(self, file: GgufFile, gpu_layers: int) -> None:
        llama = library()
        parameters = llama.llama_model_default_params()
        parameters.n_gpu_layers = gpu_layers
        with collected_errors() as errors:
            self.pointer = llama.llama_model_load_from_file(os.fsencode(file.path), parameters)
        if not self.pointer:
            raise UnsupportedError(f"llama.cpp cannot load the draft {str(file.path)!r}{in_parentheses(errors)}.")
        weakref.finalize(self, free, llama.llama_model_free, self.pointer)
        self.vocab_size = file.vocab_size
        self.num_parameters = int(llama.llama_model_n_params(self.pointer))
        self.num_bytes = int(llama.llama_model_size(self.pointer))
        self.max_positions = int(llama.llama_model_n_ctx_train(self.pointer))
