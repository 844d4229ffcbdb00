"""A GGUF file as llama.cpp reads it: its metadata and vocabulary, and its weights."""

import ctypes
import os
import weakref
from functools import lru_cache
from pathlib import Path
from typing import Any

from uag import forks
from uag.errors import LoadingError, UnsupportedError
from uag.gguf.llama import call, library

_MAX_KEPT = 4
"""Number of open files to cache. Increase to reopen fewer files; decrease to save memory (about 50 MB for a vocabulary
of 260,000 tokens)."""

_lock = forks.turn()

_NO_DUMMY_SPACE = b"tokenizer.ggml.add_space_prefix"
"""Set to false when a file is opened, so that text can be encoded as a continuation."""


class GgufFile:
    """A GGUF file whose metadata and vocabulary are loaded.

    `vocabulary` is llama.cpp's pointer, valid while this object lives.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        llama = self._llama = library()
        self._weights: weakref.WeakValueDictionary[int, Weights] = weakref.WeakValueDictionary()
        overrides = (llama.llama_model_kv_override * 2)()  # the second one ends the list
        overrides[0].key, overrides[0].tag = _NO_DUMMY_SPACE, llama.LLAMA_KV_OVERRIDE_TYPE_BOOL
        self._model = _load(self, path, vocab_only=True, kv_overrides=overrides)
        self.vocabulary = llama.llama_model_get_vocab(self._model)

    def value(self, key: str) -> str | None:
        """Return the value of a metadata key as text; None if the file does not have it."""
        buffer = ctypes.create_string_buffer(256)
        size = self._llama.llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return None if size < 0 else buffer.value.decode("utf-8", "replace")

    def refusal(self) -> str:
        """Return why the model cannot draft; empty if it can."""
        llama, architecture = self._llama, self.value("general.architecture") or ""
        is_encoder = "bert" in architecture or architecture == "t5encoder"
        if is_encoder or self.value(f"{architecture}.attention.causal") == "false":
            return f"holds an encoder ({architecture!r}), which is bidirectional"
        if self.value(f"{architecture}.pooling_type") not in (None, "0"):
            return f"holds an embedding model ({architecture!r})"
        if llama.llama_model_is_diffusion(self._model):
            return "generates by diffusion, not token by token"
        if llama.llama_model_has_encoder(self._model):
            return "holds an encoder-decoder, which is not supported as a GGUF draft: load it with transformers"
        return ""

    @property
    def vocab_size(self) -> int:
        """Entries of the model's head."""
        return int(self._llama.llama_vocab_n_tokens(self.vocabulary))

    def weights(self, gpu_layers: int = 0) -> "Weights":
        """Return the weights, shared by everything that uses them at the same time."""
        with _lock:
            weights = self._weights.get(gpu_layers)
            if weights is None:
                weights = self._weights[gpu_layers] = Weights(self, gpu_layers)
        return weights


class Weights:
    """The weights of a file, memory-mapped, for any number of caches; `gpu_layers` (-1: all) are kept on a GPU.

    `has_states` is whether the model keeps states beside or instead of keys and values (Mamba, LFM2, Qwen3.5).
    """

    def __init__(self, file: GgufFile, gpu_layers: int) -> None:
        llama = library()
        self.pointer = _load(self, file.path, n_gpu_layers=gpu_layers)
        self.vocab_size = file.vocab_size
        self.num_bytes = int(llama.llama_model_size(self.pointer))
        self.max_positions = int(llama.llama_model_n_ctx_train(self.pointer))
        is_recurrent = bool(llama.llama_model_is_recurrent(self.pointer))
        self.has_states = is_recurrent or bool(llama.llama_model_is_hybrid(self.pointer))


def _load(owner: Any, path: Path, **options: Any) -> Any:
    """Return llama.cpp's pointer to a model, which is freed with its owner."""
    llama = library()
    parameters = llama.llama_model_default_params()
    for name, value in options.items():
        setattr(parameters, name, value)
    model, why = call(llama.llama_model_load_from_file, os.fsencode(path), parameters)
    if not model:
        raise UnsupportedError(
            f"llama.cpp cannot read {str(path)!r}{why}. If this is a GGUF file of a language "
            "model, it is incomplete or damaged (download it again), too large for the memory, or newer than the "
            "installed llama-cpp-python."
        )
    weakref.finalize(owner, call, llama.llama_model_free, model)
    return model


def read_file(path: Path) -> GgufFile:
    """Open a file; the same object is returned while the file does not change.

    Raises:
        LoadingError: there is no such file.
        UnsupportedError: llama.cpp cannot read the file, or is not installed.
    """
    if not path.is_file():
        raise LoadingError(f"There is no GGUF file {str(path)!r}.")
    state = path.stat()
    return _read(path.resolve(), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=_MAX_KEPT)
def _read(path: Path, *_version: int) -> GgufFile:
    return GgufFile(path)


def is_gguf_name(name: object) -> bool:
    """Whether a text or path names a GGUF file: a local one, or `repo:file.gguf` on the hub.

    >>> is_gguf_name("draft.gguf"), is_gguf_name("owner/repo:draft.Q4_0.gguf"), is_gguf_name("owner/repo")
    (True, True, False)
    """
    return isinstance(name, str | os.PathLike) and os.fspath(name).lower().endswith(".gguf")
