"""Which targets the tests of this project have tried, and what a trial of another one needs."""

import re
from collections.abc import Iterator
from typing import Any

from uag.hf.known_classes import CLASSES

_ROTARY = frozenset(("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "mrope"))
"""Kinds of rotary factors that `uag.hf.positions` knows."""

_LENGTH = re.compile(r".*(position|length|window|chunk_size|context|seq_len|floor_scale).*")
_NO_LENGTH = re.compile(r"(num|min|max_length|chunk_size_feed|.*token_id|.*_type|.*_offset|.*_layers).*")
_MOST = 1 << 24


def is_known(model: Any) -> bool:
    """Whether a model is of a class, and of rotary kinds, that the tests of this project compare block by block."""
    kind = type(model)
    if not kind.__module__.startswith("transformers.models.") or kind.__name__ not in CLASSES:
        return False
    config = model.config.get_text_config(decoder=True)
    return _rotary_kinds([getattr(config, name, None) for name in ("rope_parameters", "rope_scaling")]) <= _ROTARY


def _rotary_kinds(values: Any) -> set[str]:
    """Collect the kinds that rotary parameters name, however deep."""
    if isinstance(values, list):
        return set().union(*map(_rotary_kinds, values))
    if not isinstance(values, dict):
        return set()
    own = {str(values["rope_type"])} if values.get("rope_type") is not None else set()
    return own | _rotary_kinds(list(values.values()))


def lengths(model: Any) -> tuple[int, ...]:
    """Return every length that a model's configuration names, in order: where its forward may change."""
    return tuple(sorted(set(_lengths(model.config.get_text_config(decoder=True).to_dict()))))


def _lengths(values: dict[Any, Any]) -> Iterator[int]:
    for key, value in values.items():
        name = str(key)
        if isinstance(value, dict):
            yield from _lengths(value)
        elif _LENGTH.fullmatch(name) and not _NO_LENGTH.fullmatch(name) and type(value) in (int, float):
            yield from [int(value)] if 1 < value <= _MOST and value == int(value) else []


def made_up_ids(model: Any, size: int, attempt: int = 0) -> list[int]:
    """Return so many ids from all over the vocabulary, none of which stands for an image or the like."""
    config = model.config
    special = {
        value
        for part in (config, config.get_text_config(decoder=True))
        for name, value in part.to_dict().items()
        if name.endswith(("token_id", "token_index")) and isinstance(value, int)
    }
    vocab_size = int(model.get_input_embeddings().weight.shape[0])
    scattered = ((7919 * place + 31 * attempt) % vocab_size for place in range(3, 3 + vocab_size))
    usual = [token_id for token_id in scattered if token_id not in special][:size]
    return [usual[place % len(usual)] for place in range(size)]
