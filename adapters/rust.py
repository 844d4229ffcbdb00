"""Base of the adapters for Rust tokenizers: a second encoder over the same model, for continuations."""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from uag.adapters.base import TokenizerAdapter


def backend_of(tokenizer: Any) -> Tokenizer | None:
    """Return the Rust tokenizer of a Hugging Face tokenizer, or None."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend if isinstance(backend, Tokenizer) else None


def steps_of(component: Any) -> list[dict[str, Any]]:
    """Return the steps of a normalizer, pre-tokenizer or decoder in order, with sequences flattened."""
    return [] if component is None else _flatten(json.loads(component.__getstate__()))


def _flatten(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    for key in ("normalizers", "pretokenizers", "decoders"):
        if key in state:
            return [step for part in state[key] for step in _flatten(part)]
    return [dict(state)]


def build_sequence(component: Any, key: str, steps: list[dict[str, Any]]) -> Any:
    """Fill an empty sequence of normalizers or pre-tokenizers with JSON steps; None if there are none."""
    component.__setstate__(json.dumps({"type": "Sequence", key: steps}).encode())
    return component if steps else None


def model_settings(model: Any) -> dict[str, Any]:
    """Return a model's settings."""
    state: bytes = model.__getstate__()
    if type(model).__name__ == "BPE":
        # Parsing 150,000 merges takes a second. Quotes inside JSON strings are escaped, so this match is the real key.
        state = state.partition(b',"vocab":')[0] + b"}"
    settings: dict[str, Any] = json.loads(state)
    return settings


class RustAdapter(TokenizerAdapter):
    """Base class of adapters for tokenizers with a Rust backend."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        backend = tokenizer.backend_tokenizer
        self._model = backend.model
        self._vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=False)
        self._normalizers = steps_of(backend.normalizer)
        self._pre_tokenizers = steps_of(backend.pre_tokenizer)
        self._decoders = steps_of(backend.decoder)
        added: dict[int, AddedToken] = backend.get_added_tokens_decoder()
        self._ordinary_added = {i: token for i, token in sorted(added.items()) if i not in self.controls.control_ids}
        self._id_map: dict[int, int] = {}

    def _piece_bytes(self, piece: str) -> bytes | None:
        raise NotImplementedError

    def _encoder_steps(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the normalizer's and the pre-tokenizer's steps for continuations."""
        raise NotImplementedError

    @cached_property
    def _encoder(self) -> Tokenizer:
        encoder = Tokenizer(self._model)
        normalizer_steps, pre_tokenizer_steps = self._encoder_steps()
        encoder.normalizer = build_sequence(normalizers.Sequence([]), "normalizers", normalizer_steps)
        encoder.pre_tokenizer = build_sequence(pre_tokenizers.Sequence([]), "pretokenizers", pre_tokenizer_steps)
        taken = set(self._vocabulary.values())
        added = self._ordinary_added.values()  # without lstrip and rstrip, which would swallow spaces
        encoder.add_tokens([AddedToken(t.content, normalized=t.normalized, single_word=t.single_word) for t in added])
        for token_id, token in self._ordinary_added.items():
            encoder_id = encoder.token_to_id(token.content)
            if encoder_id is not None and encoder_id != token_id and encoder_id not in taken:
                self._id_map[encoder_id] = token_id
        return encoder

    def _encode_text(self, text: str) -> list[int]:
        ids: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
        return [self._id_map.get(i, i) for i in ids] if self._id_map else ids

    def _build_token_bytes(self) -> Mapping[int, bytes | None]:
        # Tokens of the model's vocabulary use its alphabet; added tokens are raw text (DeepSeek's "ø").
        table: dict[int, bytes | None] = {i: token.content.encode() for i, token in self._ordinary_added.items()}
        table.update(zip(self._vocabulary.values(), map(self._piece_bytes, self._vocabulary), strict=True))
        return table
