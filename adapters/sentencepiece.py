"""SentencePiece BPE in Rust: Llama 2, Mistral, Phi-3, Gemma; spaces are "▁", unknown characters are `<0x..>` bytes.

Continuations get no dummy prefix (Metaspace's `prepend_scheme`, or the older Prepend normalizer). `decode` is not used
because it drops a leading space since transformers 5. A second kind, "raw", has plain spaces in its pieces, byte
fallback and no space mark; the bundled demo draft is one.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from itertools import groupby
from typing import Any

from tokenizers import Tokenizer

from uag.adapters import utf8
from uag.adapters.rust import RustAdapter, backend_of, component_state, flatten, model_settings

_BYTE_OF_PIECE = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
_UNICODE_NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Lowercase", "StripAccents")
# Steps that split at spaces or digits regardless of the context: Llama 2 has the first, T5 the first two.
_LOCAL_PRE_TOKENIZERS = ("Metaspace", "WhitespaceSplit", "Digits")
# Steps that drop no text unless configured to; the demo draft has the first.
_KEEPING_PRE_TOKENIZERS = ("Split", "Digits", "Punctuation")


class SentencePieceAdapter(RustAdapter):
    """Adapter for BPE over text with "▁" for spaces, or over raw text with byte fallback."""

    family = "sentencepiece"
    model_type = "BPE"

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self._mark = _space_mark(self._normalizers, self._pre_tokenizers) or " "
        self._is_raw = self._mark == " "
        self._byte_ids = [self._vocabulary.get(f"<0x{byte:02X}>") for byte in range(256)]
        self._has_bytes = self._falls_back_to_bytes() and None not in self._byte_ids
        self._set_prefix()
        # "▁" in a text is not a space: with byte fallback it is spelled in bytes, without it the piece is used.
        mark = re.escape(self._mark) if self._has_bytes and not self._is_raw else ""
        self._spelled_in_bytes = re.compile(f"[\udc80-\udcff{mark}]+")
        self._not_plain = re.compile(self._spelled_in_bytes.pattern + self._starts_of_names())

    @classmethod
    def matches(cls, tokenizer: Any) -> int:
        """Support Rust backends of this model type with a space mark, or with raw text and byte fallback."""
        backend = backend_of(tokenizer)
        if backend is None or type(backend.model).__name__ != cls.model_type:
            return 0
        normalizers = flatten(component_state(backend.normalizer))
        has_mark = _space_mark(normalizers, flatten(component_state(backend.pre_tokenizer))) is not None
        return 20 if has_mark or _keeps_raw_text(backend) else 0

    # Overridden for Unigram models -------------------------------------------------------------------------------

    def _looks_up_words(self) -> bool:
        """Whether whole words are looked up among the pieces, so that the text "</s>" becomes the token (T5)."""
        return bool(self._model.ignore_merges)

    def _unk_piece(self) -> str | None:
        unk: str | None = self._model.unk_token
        return unk

    def _falls_back_to_bytes(self) -> bool:
        return bool(self._model.byte_fallback)

    # -------------------------------------------------------------------------------------------------------------

    @cached_property
    def _pieces(self) -> list[str]:
        """All pieces and added tokens, with the mark replaced by a space."""
        added = [token.content for token in self._ordinary_added.values()]
        return [piece.replace(self._mark, " ") for piece in (*self._vocabulary, *added)]

    @cached_property
    def _known_characters(self) -> set[str]:
        return {piece for piece in self._pieces if len(piece) == 1}

    @cached_property
    def _rewrites(self) -> list[str]:
        """Normalizers that are kept because there is no byte fallback for what they remove (T5)."""
        return [step["type"] for step in self._kept_normalizers() if step["type"] in _UNICODE_NORMALIZERS]

    @cached_property
    def _steps_are_local(self) -> bool:
        """Whether no step before the model depends on the text around a space."""
        # Gemma splits at " ", but normalization has replaced all of them
        steps = [step for step in self._pre_tokenizers if step.get("pattern") != {"String": " "}]
        is_known = all(step["type"] in _LOCAL_PRE_TOKENIZERS for step in steps)
        return is_known and not any(token.single_word for token in self._ordinary_added.values())

    @cached_property
    def _cuts_at_spaces(self) -> bool:
        """Whether the second encoder splits before spaces, which no piece crosses, so that the model can cache words.

        The encoders of Llama 2, Mistral and Phi-3 treat a text as one word, which is slower.
        """
        crosses = any(" " in piece.lstrip(" ") for piece in self._pieces)
        is_known = self._has_bytes or " " in self._known_characters  # else spaces become unk
        return not self._is_raw and self._steps_are_local and is_known and not crosses

    @cached_property
    def _textless_ids(self) -> frozenset[int]:
        """Ids without text: control tokens and the model's unk, which has no role in the demo draft."""
        unk = self._unk_piece()
        return self.controls.control_ids | ({self._vocabulary[unk]} if unk in self._vocabulary else set())

    def _starts_of_names(self) -> str:
        """Return a pattern for the first characters of names that are text; encoded separately, they split it.

        T5 would encode "</s>" as the control token, the demo draft "<0x41>" as a byte.
        """
        if not self._looks_up_words():
            return ""
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
        """Why some text cannot be represented: normalizers, or unknown characters without byte fallback."""
        if self._has_bytes:
            return None
        rewrites = f"normalizes text ({', '.join(self._rewrites)}); " if self._rewrites else ""
        return rewrites + "no byte fallback: unknown characters become unk or are dropped"

    def _kept_normalizers(self) -> list[dict[str, Any]]:
        """Return the steps that are kept; with byte fallback, nothing needs to be rewritten."""
        replaces = [step for step in self._normalizers if _replaced_space(step)]
        if self._has_bytes:
            return replaces
        return [step for step in self._normalizers if step["type"] in _UNICODE_NORMALIZERS or step in replaces]

    def _encoder_steps(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        steps = []
        for step in self._pre_tokenizers:
            if step["type"] == "Metaspace":
                steps.append(step | {"prepend_scheme": "never"})
            elif step["type"] != "WhitespaceSplit":  # it would drop spaces, and Metaspace splits at the same places
                steps.append(step)
        if self._cuts_at_spaces and not any(step["type"] == "Metaspace" and step["split"] for step in steps):
            mark = re.escape(self._mark)
            pattern = {"Regex": f"{mark}*[^{mark}]+|{mark}+"}
            steps.append({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False})
        return self._kept_normalizers(), steps

    def _piece_bytes(self, piece: str) -> bytes | None:
        # Some tokenizers decode byte pieces but never write them, because `byte_fallback` is off.
        byte = _BYTE_OF_PIECE.get(piece)
        if byte and (self._has_bytes or any(step["type"] == "ByteFallback" for step in self._decoders)):
            return byte
        return piece.replace(self._mark, " ").encode()

    def _build_token_bytes(self) -> Mapping[int, bytes | None]:
        table = super()._build_token_bytes()
        return {**table, **dict.fromkeys(self._textless_ids)}

    def _is_plain(self, text: str) -> bool:
        return self._not_plain.search(text) is None

    def _encode_bytes(self, data: bytes) -> list[int]:
        apart = self._spelled_in_bytes if self._is_raw else self._not_plain
        ids: list[int] = []
        for part, is_apart in utf8.runs(utf8.decode(data), apart):
            if self._is_raw and not is_apart:
                ids += self._encode_words(part)
            elif not self._spelled_in_bytes.fullmatch(part):
                ids += self._encode_text([part])[0]  # text, or the first character of a name
            elif self._has_bytes:
                ids += [i for byte in utf8.encode(part) if (i := self._byte_ids[byte]) is not None]
            elif self.controls.unk_id is not None:
                ids.append(self.controls.unk_id)
        return ids

    def _encode_words(self, text: str) -> list[int]:
        """Encode raw text that contains a name; only words that the model encoded as the name are encoded again."""
        encoding = self._encoder.encode(text, add_special_tokens=False)
        ids: list[int] = []
        for _, tokens in groupby(zip(encoding.word_ids, encoding.ids, encoding.offsets, strict=True), lambda t: t[0]):
            _, encoder_ids, offsets = zip(*tokens, strict=True)
            word = text[offsets[0][0] : offsets[-1][1]]
            word_ids = [self._id_map.get(i, i) for i in encoder_ids]
            if self.join(word_ids) != word.encode():
                parts = [part for part, _ in utf8.runs(word, self._not_plain)]
                word_ids = [token.id for part in parts for token in self._model.tokenize(part)]
            ids += word_ids
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
    """Whether pieces are plain text, nothing is dropped or marked, and there is byte fallback."""
    model = backend.model
    affixes = [getattr(model, name, None) for name in ("continuing_subword_prefix", "end_of_word_suffix")]
    normalizers = flatten(component_state(backend.normalizer))
    steps = flatten(component_state(backend.pre_tokenizer))
    decoders = {step["type"] for step in flatten(component_state(backend.decoder))}
    return (
        not any(affixes)
        and all(step["type"] in _UNICODE_NORMALIZERS for step in normalizers)
        and all(step["type"] in _KEEPING_PRE_TOKENIZERS and step.get("behavior") != "Removed" for step in steps)
        and {"ByteFallback"} <= decoders <= {"ByteFallback", "Fuse"}
        and all(model.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256))
        and bool(model_settings(model)[0].get("byte_fallback"))
    )
