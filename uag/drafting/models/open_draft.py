"""One interface for transformers and GGUF drafts."""

from functools import lru_cache
from typing import Any

from transformers import AutoTokenizer

from uag import forks
from uag.adapters import TokenizerAdapter
from uag.drafting.models.base import Passes
from uag.drafting.models.decoder import DecoderPasses
from uag.drafting.models.gguf_decoder import GgufDecoderPasses, decoder_of_file
from uag.drafting.models.llama_cpp import LlamaPasses
from uag.drafting.models.torch_model import TorchPasses
from uag.errors import UnsupportedError
from uag.gguf import GgufDraft
from uag.hf import models


def open_passes(
    draft: Any, num_ids: int | None = None, *, compile_draft: bool = False, weights: str = "int8"
) -> Passes:
    """Return the `Passes` of a draft that `check_draft` accepts, or refuse to compile it."""
    if not isinstance(draft, GgufDraft):
        is_static = compile_draft or not models.state_layers(draft)
        if compile_draft:
            return TorchPasses(draft, num_ids, is_static=is_static, is_compiled=True)
        return DecoderPasses(draft, num_ids, weights, is_static=is_static)
    if compile_draft:
        raise UnsupportedError(
            f"compile_draft=True does not work with the draft {draft.path.name!r}: PyTorch does not run it. Remove the "
            "option."
        )
    decoder = decoder_of_file(draft, weights)
    if isinstance(decoder, str):
        return LlamaPasses(draft, num_ids, decoder)
    return GgufDecoderPasses(draft, decoder, num_ids)


def is_encoder_decoder(draft: Any) -> bool:
    """Whether a draft reads a source text with an encoder."""
    return not isinstance(draft, GgufDraft) and bool(draft.config.is_encoder_decoder)


def head_size(model: Any) -> int:
    """Return the number of entries of a target's or a draft's head."""
    return model.vocab_size if isinstance(model, GgufDraft) else models.head_size(model)


def tokenizer_of(model: Any) -> Any:
    """Return the tokenizer of a GGUF file, or the one saved with a model's weights, or None; never download."""
    if isinstance(model, GgufDraft):
        return model.tokenizer
    name = getattr(model, "name_or_path", None) or getattr(model.config, "name_or_path", None)
    return _load(name) if isinstance(name, str) and name else None


@lru_cache(maxsize=8)
def _load(name: str) -> Any:
    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        forks.let_pass(error)
        return None  # there is no tokenizer, or it needs remote code or a package that is not installed


def adapter_for(target: TokenizerAdapter, draft_tokenizer: TokenizerAdapter, draft: Any) -> TokenizerAdapter:
    """Return the adapter of a draft's tokenizer; the target's if the draft is a GGUF file with the same ids.

    They share their ids if no id has different bytes in the two. Control tokens have no bytes; a file may have more.
    """
    if isinstance(draft, GgufDraft):
        both = zip(target.token_bytes, draft_tokenizer.token_bytes, strict=False)
        if all(one is None or other is None or one == other for one, other in both):
            return target
    return draft_tokenizer
