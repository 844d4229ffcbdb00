"""What every adapter answers: bytes of each id, ids of each text, control tokens, exactness."""

import enum
import hashlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from uag.adapters.control import ControlRoles, find_controls


class Place(enum.Enum):
    """Where a text stands: tokenizers treat the first word differently."""

    START = "start"
    CONTINUATION = "continuation"
    AFTER_CONTROL = "after_control"


class TokenizerAdapter(ABC):
    """Bytes in, bytes out, for one tokenizer.

    A subclass says which tokenizers it serves (`matches`), which bytes an id stands for (`_piece_bytes` or
    `_build_token_bytes`) and how text is encoded (`_encode_batch`). Everything else follows from these three.

    Attributes:
        tokenizer: The tokenizer, never changed.
        controls: Its control tokens and their roles.
        start_prefix: What this tokenizer puts in front of a text, b" " or b"".
        control_prefix: What it puts in front of text that follows a control token, b" " or b"".
        prefix_is_doubled: Whether the prefix also goes in front of a text that begins with a space.
    """

    family: ClassVar[str]

    start_prefix: bytes = b""
    control_prefix: bytes = b""
    prefix_is_doubled: bool = False
    state: tuple[Any, ...] = ()

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.controls: ControlRoles = self._find_controls()

    # What a subclass must say ------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def matches(cls, tokenizer: Any) -> int:
        """Say how well this adapter serves a tokenizer: 0 not at all, the highest number wins."""

    @abstractmethod
    def _build_token_bytes(self) -> Mapping[int, bytes | None]:
        """Map every id to its bytes in the middle of a text; ids left out are holes."""

    @abstractmethod
    def _encode_batch(self, batch: Sequence[bytes]) -> list[list[int]]:
        """Encode each text as a continuation."""

    def _find_controls(self) -> ControlRoles:
        return find_controls(self.tokenizer)

    @property
    def loss(self) -> str | None:
        """Why some text cannot be held, or None where all text can."""
        return None

    def _fingerprint_parts(self) -> Iterable[bytes]:
        """Give what decides the ids of a text beyond the vocabulary itself."""
        return ()

    # What follows ------------------------------------------------------------------------------------------------

    @cached_property
    def token_bytes(self) -> tuple[bytes | None, ...]:
        """[vocab_size]: bytes of each id in the middle of a text; None for control tokens, unk and holes."""
        known = self._build_token_bytes()
        size = 1 + max([*known, *self.controls.control_ids], default=-1)
        table: list[bytes | None] = [None] * size
        for token_id, data in known.items():
            if data:  # an id that adds nothing could be drafted for ever
                table[token_id] = data
        for token_id in self.controls.control_ids:
            table[token_id] = None
        return tuple(table)

    @property
    def vocab_size(self) -> int:
        """Highest id + 1 over everything the tokenizer knows. The model's head may be larger."""
        return len(self.token_bytes)

    @property
    def is_exact(self) -> bool:
        """Whether every text comes back byte for byte."""
        return self.loss is None

    def join(self, ids: Iterable[int]) -> bytes | None:
        """Join the bytes of ids; None where one of them has no bytes."""
        table = self.token_bytes
        parts: list[bytes] = []
        for token_id in ids:
            data = table[token_id] if 0 <= token_id < len(table) else None
            if data is None:
                return None
            parts.append(data)
        return b"".join(parts)

    def encode_continuation(self, data: bytes) -> list[int]:
        """Encode bytes that follow already tokenized text.

        No dummy prefix space, no BOS, no clean-up; a control token's name inside the text stays text. The bytes may
        begin or end in the middle of a character. A lossy tokenizer does its best; nothing raises.
        """
        return self._encode_batch([data])[0] if data else []

    def encode_continuations(self, batch: Sequence[bytes]) -> list[list[int]]:
        """Encode many continuations at once; the same ids as one by one."""
        return self._encode_batch(batch) if batch else []

    def prefix(self, data: bytes, place: Place) -> bytes:
        """Give the bytes that this tokenizer puts in front of a text at a place."""
        if place is Place.CONTINUATION or not data:
            return b""
        prefix = self.start_prefix if place is Place.START else self.control_prefix
        return prefix if self.prefix_is_doubled or not data.startswith(b" ") else b""

    @cached_property
    def fingerprint(self) -> str:
        """Equal for two tokenizers that give the same ids for all text and the same control roles.

        The order of `get_vocab()`, chat templates, padding, truncation and `model_max_length` do not matter, nor do the
        pad and unk roles: setting a pad token changes no id of any text.
        """
        digest = hashlib.sha256()

        def add(part: bytes) -> None:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)

        add(self.family.encode())
        add(array("q", [len(data) if data else 0 for data in self.token_bytes]).tobytes())
        add(b"".join([data for data in self.token_bytes if data]))
        add(repr(sorted(self.controls.content.items())).encode("utf-8", "surrogatepass"))
        add(repr((self.controls.bos_id, self.controls.eos_id, sorted(self.controls.control_ids))).encode())
        for part in self._fingerprint_parts():
            add(part)
        return digest.hexdigest()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(family={self.family!r}, vocab_size={self.vocab_size}, loss={self.loss!r})"
