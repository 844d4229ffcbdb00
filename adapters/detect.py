"""Pick the adapter of a tokenizer from what the tokenizer holds, not from its class or its size."""

import weakref
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from uag.adapters.base import TokenizerAdapter
from uag.errors import TokenizerError

# Where other packages register their adapters, as entry points.
GROUP = "uag.tokenizer_adapters"

BUILT_IN: Mapping[str, str] = {
    "byte": "uag.adapters.byte:ByteAdapter",
    "byte_level": "uag.adapters.byte_level:ByteLevelAdapter",
    "generic": "uag.adapters.generic:GenericAdapter",
    "llama_cpp": "uag.adapters.llama_cpp:LlamaCppAdapter",
    "mistral_common": "uag.adapters.mistral_common:TekkenAdapter",
    "mistral_common_sentencepiece": "uag.adapters.mistral_common:MistralSentencePieceAdapter",
    "sentencepiece": "uag.adapters.sentencepiece:SentencePieceAdapter",
    "sentencepiece_library": "uag.adapters.sentencepiece_library:SentencePieceLibraryAdapter",
    "unigram": "uag.adapters.unigram:UnigramAdapter",
    "wordpiece": "uag.adapters.wordpiece:WordPieceAdapter",
}

_REQUIRED = ("encode", "decode", "get_vocab", "convert_ids_to_tokens", "all_special_ids")

# Values hold the tokenizer, so they must be the weak side; a key object could never die.
_adapters: weakref.WeakValueDictionary[int, TokenizerAdapter] = weakref.WeakValueDictionary()


def from_tokenizer(tokenizer: Any) -> TokenizerAdapter:
    """Give the adapter of a tokenizer; the same one while it is in use and the tokenizer does not change.

    Raises:
        TokenizerError: Not a tokenizer, or one that no installed adapter can serve.
    """
    known = _adapters.get(id(tokenizer))
    if known is not None and known.tokenizer is tokenizer and known.state == _state(tokenizer):
        return known
    missing = [name for name in _REQUIRED if not hasattr(tokenizer, name)]
    if missing or isinstance(tokenizer, type):
        raise TokenizerError(
            f"expected a Hugging Face tokenizer, got {tokenizer!r} (without {', '.join(missing) or 'an instance'}); "
            "load one with AutoTokenizer.from_pretrained(...)"
        )
    ranked = sorted(((_load(name).matches(tokenizer), name) for name in _registered()), reverse=True)
    rank, name = ranked[0]
    if not rank:
        installed = ", ".join(sorted(_registered()))
        raise TokenizerError(f"no adapter serves {type(tokenizer).__name__}; installed adapters: {installed}")
    adapter = _load(name)(tokenizer)
    adapter.state = _state(tokenizer)
    _adapters[id(tokenizer)] = adapter
    return adapter


def _state(tokenizer: Any) -> tuple[Any, ...]:
    """What may change on a tokenizer in use: added tokens and special ids."""
    return (len(tokenizer), tuple(tokenizer.all_special_ids))


@cache
def _registered() -> dict[str, EntryPoint]:
    """List built-in and installed adapters by name, none of them imported."""
    found = {name: EntryPoint(name, value, GROUP) for name, value in BUILT_IN.items()}
    for entry in entry_points(group=GROUP):
        known = found.setdefault(entry.name, entry)
        if known.value != entry.value:  # an installation of an older uag still registers its own
            raise TokenizerError(
                f"two tokenizer adapters are named {entry.name!r}: {known.value!r} and {entry.value!r}; "
                f"rename or uninstall one (entry-point group {GROUP!r})"
            )
    return found


@cache
def _load(name: str) -> type[TokenizerAdapter]:
    entry = _registered()[name]
    try:
        loaded = entry.load()
    except (ImportError, AttributeError) as error:
        raise TokenizerError(
            f"tokenizer adapter {name!r} ({entry.value}) cannot be loaded: {error}; fix or uninstall it"
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, TokenizerAdapter)):
        raise TokenizerError(f"tokenizer adapter {name!r} is {loaded!r}, expected a subclass of TokenizerAdapter")
    return loaded
