"""A draft model in a GGUF file, and the options to run it with."""

import os
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from uag.errors import LoadingError, OptionError, TokenizerError, UnsupportedError
from uag.gguf.file import GgufFile, is_gguf_name, read_file
from uag.gguf.llama import is_installed
from uag.gguf.model import UnknownFileError, settings_of
from uag.gguf.reader import Contents
from uag.gguf.tokenizer import read_tokenizer

_LEAST_CONTEXT = 32
"""Minimum context of a draft: a shorter one would be truncated in nearly every round."""


_MAX_KEPT = 4
"""Number of files and tokenizers to cache. Increase to read fewer files again; decrease to save memory."""


@dataclass(frozen=True)
class GgufDraft:
    """A draft model in a GGUF file.

    Models of common families run in uag's own kernels on the CPU. llama.cpp (`pip install llama-cpp-python`) runs the
    others, and all of them with `gpu_layers` or `draft_weights="model"`.

    Accepted wherever uag takes a draft model: `uag.Assistant(uag.GgufDraft("draft.gguf", threads=4),
    tokenizer=tokenizer)`. The file contains its tokenizer.

    Attributes:
        name: a path, or `repo:file.gguf` on the hub.
        threads: threads per pass on the CPU; None for PyTorch's number.
        context: maximum number of positions; None for the model's trained length.
        gpu_layers: layers that llama.cpp keeps on a GPU, if it was built for one; -1 for all.

    Raises:
        OptionError: an option has the wrong type or value.
        LoadingError: at first use, there is no such file, here or on the hub.
        UnsupportedError: at first use, the file needs llama.cpp, which cannot read it or is not installed.
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
    def path(self) -> Path:
        """The file, downloaded if it is on the hub."""
        path = _local(os.fspath(self.name))
        if not path.is_file():
            raise LoadingError(f"There is no GGUF file {str(path)!r}.")
        return path

    @property
    def file(self) -> GgufFile:
        """The file as llama.cpp reads it."""
        return read_file(self.path)

    @property
    def version(self) -> tuple[Path, int, int]:
        """The file with its time and size, which change when it is written again."""
        state = self.path.stat()
        return self.path.resolve(), state.st_mtime_ns, state.st_size

    @property
    def contents(self) -> Contents | str:
        """The file's contents, or why uag cannot run its model, phrased to follow "the file"."""
        return "is to run on a GPU" if self.gpu_layers else _read_contents(*self.version)

    @property
    def tokenizer(self) -> Any:
        """The file's tokenizer, run by llama.cpp where it is installed, else by transformers; the same while cached.

        Raises:
            TokenizerError: the file has no tokenizer that can encode every text.
        """
        if is_installed():
            return read_tokenizer(self.file)
        return _read_tokenizer(*self.version)

    @property
    def vocab_size(self) -> int:
        """Entries of the model's head."""
        contents = self.contents
        return self.file.vocab_size if isinstance(contents, str) else contents.tensors["token_embd.weight"].shape[0]

    def check(self) -> None:
        """Refuse a model that neither uag nor llama.cpp can run as a draft.

        Raises:
            UnsupportedError: the file holds an encoder, an embedding model or an encoder-decoder, or a model that
                generates by diffusion; or it needs llama.cpp, which cannot read it or is not installed.
        """
        contents = self.contents
        if isinstance(contents, str):
            self.check_in_llama(contents)

    def check_in_llama(self, reason: str) -> None:
        """Refuse a model that llama.cpp cannot run as a draft; `reason` is why uag does not, and follows "the file"."""
        try:
            problem = self.file.refusal()
        except UnsupportedError as error:
            raise UnsupportedError(f"{error} uag does not run the model itself: the file {reason}.") from error
        if problem:
            raise UnsupportedError(f"The draft {str(self.path)!r} {problem}. Use a decoder-only language model.")


@lru_cache(maxsize=_MAX_KEPT)
def _read_contents(path: Path, *_version: int) -> Contents | str:
    try:
        contents = Contents(path)
        settings_of(contents)
    except (UnknownFileError, ValueError, TypeError, ArithmeticError) as error:
        return str(error)
    return contents


@lru_cache(maxsize=_MAX_KEPT)
def _read_tokenizer(path: Path, *_version: int) -> Any:
    """Return the tokenizer of a file as transformers converts it."""
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(str(path.parent), gguf_file=path.name, local_files_only=True)
    except Exception as error:
        raise TokenizerError(
            f"transformers cannot read the tokenizer in the GGUF file {str(path)!r} ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:140]}). Pass the model's own: uag.Assistant(draft, draft_tokenizer, "
            "tokenizer). Or install llama.cpp, which reads more kinds: pip install llama-cpp-python."
        ) from error


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
