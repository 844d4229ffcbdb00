"""Choose the adapter of a tokenizer by its components, not by its class or size."""

import weakref
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from uag.adapters.base import TokenizerAdapter
from uag.errors import TokenizerError

GROUP = "uag.tokenizer_adapters"  # the entry-point group in which other packages register adapters

BUILT_IN: Mapping[str, str] = {
    "byte": "uag.adapters.byte:ByteAdapter",
    "byte_level": "uag.adapters.byte_level:ByteLevelAdapter",
    "generic": "uag.adapters.generic:GenericAdapter",
    "mistral_common": "uag.adapters.mistral_common:TekkenAdapter",
    "sentencepiece": "uag.adapters.sentencepiece:SentencePieceAdapter",
}

_REQUIRED = ("encode", "added_tokens_decoder", "all_special_ids", "__len__")

_adapters: weakref.WeakValueDictionary[int, TokenizerAdapter] = weakref.WeakValueDictionary()
"""By the tokenizer's `id`. An adapter refers to its tokenizer, so with weak keys neither would ever be freed."""


def from_tokenizer(tokenizer: Any) -> TokenizerAdapter:
    """Return the adapter of a tokenizer; the same object while it is in use and the tokenizer does not change.

    Raises:
        TokenizerError: this is not a tokenizer, or an installed adapter is broken.
    """
    adapter = _adapters.get(id(tokenizer))
    if adapter is not None and adapter.tokenizer is tokenizer and adapter.state == _state(tokenizer):
        return adapter
    is_tokenizer = not isinstance(tokenizer, type) and all(hasattr(tokenizer, name) for name in _REQUIRED)
    names = _registered() if is_tokenizer else ()
    rank, name = max(((_load(name).matches(tokenizer), name) for name in names), default=(0, ""))
    if rank == 0:
        raise TokenizerError(
            f"Expected a Hugging Face tokenizer, got {tokenizer!r}. Load one with AutoTokenizer.from_pretrained(...)."
        )
    adapter = _load(name)(tokenizer)
    adapter.state = _state(tokenizer)
    _adapters[id(tokenizer)] = adapter
    return adapter


def _state(tokenizer: Any) -> tuple[Any, ...]:
    """Return the state that users can change in a tokenizer: its number of tokens and its special ids."""
    return (len(tokenizer), tuple(tokenizer.all_special_ids))


@cache
def _registered() -> dict[str, EntryPoint]:
    """Return built-in and installed adapters by name without importing them."""
    registered = {name: EntryPoint(name, value, GROUP) for name, value in BUILT_IN.items()}
    for entry in entry_points(group=GROUP):
        if entry.name in registered:
            raise TokenizerError(
                f"Two tokenizer adapters are named {entry.name!r}: {registered[entry.name].value!r} and "
                f"{entry.value!r}. Rename or uninstall one (entry-point group {GROUP!r})."
            )
        registered[entry.name] = entry
    return registered


@cache
def _load(name: str) -> type[TokenizerAdapter]:
    entry = _registered()[name]
    try:
        loaded = entry.load()
    except (ImportError, AttributeError) as error:
        raise TokenizerError(
            f"The tokenizer adapter {name!r} ({entry.value}) cannot be loaded: {error}. Fix or uninstall it."
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, TokenizerAdapter)):
        raise TokenizerError(f"The tokenizer adapter {name!r} is {loaded!r}, not a subclass of TokenizerAdapter.")
    return loaded
