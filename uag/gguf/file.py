"""What a GGUF file says about itself: its metadata and the names of its tensors; no weight is read.

The format is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf` package reads it too, and
takes 4 to 15 seconds for a vocabulary of 50,000 to 260,000 tokens; this takes a tenth of one to half of one.
"""

import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from uag.errors import UnsupportedError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)

_STRING, _ARRAY = 8, 9
_NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"), 1: np.dtype("<i1"), 2: np.dtype("<u2"), 3: np.dtype("<i2"), 4: np.dtype("<u4"),
    5: np.dtype("<i4"), 6: np.dtype("<f4"), 7: np.dtype("?"), 10: np.dtype("<u8"), 11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}  # fmt: skip
"""The kinds of values that have a fixed size, by their number in the format."""

_MOST_KEPT = 4
"""Files whose description is remembered: one is about 50 MB for a vocabulary of 260,000."""


@dataclass(frozen=True, eq=False)
class GgufFile:
    """The description of a GGUF file.

    Attributes:
        path: where it is.
        metadata: value by key; numbers in arrays are NumPy's.
        tensor_names: the names of its tensors.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensor_names: frozenset[str]

    @property
    def architecture(self) -> str:
        """The name of the model's architecture, as llama.cpp calls it."""
        return str(self.metadata.get("general.architecture", ""))

    def of_model(self, name: str) -> Any:
        """Return a value that stands under the architecture's own name ("context_length"); None where there is none."""
        return self.metadata.get(f"{self.architecture}.{name}")


def read_file(path: Path) -> GgufFile:
    """Read a file's description; remembered while the file does not change.

    Raises:
        FileNotFoundError: there is no such file.
        UnsupportedError: it is no GGUF file, of an unknown version, cut off, or one part of several.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no GGUF file {str(path)!r}")
    state = path.stat()
    return _read(path.resolve(), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=_MOST_KEPT)
def _read(path: Path, modified_ns: int, size: int) -> GgufFile:  # noqa: ARG001 - a changed file is another one
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            raise UnsupportedError(f"{str(path)!r} is no GGUF file: it does not begin with the bytes {_MAGIC!r}.")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                metadata, names = _parse(data)
            except (struct.error, ValueError, IndexError, KeyError, OverflowError) as error:
                raise UnsupportedError(
                    f"The GGUF file {str(path)!r} is cut off or damaged ({type(error).__name__}: {error}). Fetch it "
                    "again."
                ) from error
    num_parts = int(metadata.get("split.count", 0))
    if num_parts > 1:
        raise UnsupportedError(
            f"{str(path)!r} is one of {num_parts} parts of a model. Join them into one file first "
            "(llama-gguf-split --merge FIRST_PART WHOLE)."
        )
    return GgufFile(path, metadata, names)


def _parse(data: mmap.mmap) -> tuple[dict[str, Any], frozenset[str]]:
    version, num_tensors, num_values = struct.unpack_from("<IQQ", data, 4)
    if version not in _VERSIONS:
        raise ValueError(f"version {version} of the format, known are {', '.join(map(str, _VERSIONS))}")
    at, metadata = 24, {}
    for _ in range(num_values):
        key, at = _string(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        metadata[key], at = _value(data, at + 4, kind)
    names = []
    for _ in range(num_tensors):
        name, at = _string(data, at)
        (num_dimensions,) = struct.unpack_from("<I", data, at)
        at += 4 + 8 * num_dimensions + 4 + 8  # the sizes, the type, the place
        names.append(name)
    if at > len(data):
        raise ValueError("it ends before its tensors begin")
    return metadata, frozenset(names)


def _value(data: mmap.mmap, at: int, kind: int) -> tuple[Any, int]:
    if kind == _STRING:
        return _string(data, at)
    if kind != _ARRAY:
        numbers, at = _numbers(data, at, kind, 1)
        return numbers[0].item(), at
    kind, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if kind != _STRING:
        return _numbers(data, at, kind, count)
    strings, unpack = [], struct.Struct("<Q").unpack_from
    for _ in range(count):
        (size,) = unpack(data, at)
        at += 8 + size
        strings.append(data[at - size : at].decode("utf-8", "replace"))
    if at > len(data):
        raise ValueError("it ends within a list")
    return strings, at


def _string(data: mmap.mmap, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from("<Q", data, at)
    at += 8
    if at + size > len(data):
        raise ValueError("it ends within a text")
    return data[at : at + size].decode("utf-8", "replace"), at + size


def _numbers(data: mmap.mmap, at: int, kind: int, count: int) -> tuple[Any, int]:
    dtype = _NUMBERS[kind]
    end = at + count * dtype.itemsize
    if end > len(data):
        raise ValueError("it ends within a list of numbers")
    return np.frombuffer(data[at:end], dtype=dtype), end


def is_gguf_name(name: object) -> bool:
    """Whether a text or path names a GGUF file: a local one, or `repo:file.gguf` on the hub.

    >>> is_gguf_name("draft.gguf"), is_gguf_name("owner/repo:draft.Q4_0.gguf"), is_gguf_name("owner/repo")
    (True, True, False)
    """
    return isinstance(name, str | os.PathLike) and os.fspath(name).lower().endswith(".gguf")
