"""A draft model in a GGUF file, and the options to run it with."""

import os
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from uag.errors import LoadingError, OptionError, UnsupportedError
from uag.gguf.file import GgufFile, is_gguf_name, read_file
from uag.gguf.tokenizer import read_tokenizer

_LEAST_CONTEXT = 32
"""Minimum context of a draft: a shorter one would be truncated in nearly every round."""


@dataclass(frozen=True)
class GgufDraft:
    """A draft model in a GGUF file, run by llama.cpp (`pip install llama-cpp-python`).

    Accepted wherever uag takes a draft model: `uag.Assistant(uag.GgufDraft("draft.gguf", threads=4),
    tokenizer=tokenizer)`. The file contains its tokenizer.

    Attributes:
        name: a path, or `repo:file.gguf` on the hub.
        threads: threads per pass on the CPU; None for PyTorch's number.
        context: maximum number of positions; None for the model's trained length.
        gpu_layers: layers to keep on a GPU, if llama.cpp was built for one; -1 for all.

    Raises:
        OptionError: an option has the wrong type or value.
        LoadingError: at first use, there is no such file, here or on the hub.
        UnsupportedError: at first use, llama.cpp cannot read the file, or is not installed.
    """

    name: str | os.PathLike[str]
    threads: int | None = None
    context: int | None = None
    gpu_layers: int = 0

    def __post_init__(self) -> None:
        if not is_gguf_name(self.name):
            raise OptionError(
                f"{self.name!r} is not the name of a GGUF file: pass a path that ends in .gguf, or 'repo:file.gguf'."
            )
        for option, least in (("threads", 1), ("context", _LEAST_CONTEXT), ("gpu_layers", -1)):
            value = getattr(self, option)
            is_default = value is None and option != "gpu_layers"
            if not (is_default or (type(value) is int and value >= least)):
                raise OptionError(f"{option}={value!r} must be a whole number of {least} or more.")

    def __getstate__(self) -> dict[str, Any]:
        """Return the options only; copies and other processes open the file themselves."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def file(self) -> GgufFile:
        """The open file: its metadata and vocabulary."""
        return read_file(_local(os.fspath(self.name)))

    @property
    def tokenizer(self) -> Any:
        """The file's tokenizer, run by llama.cpp; the same object at each call while it is cached.

        Raises:
            TokenizerError: the file has no tokenizer that can encode every text.
        """
        return read_tokenizer(self.file)

    @property
    def vocab_size(self) -> int:
        """Entries of the model's head."""
        return self.file.vocab_size

    def check(self) -> None:
        """Refuse a model that cannot draft.

        Raises:
            UnsupportedError: the file holds an encoder, an embedding model or an encoder-decoder, or a model that
                generates by diffusion.
        """
        if problem := self.file.refusal():
            raise UnsupportedError(f"The draft {str(self.file.path)!r} {problem}. Use a decoder-only language model.")


def _local(name: str) -> Path:
    """Return the path of a file, downloaded from the hub if the name is `repo:file.gguf`."""
    path = Path(name).expanduser()
    repo, _, inside = name.partition(":")
    if path.is_file() or not inside or len(repo) < 2:  # one letter is a Windows drive
        return path
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(repo, inside))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise LoadingError(f"There is no GGUF file {inside!r} in the hub's {repo!r}: {error}") from error
