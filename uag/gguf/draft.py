"""A draft model in a GGUF file, and the options to run it with."""

import os
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from uag import forks
from uag.errors import LoadingError, OptionError, TokenizerError, UnsupportedError
from uag.gguf.model import UnknownFileError, settings_of
from uag.gguf.reader import Contents

_LEAST_CONTEXT = 32  # a shorter one would be truncated in nearly every round
_MAX_KEPT = 4  # files and tokenizers that are cached


def is_gguf_name(name: object) -> bool:
    """Whether a text or path names a GGUF file: a local one, or `repo:file.gguf` on the hub.

    >>> is_gguf_name("draft.gguf"), is_gguf_name("owner/repo:draft.Q4_0.gguf"), is_gguf_name("owner/repo")
    (True, True, False)
    """
    return isinstance(name, str | os.PathLike) and os.fspath(name).lower().endswith(".gguf")


def expanded(name: str) -> Path:
    """Return the path of a name, with `~`; the home of an unknown user stays as it is."""
    return Path(os.path.expanduser(name))


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
        UnsupportedError: at first use, the file is damaged or holds no decoder-only language model; or it needs
            llama.cpp, which cannot read it or is not installed.
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
        if not os.path.isfile(path):  # also if its name is too long
            raise LoadingError(f"There is no GGUF file {str(path)!r}.")
        return path

    @property
    def version(self) -> tuple[Path, int, int]:
        """The file with its time and size, which change when it is written again."""
        state = self.path.stat()
        return self.path.resolve(), state.st_mtime_ns, state.st_size

    @property
    def contents(self) -> Contents:
        """The file's settings, and the places of its weights."""
        return _read_contents(*self.version)

    @property
    def unknown(self) -> str:
        """What uag's kernels do not run in the file, phrased to follow "the file"; empty if they may run it."""
        try:
            settings_of(self.contents)
        except (UnknownFileError, ValueError, TypeError, ArithmeticError) as error:
            return str(error)
        return "is to run on a GPU" if self.gpu_layers else ""

    @property
    def tokenizer(self) -> Any:
        """The file's tokenizer, as transformers converts it; the same while cached.

        Raises:
            TokenizerError: the file has none, or one of a kind that transformers does not convert.
        """
        return _read_tokenizer(*self.version)

    @property
    def vocab_size(self) -> int:
        """Entries of the model's head."""
        return self.contents.tensors["token_embd.weight"].shape[0]

    def check(self) -> None:
        """Refuse a file without a decoder-only language model, with an `UnsupportedError`."""
        values = self.contents.values
        name = str(values.get("general.architecture"))
        problem = ""
        if "bert" in name or name == "t5encoder" or values.get(f"{name}.attention.causal") is False:
            problem = f"holds an encoder ({name!r}), which is bidirectional"
        elif values.get(f"{name}.pooling_type"):
            problem = f"holds an embedding model ({name!r})"
        elif name == "t5":
            problem = "holds an encoder-decoder, which is not supported as a GGUF draft: load it with transformers"
        elif "token_embd.weight" not in self.contents.tensors:
            problem = f"holds no embeddings of tokens ({name!r})"
        if problem:
            raise UnsupportedError(f"The draft {str(self.path)!r} {problem}. Use a decoder-only language model.")


@lru_cache(maxsize=_MAX_KEPT)
def _read_contents(path: Path, *_version: int) -> Contents:
    try:
        return Contents(path)
    except ValueError as error:
        raise UnsupportedError(f"The GGUF file {str(path)!r} {error}. Download it again.") from error


@lru_cache(maxsize=_MAX_KEPT)
def _read_tokenizer(path: Path, *version: int) -> Any:
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(str(path.parent), gguf_file=path.name, local_files_only=True)
    except Exception as error:
        forks.let_pass(error)
        _read_contents(path, *version)  # raises an error if the file is damaged
        raise TokenizerError(
            f"transformers cannot read the tokenizer in the GGUF file {str(path)!r} ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:140]}). Pass the model's own: uag.Assistant(draft, draft_tokenizer, "
            "tokenizer)."
        ) from error


def _local(name: str) -> Path:
    """Return the path of a file, downloaded from the hub if the name is `repo:file.gguf`."""
    path = expanded(name)
    repo, _, inside = name.partition(":")
    if os.path.isfile(path) or not inside or len(repo) < 2:  # one letter is a Windows drive
        return path
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(repo, inside))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise LoadingError(f"There is no GGUF file {inside!r} in the hub's {repo!r}: {error}") from error
