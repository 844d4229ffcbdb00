"""SentencePiece BPE in Rust: Llama 2, Mistral, Phi-3, Gemma; spaces are "▁", unknown characters are `<0x..>` bytes.

The dummy prefix (Metaspace's `prepend_scheme`, or the older Prepend normalizer) is left out for continuations.
`decode` is never asked: since transformers 5 it drops a leading space.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

from uag.adapters import utf8
from uag.adapters.rust import RustAdapter, backend_of, component_state, flatten

_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_UNICODE_NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Lowercase", "StripAccents")
_KNOWN_PRE_TOKENIZERS = ("Metaspace", "WhitespaceSplit", "Digits")


class SentencePieceAdapter(RustAdapter):
    """Adapter for BPE over text whose spaces are "▁"."""

    family = "sentencepiece"
    model_type = "BPE"

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self._mark = _space_mark(self._normalizers, self._pre_tokenizers) or "▁"
        self._byte_ids = [self._vocabulary.get(f"<0x{byte:02X}>") for byte in range(256)]
        self._has_bytes = self._decides_bytes() and None not in self._byte_ids
        self._set_prefix()
        # "▁" in a text is not a space: it goes by bytes where it can
        mark = re.escape(self._mark) if self._has_bytes else ""
        self._byte_run = re.compile(f"[\udc80-\udcff{mark}]+")
        self._broken = re.compile(self._byte_run.pattern + self._name_starts())

    @classmethod
    def matches(cls, tokenizer: Any) -> int:
        """Serve a Rust backend of this model type that writes spaces as one visible character."""
        backend = backend_of(tokenizer)
        if backend is None or type(backend.model).__name__ != cls.model_type:
            return 0
        normalizers = flatten(component_state(backend.normalizer))
        return 20 if _space_mark(normalizers, flatten(component_state(backend.pre_tokenizer))) else 0

    @cached_property
    def _has_unk(self) -> bool:
        return self._model.unk_token is not None

    def _takes_names(self) -> bool:
        """Whether the model takes a word that spells a piece's name as that piece, "</s>" as the control token."""
        return bool(self._model.ignore_merges)

    def _name_starts(self) -> str:
        """Give a pattern for the first character of such names: it is encoded apart."""
        if not self._takes_names():
            return ""
        control_ids = self.controls.control_ids
        names = [name for name, i in self._vocabulary.items() if i in control_ids and len(name) > 1]
        return "".join(f"|{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names) + "|<(?=0x[0-9A-F]{2}>)"

    def _decides_bytes(self) -> bool:
        return bool(self._model.byte_fallback)

    def _set_prefix(self) -> None:
        schemes = [step["prepend_scheme"] for step in self._pre_tokenizers if step["type"] == "Metaspace"]
        prepends = [step for step in self._normalizers if step["type"] == "Prepend"]
        self.prefix_is_doubled = bool(prepends)
        if prepends or "always" in schemes:
            self.start_prefix = self.control_prefix = b" "
        elif "first" in schemes:
            self.start_prefix = b" "

    @cached_property
    def loss(self) -> str | None:
        """Why some text cannot be held: normalizers, or no bytes for unknown characters."""
        if self._has_bytes:
            return None
        kept = [step["type"] for step in self._kept_normalizers() if step["type"] in _UNICODE_NORMALIZERS]
        rewrites = f"normalizes text ({', '.join(kept)}); " if kept else ""
        return rewrites + "no byte fallback: unknown characters become unk or are dropped"

    def split_offsets(self, text: str) -> Iterator[tuple[int, int]]:
        """Find places that no piece reaches across."""
        if not self._can_split:
            return
        pairs, known = self._inner_pairs
        for place in range(1, len(text)):
            pair = text[place - 1 : place + 1]
            if pair in pairs or self._broken.search(pair) or (self._takes_names() and pair[1] != " "):
                continue
            # Without bytes, neighbouring unknown characters are fused into one unk; without an unk they are dropped,
            # and pieces form across them.
            num_known = (pair[0] in known) + (pair[1] in known)
            if self._has_bytes or num_known > (0 if self._has_unk else 1):
                yield place, place + 1

    @cached_property
    def _can_split(self) -> bool:
        is_known = all(step["type"] in _KNOWN_PRE_TOKENIZERS or _is_idle(step) for step in self._pre_tokenizers)
        rewrites = any(step["type"] in _UNICODE_NORMALIZERS for step in self._kept_normalizers())
        single = any(token.single_word for token in self._ordinary_added.values())
        return is_known and not rewrites and not single

    @cached_property
    def _inner_pairs(self) -> tuple[set[str], set[str]]:
        """Pairs of neighbouring characters inside pieces, and the characters that are pieces."""
        pairs: set[str] = set()
        known: set[str] = set()
        pieces = [piece for piece, i in self._vocabulary.items() if i not in self.controls.control_ids]
        for piece in (*pieces, *(token.content for token in self._ordinary_added.values())):
            text = piece.replace(self._mark, " ")
            pairs.update(map("".join, pairwise(text)))
            if len(text) == 1:
                known.add(text)
        return pairs, known

    def _kept_normalizers(self) -> list[dict[str, Any]]:
        """List the steps that stay: with byte fallback, nothing needs to be rewritten."""
        replaces = [step for step in self._normalizers if _replaced_space(step)]
        if self._has_bytes:
            return replaces
        return [step for step in self._normalizers if step["type"] in _UNICODE_NORMALIZERS or step in replaces]

    def _encoder_steps(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        steps = []
        for step in self._pre_tokenizers:
            if step["type"] == "Metaspace":
                steps.append(step | {"prepend_scheme": "never"})
            elif step["type"] != "WhitespaceSplit":  # it would drop spaces; Metaspace cuts at the same places
                steps.append(step)
        if self._cuts_words:
            mark = re.escape(self._mark)
            pattern = {"Regex": f"{mark}*[^{mark}]+|{mark}+"}
            steps.append({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False})
        return self._kept_normalizers(), steps

    @cached_property
    def _cuts_words(self) -> bool:
        # Where no piece reaches from a word into the next space, cutting there changes nothing but the speed.
        return self._can_split and not any(pair[1] == " " != pair[0] for pair in self._inner_pairs[0])

    def _piece_bytes(self, piece: str) -> bytes | None:
        found = _BYTE_PIECE.fullmatch(piece)
        if found and (self._has_bytes or any(step["type"] == "ByteFallback" for step in self._decoders)):
            return bytes([int(found.group(1), 16)])
        return piece.replace(self._mark, " ").encode()

    def _is_plain(self, text: str) -> bool:
        return self._broken.search(text) is None

    def _encode_bytes(self, data: bytes) -> list[int]:
        ids: list[int] = []
        for part, is_broken in utf8.runs(utf8.decode(data), self._broken):
            if not is_broken or not self._byte_run.fullmatch(part):
                ids += self._encode_text([part])[0]  # whole text, or the first character of a name
            elif self._has_bytes:
                ids += [i for byte in utf8.encode(part) if (i := self._byte_ids[byte]) is not None]
            elif self.controls.unk_id is not None:
                ids.append(self.controls.unk_id)
        return ids


def model_state(model: Any) -> dict[str, Any]:
    """Read a model's settings and vocabulary as JSON."""
    state: dict[str, Any] = json.loads(model.__getstate__())
    return state


def _replaced_space(step: dict[str, Any]) -> str | None:
    if step["type"] == "Replace" and step["pattern"].get("String") == " " and len(step["content"]) == 1:
        return str(step["content"])
    return None


def _space_mark(normalizers: list[dict[str, Any]], pre_tokenizers: list[dict[str, Any]]) -> str | None:
    marks = [step["replacement"] for step in pre_tokenizers if step["type"] == "Metaspace"]
    marks += [mark for step in normalizers if (mark := _replaced_space(step))]
    return str(marks[0]) if marks else None


def _is_idle(step: dict[str, Any]) -> bool:
    """Whether a step finds nothing because all spaces were replaced before it (Gemma)."""
    return bool(step["type"] == "Split" and step["pattern"].get("String") == " ")
