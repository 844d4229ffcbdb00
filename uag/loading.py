"""Load a target and a draft with their tokenizers: by hub name, by folder, or the bundled demo pair."""

import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from huggingface_hub import constants
from jinja2 import TemplateError
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from uag import forks
from uag.errors import LoadingError, OptionError, UagError, UnsupportedError
from uag.gguf import GgufDraft, expanded, is_gguf_name
from uag.hf.decoder import COPY
from uag.hf.devices import accelerator

Content = str | list[dict[str, Any]]  # a prompt: a text, or the messages of a conversation

DTYPES = ("auto", "float32", "bfloat16", "float16")
Dtype = str | torch.dtype | None

_OF_TOKENIZERS = ("tokenizer*", "vocab*", "tekken*", "*.model", "*.tiktoken", "*.spm", "*.codes")

_MAX_DRAFTS = 4  # maximum number of drafts kept by name

_lock = forks.turn()


@dataclass(frozen=True)
class Pair:
    """A target and a draft, each with its tokenizer and its name."""

    target: Any
    target_tokenizer: Any
    target_name: str
    draft: Any
    draft_tokenizer: Any
    draft_name: str

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the target reads its prompt with an encoder."""
        return bool(self.target.config.is_encoder_decoder)

    def prompt_width(self, inputs: dict[str, torch.Tensor]) -> int:
        """Return the number of ids that `generate` returns before its output; `inputs` as in `encode`."""
        return 1 if self.is_encoder_decoder else inputs["input_ids"].shape[1]


def load_pair(
    target: str | None = None, draft: str | None = None, *, dtype: Dtype = None, device: str | None = None
) -> Pair:
    """Load a target and a draft with their tokenizers, ready to generate.

    Args:
        target: hub name or folder; None for the target of the bundled demo pair.
        draft: hub name, folder or GGUF file; None for the draft of the bundled demo pair.
        dtype: one of `DTYPES`, or a `torch.dtype`; None for float32 on a CPU and the checkpoint's own type elsewhere.
        device: a device for `torch.device`; None for a GPU if there is one, else the CPU.

    Raises:
        OptionError: an unknown dtype, or a device that PyTorch cannot use.
        LoadingError: a model or a tokenizer that cannot be loaded.

    Example:
        pair = uag.load_pair()
        assistant = uag.Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer)
    """
    target_folder, draft_folder = target or demo_folder("target"), draft or demo_folder("draft")
    # Tokenizers first, so that a wrong name fails before gigabytes of weights are read.
    target_tokenizer = load_tokenizer(target_folder, role="target")
    draft_tokenizer = target_tokenizer if draft == COPY else load_tokenizer(draft_folder, role="draft")
    return Pair(
        target=load_model(target_folder, dtype=dtype, device=device, role="target"),
        target_tokenizer=target_tokenizer,
        target_name=target or "demo target",
        draft=load_draft(draft_folder, dtype=dtype, device=device),
        draft_tokenizer=draft_tokenizer,
        draft_name=draft or "demo draft",
    )


def load_draft(name: str, *, dtype: Dtype = None, device: str | None = None) -> Any:
    """Load a draft: "copy" for the target's own, a GGUF file as a `GgufDraft`, any other as `load_model` does."""
    if name == COPY:
        return name
    if is_gguf_name(name):
        is_on_gpu = _device(device).type != "cpu" and _has_llama()
        return GgufDraft(name, gpu_layers=-1 if is_on_gpu else 0)
    return load_model(name, dtype=dtype, device=device, role="draft")


def open_draft(draft: Any, tokenizer: Any, target: Any = None, *, is_kept: bool = False) -> tuple[Any, Any]:
    """Return a draft and its tokenizer, loaded if the draft is a name or a file, with the target's dtype and device.

    Without `tokenizer`, it is the one next to the draft's weights, if there is one. With `is_kept`, later calls with
    the same name return the same draft.
    """
    if not isinstance(draft, str | os.PathLike) or draft == COPY:
        return draft, tokenizer
    dtype = device = None
    if target is not None:
        dtype = str(target.dtype).removeprefix("torch.")
        dtype = dtype if dtype in DTYPES else "auto"
        device = None if target.device.type == "meta" else str(target.device)
    name = os.fspath(draft)
    if is_kept:
        with _lock:  # one thread loads, the others wait for it
            loaded, loaded_tokenizer = _kept(_version(name), name, dtype, device)
    else:
        loaded, loaded_tokenizer = _load_with_tokenizer(name, dtype, device)
    return loaded, loaded_tokenizer if tokenizer is None else tokenizer


def _load_with_tokenizer(name: str, dtype: str | None, device: str | None) -> tuple[Any, Any]:
    """Load a draft and its tokenizer; the tokenizer is None if it is missing, unusable or inside a GGUF file."""
    draft = load_draft(name, dtype=dtype, device=device)
    try:
        return draft, None if is_gguf_name(name) else load_tokenizer(name, role="draft")
    except (LoadingError, UnsupportedError):  # weights only: the draft may share the target's tokenizer
        return draft, None


_kept = lru_cache(maxsize=_MAX_DRAFTS)(lambda version, *draft: _load_with_tokenizer(*draft))  # noqa: ARG005
"""Return a draft that calls of `uag.install()` share; it is loaded again when files in its folder changed."""


def _version(name: str) -> tuple[Any, ...]:
    """Return the names, times and sizes of a folder's or file's own files; empty for a hub name."""
    path = expanded(name)
    files = sorted(path.iterdir()) if os.path.isdir(path) else [path] if os.path.isfile(path) else []
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)


forget_drafts = _kept.cache_clear  # let go of the drafts that `open_draft(..., is_kept=True)` loaded


def load_model(name: str, *, dtype: Dtype = None, device: str | None = None, role: str = "model") -> Any:
    """Load a model, ready to generate; see `load_pair`. Errors name it as `role`."""
    dtype, torch_device = check_dtype(dtype), _device(device)
    dtype = dtype or ("float32" if torch_device.type == "cpu" else "auto")
    if is_gguf_name(name):
        raise OptionError(
            f"{name!r} is a GGUF file, which can be the draft of uag.Assistant and of the command line, but not a "
            "target, nor a draft inside an engine. Pass a folder or a hub model."
        )
    with _explained(f"{role} {name!r}"):
        name = _existing(name)
        is_local = _must_be_local(name)
        config = AutoConfig.from_pretrained(_base_of(name), local_files_only=is_local)
        auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        return auto.from_pretrained(name, dtype=dtype, local_files_only=is_local).to(torch_device).eval()


def load_tokenizer(name: str, *, role: str = "model", **options: Any) -> Any:
    """Load the tokenizer of a model, with options of `AutoTokenizer.from_pretrained`, or the one inside a GGUF file."""
    with _explained(f"tokenizer of the {role} {name!r}", name):
        if is_gguf_name(name):
            return GgufDraft(name).tokenizer
        name = _existing(name)
        folder = name if (Path(name) / "tokenizer_config.json").is_file() else _base_of(name)
        return AutoTokenizer.from_pretrained(folder, local_files_only=_must_be_local(folder), **options)


_OTHER = """Pass the name of a hub model, or a folder with a config.json and a tokenizer; a draft may also be a GGUF \
file."""
_AGAIN = "Its files may be incomplete, or of a later transformers: download them again, or update transformers."
EMPTY = "The prompt is empty, and the target's tokenizer adds no token to it. Pass a text."


@contextmanager
def _explained(what: str, tokenizer: str = "") -> Iterator[None]:
    """Convert transformers' exceptions into an error that says what cannot be loaded; `tokenizer` is its folder."""
    with forks.noting():
        try:
            yield
        except (UagError, ImportError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            forks.let_pass(error)
            why = _missing_tokenizer(tokenizer) or " ".join(str(error).split())
            is_missing = isinstance(error, OSError | ValueError) and not isinstance(error, json.JSONDecodeError)
            raise LoadingError(f"The {what} cannot be loaded: {why} {_OTHER if is_missing else _AGAIN}") from error


def _missing_tokenizer(name: str) -> str:
    """Return that a folder has no tokenizer, which transformers' message does not say; empty if it has one."""
    folder = expanded(name)
    if not name or not os.path.isdir(folder) or any(next(folder.glob(files), "") for files in _OF_TOKENIZERS):
        return ""
    also = "" if (folder / "config.json").is_file() else " and no config.json, so it is not a model's"
    return f"the folder {str(folder)!r} has no tokenizer (tokenizer.json or tokenizer.model){also}."


def check_dtype(dtype: Dtype) -> str | None:
    """Return the name of a dtype; raise an OptionError if it is neither None nor one of `DTYPES`."""
    name = str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype
    if name not in (None, *DTYPES):
        raise OptionError(f"dtype is {dtype!r}, it must be one of {', '.join(DTYPES)}")
    return name


def demo_folder(half: str) -> str:
    """Return the folder of the demo pair's `"target"` or `"draft"`, inside the installed package."""
    return str(resources.files("uag") / "demo" / half)


def encode(pair: Pair, prompts: Sequence[Content], *, is_chat: bool = False) -> dict[str, torch.Tensor]:
    """Tokenize prompts as `encode_prompt` does, padded on the left into one batch, on the target's device."""
    tokenizer = pair.target_tokenizer
    rows = [encode_prompt(tokenizer, prompt, is_chat=is_chat) for prompt in prompts]
    padding_id = next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)
    return pad_left(rows, padding_id, pair.target.device)


def pad_left(rows: Sequence[Sequence[int]], padding_id: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Return `input_ids` and `attention_mask` of a batch, [batch_size, longest row], int64."""
    backwards = [torch.tensor(row, dtype=torch.long).flip(0) for row in rows]
    ids = pad_sequence(backwards, batch_first=True, padding_value=padding_id).flip(1)
    mask = pad_sequence([torch.ones_like(row) for row in backwards], batch_first=True).flip(1)
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


def encode_prompt(tokenizer: Any, prompt: Content, *, is_chat: bool = False) -> list[int]:
    """Tokenize one prompt; a conversation, and with `is_chat` any text, goes through the chat template."""
    if isinstance(prompt, str) and not is_chat:
        if not (ids := list(tokenizer(_valid(prompt))["input_ids"])):
            raise OptionError(EMPTY)
        return ids
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except (ValueError, TemplateError) as error:
        forks.let_pass(error)
        if getattr(tokenizer, "chat_template", "") is None:
            raise OptionError(
                "The target's tokenizer has no chat template. Pass a text (uag generate -p TEXT) without --chat, or a "
                "target that was trained for conversations."
            ) from error
        raise OptionError(f"The target's chat template rejects these messages: {error}") from error
    return list(tokenizer(_valid(text), add_special_tokens=False)["input_ids"])


def _valid(text: str) -> str:
    """Return a text; raise an OptionError if it has lone surrogates, such as those of undecodable arguments."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OptionError(f"The prompt is not a text that UTF-8 can encode: {error}.") from error
    return text


def _has_llama() -> bool:
    """Whether llama-cpp-python can be imported; one that was built for a GPU may lack its libraries."""
    try:
        import llama_cpp  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        forks.let_pass(error)
        return False
    return True


def _device(name: str | None) -> torch.device:
    if name is None:
        return accelerator() or torch.device("cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        forks.let_pass(error)
        raise OptionError(
            f"device is {name!r}, which PyTorch cannot use here: {error}. Pass another, or cpu."
        ) from error


def _base_of(name: str) -> str:
    """Return the base model of the adapter (LoRA) in a folder; the name itself if there is no adapter."""
    file = Path(name) / "adapter_config.json"
    if not file.is_file() or (Path(name) / "config.json").is_file():
        return name
    base: str = json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path") or name
    return base


def _must_be_local(name: str) -> bool:
    """Return whether a name is a folder, or the hub's address cannot be found: retries would take half a minute."""
    is_folder = Path(name).is_dir()
    if is_folder or getproxies():  # only a proxy may know the address
        return is_folder
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
    except OSError as error:
        forks.let_pass(error)
        return True
    return False


def _existing(name: str) -> str:
    """Return a name with `~` expanded; raise a FileNotFoundError if it looks like a folder and does not exist."""
    folder = expanded(name)
    if not (folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or "\\" in name):
        return name
    if not folder.is_dir():
        raise FileNotFoundError(f"no model folder {str(folder)!r}.")
    return str(folder)
