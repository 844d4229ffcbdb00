"""The interface of all adapters: bytes of each id, ids of a text, control tokens, exactness."""

import enum
import hashlib
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, ClassVar

from uag.adapters.control import ControlRoles, find_controls

_SAMPLE = "The quick brown fox can't jump 12345 times.  \t\n x(y[i]) naïve Ünïcödé 日本語 текст 😀"
_NUM_SAMPLED = 2_000  # tokens of the vocabulary in the sample text of a fingerprint
TEXT_BYTES = sorted(frozenset(range(0xF5)) - {0xC0, 0xC1})  # those of valid UTF-8
UTF8 = ("utf-8", "surrogateescape")  # decodes bytes of broken characters to lone surrogates, and encodes them back

_BROKEN = re.compile("([\udc80-\udcff]+)")


class Place(enum.Enum):
    """The position of a text: tokenizers treat the first word differently."""

    START = "start"
    CONTINUATION = "continuation"
    AFTER_CONTROL = "after_control"


class TokenizerAdapter(ABC):
    """Encodes and decodes bytes with one tokenizer.

    A subclass implements `matches` (which tokenizers it supports), `_build_token_bytes` (the bytes of each id) and
    `_encode` (the ids of bytes) or `_encode_text` (the ids of whole characters). Everything else is derived from these.

    Attributes:
        tokenizer: the tokenizer, which is never modified.
        controls: its control tokens and their roles.
        start_prefix: the dummy prefix of a text, b" " or b"".
        control_prefix: the dummy prefix of text that follows a control token, b" " or b"".
        prefix_is_doubled: whether a text that begins with a space gets the prefix, too.
    """

    family: ClassVar[str]
    start_prefix: bytes = b""
    control_prefix: bytes = b""
    prefix_is_doubled: bool = False
    state: tuple[Any, ...] = ()

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.controls: ControlRoles = self._find_controls()

    @classmethod
    @abstractmethod
    def matches(cls, tokenizer: Any) -> int:
        """Return a rank: 0 if the tokenizer is not supported; the adapter with the highest rank is used."""

    @abstractmethod
    def _build_token_bytes(self) -> Mapping[int, bytes | None]:
        """Map every id to its bytes in the middle of a text; missing ids have none."""

    def _find_controls(self) -> ControlRoles:
        return find_controls(self.tokenizer)

    @property
    def loss(self) -> str | None:
        """Why some text cannot be represented, or None if all text can."""
        return None

    @cached_property
    def token_bytes(self) -> tuple[bytes | None, ...]:
        """[vocab_size]: bytes of each id in the middle of a text; None for control tokens, unk and unused ids."""
        bytes_by_id = self._build_token_bytes()
        size = 1 + max([*bytes_by_id, *self.controls.control_ids], default=-1)
        table: list[bytes | None] = [None] * size
        for token_id, data in bytes_by_id.items():
            if data and token_id not in self.controls.control_ids:  # an id without bytes could be drafted forever
                table[token_id] = data
        return tuple(table)

    @property
    def vocab_size(self) -> int:
        """The highest id of the tokenizer + 1. The model's head may be larger."""
        return len(self.token_bytes)

    @property
    def is_exact(self) -> bool:
        return self.loss is None

    def join(self, ids: Iterable[int]) -> bytes | None:
        """Return the joined bytes of ids; None if one of them has no bytes."""
        table = self.token_bytes
        parts = [table[token_id] if 0 <= token_id < len(table) else None for token_id in ids]
        return None if None in parts else b"".join(filter(None, parts))

    def encode_continuation(self, data: bytes) -> list[int]:
        """Encode bytes that follow already tokenized text.

        No dummy prefix and no special tokens are added, and the name of a control token is plain text. The bytes may
        begin or end in the middle of a character. Never raises; a lossy tokenizer returns ids of similar text.
        """
        return self._encode(data) if data else []

    def _encode(self, data: bytes) -> list[int]:
        r"""Encode a text that is not empty as a continuation.

        Bytes of a broken character are spelled with the token before them: " \xf0\x9f" is a token of many vocabularies.
        """
        ids: list[int] = []
        for index, part in enumerate(_BROKEN.split(data.decode(*UTF8))):
            if index % 2:  # it matches the pattern
                ids[-1:] = self._spell((self.join(ids[-1:]) or b"") + part.encode(*UTF8)) or ids[-1:]
            elif part:
                ids += self._encode_text(part)
        return ids

    def _encode_text(self, text: str) -> list[int]:
        raise NotImplementedError

    def _spell(self, data: bytes) -> list[int] | None:
        """Spell bytes with the longest tokens from the left; None if no token matches."""
        known, spelled = self._ids_of_bytes, list[int]()
        while data:
            size = next((n for n in range(min(len(data), self._longest), 0, -1) if data[:n] in known), 0)
            if not size:
                return None
            spelled.append(known[data[:size]])
            data = data[size:]
        return spelled

    @cached_property
    def prefix_ids(self) -> tuple[int, ...]:
        """The control tokens that the tokenizer adds before a text, usually BOS."""
        ids = self.tokenizer.encode("a", add_special_tokens=True)
        return tuple(itertools.takewhile(self.controls.control_ids.__contains__, ids))

    @cached_property
    def _ids_of_bytes(self) -> dict[bytes, int]:
        """The id of each token's bytes; the highest if there are several, because byte tokens come first."""
        return {data: token_id for token_id, data in enumerate(self.token_bytes) if data}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids_of_bytes), default=0)

    def prefix(self, data: bytes, place: Place) -> bytes:
        """Return the dummy prefix of a text at a position."""
        if place is Place.CONTINUATION or not data:
            return b""
        prefix = self.start_prefix if place is Place.START else self.control_prefix
        return prefix if self.prefix_is_doubled or not data.startswith(b" ") else b""

    @cached_property
    def fingerprint(self) -> str:
        """A hash that is equal for two tokenizers with the same bytes, control tokens and ids of a sample text.

        It depends on merges, patterns and normalizers, not on chat templates, padding or the order of `get_vocab()`.
        """
        texts = [data for data in self.token_bytes if data]
        sample = b"".join(texts[:: len(texts) // _NUM_SAMPLED + 1]).decode(errors="ignore")
        controls = self.controls
        parts = (
            self.family,
            self.token_bytes,
            sorted(controls.content.items()),
            (controls.bos_id, controls.eos_id, sorted(controls.control_ids)),
            (self.start_prefix, self.control_prefix, self.prefix_is_doubled),
            self.encode_continuation(f"{_SAMPLE}{sample}".encode()),
        )
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()
