"""Reads GGUF files without llama.cpp: the metadata, and weights one at a time."""

import mmap
import struct
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

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
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        try:
            magic, version, num_tensors, num_values = struct.unpack("<4sIQQ", self._bytes(24))
            if magic != b"GGUF" or version not in (2, 3):
                raise ValueError("is no GGUF file of version 2 or 3")
            values = {self._text(): self._value(self._number("I")) for _ in range(num_values)}
            self.tensors = {self._text(): self._place() for _ in range(num_tensors)}
        except (struct.error, KeyError, UnicodeDecodeError, MemoryError) as error:
            raise ValueError("is damaged") from error
        self.values = {key: value for key, value in values.items() if not key.startswith("tokenizer.")}
        alignment = self.values.get("general.alignment", 32)
        self._start = -(-self._at // alignment) * alignment

    def tensor(self, name: str) -> torch.Tensor:
        """Return a weight in float32.

        Raises:
            ValueError: the file is incomplete, or has a kind of weights that the `gguf` package does not know.
        """
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

        shape, kind, offset = self.tensors[name]
        per_block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        row_bytes = shape[-1] // per_block * block_bytes
        blocks = np.frombuffer(self._data, np.uint8, prod(shape[:-1]) * row_bytes, self._start + offset)
        found = dequantize(blocks.reshape(*shape[:-1], row_bytes), GGMLQuantizationType(kind))
        return torch.from_numpy(np.array(found, dtype=np.float32).reshape(shape))

    def _place(self) -> _Place:
        shape = tuple(self._number("Q") for _ in range(self._number("I")))[::-1]
        return _Place(shape, self._number("I"), self._number("Q"))

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind != _ARRAY:
            return self._number(_FORMATS[kind])
        kind, num = self._number("I"), self._number("Q")
        return [self._value(kind) for _ in range(num)]

    def _text(self) -> str:
        return self._bytes(self._number("Q")).decode("utf-8", "replace")

    def _number(self, form: str) -> Any:
        return struct.unpack("<" + form, self._bytes(struct.calcsize("<" + form)))[0]

    def _bytes(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]
