"""SentencePiece models in Rust: BPE (Llama 2, Mistral, Phi-3, Gemma) and Unigram (T5, XLM-R).

Continuations get no dummy prefix (Metaspace's `prepend_scheme`, or the older Prepend normalizer). A second kind of
Unigram model, "raw", has plain spaces in its pieces and byte fallback; the bundled demo draft is one.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from uag.adapters.base import UTF8
from uag.adapters.rust import RustAdapter, backend_of, model_settings, steps_of

_BYTE_OF_PIECE = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
_UNICODE_NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Lowercase", "StripAccents")
_RAW_TEXT = " A raw  text,\n\twith bytes: \x00☃ "  # the same after decoding, if pieces are text and bytes


class SentencePieceAdapter(RustAdapter):
    """Adapter for BPE and Unigram over text with "▁" for spaces, or Unigram over raw text with byte fallback."""

    family = "sentencepiece"

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        settings = model_settings(self._model)
        self._mark = _space_mark(self._normalizers, self._pre_tokenizers) or " "
        self._byte_ids = [self._vocabulary.get(name) for name in _BYTE_OF_PIECE]
        self._has_bytes = bool(settings.get("byte_fallback")) and None not in self._byte_ids
        self._set_prefix()
        unk_id = settings.get("unk_id", self._vocabulary.get(settings.get("unk_token") or ""))
        no_text = set() if unk_id is None else {int(unk_id)}  # the demo draft's unk has no role
        self._textless_ids = self.controls.control_ids | no_text
        # "▁" in a text is not a space: with byte fallback it is encoded as bytes, otherwise as its piece.
        mark = re.escape(self._mark) if self._has_bytes and self._mark != " " else ""
        self._spelled_in_bytes = re.compile(f"[\udc80-\udcff{mark}]+")
        # Unigram scores the names of control tokens, and BPE with `ignore_merges` looks up whole words.
        finds_names = "unk_id" in settings or bool(settings.get("ignore_merges"))
        names = self._starts_of_names() if finds_names else ""
        self._not_plain = re.compile(f"({self._spelled_in_bytes.pattern}{names})")

    @classmethod
    def matches(cls, tokenizer: Any) -> int:
        backend = backend_of(tokenizer)
        if backend is None or type(backend.model).__name__ not in ("BPE", "Unigram"):
            return 0
        mark = _space_mark(steps_of(backend.normalizer), steps_of(backend.pre_tokenizer))
        return 20 if mark is not None or _keeps_raw_text(backend) else 0

    def _starts_of_names(self) -> str:
        """Return a pattern for the first characters of names like "</s>" in a text; encoded alone, they split it."""
        names = [name for name, i in self._vocabulary.items() if i in self._textless_ids and len(name) > 1]
        return "".join(f"|{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names) + "|<(?=0x[0-9A-F]{2}>)"

    def _set_prefix(self) -> None:
        """Set the dummy prefix: Phi-3 prepends one, T5 "always", Llama 2 only for the "first" word."""
        schemes = [step["prepend_scheme"] for step in self._pre_tokenizers if step["type"] == "Metaspace"]
        prepends = [step for step in self._normalizers if step["type"] == "Prepend"]
        self.prefix_is_doubled = bool(prepends)
        if prepends or "always" in schemes:
            self.start_prefix = self.control_prefix = b" "
        elif "first" in schemes:
            self.start_prefix = b" "

    @cached_property
    def loss(self) -> str | None:
        if self._has_bytes:
            return None
        rewrites = [step["type"] for step in self._kept_normalizers() if step["type"] in _UNICODE_NORMALIZERS]
        return (f"normalizes text ({', '.join(rewrites)}); " if rewrites else "") + (
            "no byte fallback: unknown characters become unk or are dropped"
        )

    def _kept_normalizers(self) -> list[dict[str, Any]]:
        """Return the normalizer steps to keep; with byte fallback, no text needs to be rewritten."""
        kept = () if self._has_bytes else _UNICODE_NORMALIZERS
        return [step for step in self._normalizers if _replaced_space(step) or step["type"] in kept]

    def _encoder_steps(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        steps = []
        for step in self._pre_tokenizers:
            if step["type"] == "Metaspace":
                steps.append(step | {"prepend_scheme": "never"})
            elif step["type"] != "WhitespaceSplit":  # it would drop spaces, and Metaspace splits at the same positions
                steps.append(step)
        return self._kept_normalizers(), steps

    def _piece_bytes(self, piece: str) -> bytes | None:
        # Some tokenizers decode byte pieces but never write them, because `byte_fallback` is off.
        byte = _BYTE_OF_PIECE.get(piece)
        if byte and (self._has_bytes or any(step["type"] == "ByteFallback" for step in self._decoders)):
            return byte
        return piece.replace(self._mark, " ").encode()

    def _build_token_bytes(self) -> Mapping[int, bytes | None]:
        return {**super()._build_token_bytes(), **dict.fromkeys(self._textless_ids)}

    def _encode(self, data: bytes) -> list[int]:
        ids: list[int] = []
        for part in filter(None, self._not_plain.split(data.decode(*UTF8))):
            if not self._spelled_in_bytes.fullmatch(part):
                ids += self._encode_text(part)  # text, or the first character of a name
            elif self._has_bytes:
                ids += [i for byte in part.encode(*UTF8) if (i := self._byte_ids[byte]) is not None]
            elif self.controls.unk_id is not None:
                ids.append(self.controls.unk_id)
        return ids


def _replaced_space(step: dict[str, Any]) -> str | None:
    if step["type"] == "Replace" and step["pattern"].get("String") == " " and len(step["content"]) == 1:
        return str(step["content"])
    return None


def _space_mark(normalizers: list[dict[str, Any]], pre_tokenizers: list[dict[str, Any]]) -> str | None:
    marks = [step["replacement"] for step in pre_tokenizers if step["type"] == "Metaspace"]
    marks += [mark for step in normalizers if (mark := _replaced_space(step))]
    return str(marks[0]) if marks else None


def _keeps_raw_text(backend: Tokenizer) -> bool:
    """Whether a Unigram model has byte fallback and plain text in its pieces, and no step changes text."""
    model = backend.model
    return (
        type(model).__name__ == "Unigram"
        and bool(model_settings(model).get("byte_fallback"))
        and all(model.token_to_id(name) is not None for name in _BYTE_OF_PIECE)
        and backend.decode(backend.encode(_RAW_TEXT, add_special_tokens=False).ids) == _RAW_TEXT
    )
