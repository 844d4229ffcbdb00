"""The metadata and the vocabulary of a GGUF file, as llama.cpp reads them; no weights are loaded."""

import ctypes
import os
import weakref
from functools import lru_cache
from pathlib import Path

from uag.errors import UnsupportedError
from uag.gguf.llama import collected_errors, free, in_parentheses, library

_MAX_KEPT = 4
"""Open files that are remembered. One takes about 50 MB for a vocabulary of 260,000 tokens."""

_NO_DUMMY_SPACE = b"tokenizer.ggml.add_space_prefix"
"""Set to false when a file is opened, so that text can be encoded as a continuation."""


class GgufFile:
    """A GGUF file whose metadata and vocabulary are loaded.

    Args:
        path: the file.

    Attributes:
        path: the file.
        vocabulary: llama.cpp's pointer to the vocabulary, valid while this object lives.

    Raises:
        UnsupportedError: llama.cpp cannot read the file, or is not installed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        llama = library()
        overrides = (llama.llama_model_kv_override * 2)()  # the second one ends the list
        overrides[0].key, overrides[0].tag = _NO_DUMMY_SPACE, llama.LLAMA_KV_OVERRIDE_TYPE_BOOL
        parameters = llama.llama_model_default_params()
        parameters.vocab_only, parameters.kv_overrides = True, overrides
        with collected_errors() as errors:
            self._model = llama.llama_model_load_from_file(os.fsencode(path), parameters)
        if not self._model:
            raise UnsupportedError(
                f"llama.cpp cannot read {str(path)!r}{in_parentheses(errors)}. If this is a GGUF file of a language "
                "model, it is incomplete or damaged (download it again) or newer than the installed llama-cpp-python."
            )
        weakref.finalize(self, free, llama.llama_model_free, self._model)
        self.vocabulary = llama.llama_model_get_vocab(self._model)

    def value(self, key: str) -> str | None:
        """Return the value of a metadata key as text; None if the file does not have it."""
        buffer = ctypes.create_string_buffer(256)
        size = library().llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return None if size < 0 else buffer.value.decode("utf-8", "replace")

    @property
    def architecture(self) -> str:
        """The name of the model's architecture in llama.cpp."""
        return self.value("general.architecture") or ""

    @property
    def vocab_size(self) -> int:
        """Entries of the model's head."""
        return int(library().llama_vocab_n_tokens(self.vocabulary))


def read_file(path: Path) -> GgufFile:
    """Open a file; the same object is returned while the file does not change.

    Raises:
        FileNotFoundError: there is no such file.
        UnsupportedError: see `GgufFile`.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no GGUF file {str(path)!r}")
    state = path.stat()
    return _read(path.resolve(), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=_MAX_KEPT)
def _read(path: Path, modified_ns: int, size: int) -> GgufFile:  # noqa: ARG001 - a changed file is another file
    return GgufFile(path)


def is_gguf_name(name: object) -> bool:
    """Whether a text or path names a GGUF file: a local one, or `repo:file.gguf` on the hub.

    >>> is_gguf_name("draft.gguf"), is_gguf_name("owner/repo:draft.Q4_0.gguf"), is_gguf_name("owner/repo")
    (True, True, False)
    """
    return isinstance(name, str | os.PathLike) and os.fspath(name).lower().endswith(".gguf")
