"""Control tokens: which ids they are, which role they play, what they become on the other side."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uag.adapters.base import TokenizerAdapter

# Many vocabularies hold control tokens that were never flagged as special (Whisper's timestamps, DeepSeek's turns).
_CONTROL_SHAPE = re.compile(
    r"<\|[^<>|\s]+\|>|<｜[^<>｜]+｜>|</?s>|<(unk|pad|bos|eos|mask|cls|sep)>|\[(PAD|UNK|CLS|SEP|MASK|BOS|EOS)\]"
    r"|<(start|end)_of_(turn|image)>|\[/?INST\]",
)

# What a control token means, by the names in use. The first name that the other side has is taken.
_START_OF_TEXT = ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<｜begin▁of▁sentence｜>", "[BOS]")
_END_OF_TEXT = (
    "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>", "<|eos|>", "[EOS]",
)  # fmt: skip
_END_OF_TURN = (
    "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<turn|>", "<|end|>", "<|EOT|>", "<|eot|>", "<|end_of_turn|>",
    "<|eom_id|>",
)  # fmt: skip
_START_OF_TURN = ("<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "<|turn>", "<|start|>", "<|start_of_role|>")
_END_OF_HEADER = ("<|end_header_id|>", "<|message|>", "<|end_of_role|>", "<|im_middle|>")
_ROLES = {
    "system": ("<|system|>", "<|System|>", "[SYSTEM_PROMPT]"),
    "user": ("<|user|>", "<|User|>", "<｜User｜>", "[INST]"),
    "assistant": ("<|assistant|>", "<|Assistant|>", "<｜Assistant｜>", "[/INST]"),
}
_MARKERS = frozenset(
    (*_START_OF_TEXT, *_END_OF_TEXT, *_END_OF_TURN, *_START_OF_TURN, *_END_OF_HEADER, *sum(_ROLES.values(), ()))
)
"""Names that mean the same wherever they are used, whatever role (BOS, EOS, padding) a tokenizer gives them: SmolLM2's
BOS is `<|im_start|>`, Qwen's padding `<|endoftext|>`."""

_ROLE_NAMES = {"<start_of_turn>": {"assistant": "model"}}
"""Gemma's name of a role, by its marker; the others take the common ones."""

_ALONE = ("[INST]", "[/INST]")
"""Mistral's markers, behind which no line break follows; the second ends the user's turn, too, without another sign."""


@dataclass(frozen=True)
class ControlRoles:
    """The control tokens of one tokenizer.

    Attributes:
        bos_id: Begin of text, or None.
        eos_id: End of text or turn, or None.
        pad_id: Padding, or None.
        unk_id: Unknown text, or None.
        control_ids: Every id that stands for no text.
        content: Their strings.
    """

    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    unk_id: int | None
    control_ids: frozenset[int]
    content: Mapping[int, str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "content", MappingProxyType(dict(self.content)))


def is_control_name(content: str) -> bool:
    """Whether an added token that is not flagged as special still has a control token's shape."""
    return _CONTROL_SHAPE.fullmatch(content) is not None


def find_controls(tokenizer: Any) -> ControlRoles:
    """Find the control tokens of a Hugging Face tokenizer from what it holds now."""
    content: dict[int, str] = {}
    for token_id, token in tokenizer.added_tokens_decoder.items():
        if token.special or is_control_name(token.content):
            content[int(token_id)] = token.content
    for token_id, text in zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True):
        if token_id is not None:
            content[int(token_id)] = str(text)
    return ControlRoles(
        bos_id=_checked(tokenizer.bos_token_id, content),
        eos_id=_checked(tokenizer.eos_token_id, content),
        pad_id=_checked(tokenizer.pad_token_id, content),
        unk_id=_checked(tokenizer.unk_token_id, content),
        control_ids=frozenset(content),
        content=content,
    )


def _checked(token_id: int | None, content: Mapping[int, str]) -> int | None:
    return token_id if token_id in content else None


def map_controls(source: TokenizerAdapter, destination: TokenizerAdapter) -> dict[int, tuple[int, ...]]:
    """Map every control id of `source` to the ids that say the same in `destination`.

    In this order: a chat marker, begin or end of text of the same name; the destination's own marker of the same
    meaning; the same role (EOS to EOS, BOS to BOS, pad and unk to nothing); any control token of the same name; and
    last the name as plain text.
    """
    control_ids = sorted(source.controls.control_ids)
    return {token_id: _map_one(token_id, source.controls, destination) for token_id in control_ids}


def _map_one(token_id: int, roles: ControlRoles, destination: TokenizerAdapter) -> tuple[int, ...]:
    content = roles.content[token_id]
    there = destination.controls
    by_name = {text: other_id for other_id, text in sorted(there.content.items(), reverse=True)}
    if content in _MARKERS and content in by_name:
        return (by_name[content],)
    # One id may play several roles (GPT-2's <|endoftext|> is BOS, EOS and unk): what ends a text matters most. It ends
    # turns, too, where there is no marker for that (Mistral's </s>); then it is what the other side's EOS is.
    is_end = content not in _END_OF_TURN and not (content in _END_OF_TEXT and _ends_turns(roles))
    if token_id == roles.eos_id and there.eos_id is not None and is_end:
        return (there.eos_id,)
    meaning = _map_meaning(content, by_name, destination)
    if meaning is not None:
        return meaning
    if token_id == roles.bos_id and content not in _START_OF_TURN:
        return _begin(there)
    if token_id in (roles.pad_id, roles.unk_id):
        return ()
    if content in by_name:
        return (by_name[content],)
    return tuple(destination.encode_continuation(content.encode("utf-8", "replace")))


def _ends_turns(roles: ControlRoles) -> bool:
    """Whether a tokenizer has a marker that ends turns."""
    return not set(_END_OF_TURN).isdisjoint(roles.content.values())


def _begin(there: ControlRoles) -> tuple[int, ...]:
    """Return what begins a text; nothing where that would open a turn, as SmolLM2's BOS does."""
    bos_id = there.bos_id
    return () if bos_id is None or there.content[bos_id] in _START_OF_TURN else (bos_id,)


def _map_meaning(content: str, by_name: Mapping[str, int], destination: TokenizerAdapter) -> tuple[int, ...] | None:
    """Return the other side's ids for a marker; None where it has nothing that means this."""

    def first(names: tuple[str, ...]) -> tuple[int, ...]:
        return next(((by_name[name],) for name in names if name in by_name), ())

    if content in _END_OF_TEXT or content in _END_OF_TURN:
        eos_id = destination.controls.eos_id
        names: tuple[str, ...] = _END_OF_TEXT if content in _END_OF_TEXT else _END_OF_TURN
        if eos_id is not None and destination.controls.content[eos_id] in names:
            return (eos_id,)  # of several ends the one in use: Phi-3 has </s> beside <|endoftext|>
        return first(names) or (None if eos_id is None else (eos_id,))
    start = first(_START_OF_TURN)
    if content in _START_OF_TURN:
        return start or None
    if content in _END_OF_HEADER and start:
        return first(_END_OF_HEADER)  # ChatML has none: its header ends with the line break that follows as text
    for role, names in _ROLES.items():
        if content in names:
            opening = first(names) or (_header(role, start, first(_END_OF_HEADER), destination) if start else ())
            if not opening or content not in _ALONE:
                return opening or None
            line = tuple(destination.encode_continuation(b"\n"))
            ended = (*first(_END_OF_TURN), *line) if content == "[/INST]" else ()
            return (*ended, *opening, *line)
    return None


def _header(role: str, start: tuple[int, ...], end: tuple[int, ...], destination: TokenizerAdapter) -> tuple[int, ...]:
    """Spell a marker that names a role as a header of the destination's: its start, the role's name, its end."""
    name = _ROLE_NAMES.get(destination.controls.content[start[0]], {}).get(role, role)
    return (*start, *destination.encode_continuation(name.encode()), *end)
