"""Reads GGUF files without llama.cpp: the metadata, and weights one at a time."""

import struct
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch

_FORMATS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9


class _Place(NamedTuple):
    shape: tuple[int, ...]
    kind: int
    offset: int


class Contents:
    """The contents of a GGUF file.

    Attributes:
        values: the metadata by key, without the tokenizer's.
        tensors: the shape, kind and offset of each tensor by name.

    Raises:
        ValueError: the file is not a GGUF file, is damaged, or has another byte order.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                magic, version, num_tensors, num_values = _numbers(file, "4sIQQ")
                if magic != b"GGUF" or version not in (2, 3):
                    raise ValueError("is no GGUF file of version 2 or 3")
                values = {_text(file): _value(file, *_numbers(file, "I")) for _ in range(num_values)}
                self.tensors = {_text(file): _place(file) for _ in range(num_tensors)}
                alignment = values.get("general.alignment", 32)
                self._start = -(-file.tell() // alignment) * alignment
        except (struct.error, KeyError, MemoryError, TypeError, ArithmeticError) as error:
            raise ValueError("is damaged") from error
        self.values = {key: value for key, value in values.items() if not key.startswith("tokenizer.")}

    def tensor(self, name: str) -> torch.Tensor:
        """Return a weight in float32.

        Raises:
            ValueError: the file is incomplete, or has a kind of weights that the `gguf` package does not know.
        """
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

        shape, kind, offset = self.tensors[name]
        per_block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        row_bytes = shape[-1] // per_block * block_bytes
        blocks = np.fromfile(self._path, np.uint8, prod(shape[:-1]) * row_bytes, offset=self._start + offset)
        found = dequantize(blocks.reshape(*shape[:-1], row_bytes), GGMLQuantizationType(kind))
        return torch.from_numpy(np.ascontiguousarray(found, dtype=np.float32).reshape(shape))


def _place(file: BinaryIO) -> _Place:
    (num_dimensions,) = _numbers(file, "I")
    *sizes, kind, offset = _numbers(file, f"{num_dimensions}QIQ")
    return _Place(tuple(sizes[::-1]), kind, offset)


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _TEXT:
        return _text(file)
    if kind != _ARRAY:
        return _numbers(file, _FORMATS[kind])[0]
    kind, num = _numbers(file, "IQ")
    return [_value(file, kind) for _ in range(num)]


def _text(file: BinaryIO) -> str:
    (size,) = _numbers(file, "Q")
    return file.read(size).decode("utf-8", "replace")


def _numbers(file: BinaryIO, form: str) -> tuple[Any, ...]:
    return struct.unpack("<" + form, file.read(struct.calcsize("<" + form)))
