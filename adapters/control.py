"""Control tokens: their ids and roles, and the corresponding tokens of another tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uag.adapters.base import TokenizerAdapter

_CONTROL_SHAPE = re.compile(
    r"<\|[^<>|\s]+\|>|<｜[^<>｜]+｜>|</?s>|<(unk|pad|bos|eos|mask|cls|sep)>|\[(PAD|UNK|CLS|SEP|MASK|BOS|EOS)\]"
    r"|<(start|end)_of_(turn|image)>|\[/?INST\]",
)
"""Names of control tokens, which many vocabularies do not flag as special (Whisper's timestamps, DeepSeek's turns)."""

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
"""Common names for each meaning, here and above. The first one that the destination tokenizer has is used."""

_MARKERS = frozenset(
    (*_START_OF_TEXT, *_END_OF_TEXT, *_END_OF_TURN, *_START_OF_TURN, *_END_OF_HEADER, *sum(_ROLES.values(), ()))
)
"""Names that mean the same in every tokenizer, regardless of their role (BOS, EOS, padding): SmolLM2's BOS is
`<|im_start|>`, Qwen's padding `<|endoftext|>`."""

_STANDALONE = ("[INST]", "[/INST]")
"""Mistral's markers, which no line break follows; the second also ends the user's turn."""


@dataclass(frozen=True)
class ControlRoles:
    """The control tokens of one tokenizer: ids of roles, all ids that represent no text, and their strings."""

    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    unk_id: int | None
    control_ids: frozenset[int]
    content: Mapping[int, str]


def find_controls(tokenizer: Any) -> ControlRoles:
    """Return the current control tokens of a Hugging Face tokenizer."""
    content: dict[int, str] = {}
    added = tokenizer.added_tokens_decoder
    for token_id, token in added.items() if isinstance(added, Mapping) else ():  # `MistralCommonBackend` lists none
        if token.special or _CONTROL_SHAPE.fullmatch(token.content):
            content[int(token_id)] = token.content
    for token_id, text in zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True):
        if token_id is not None:
            content[int(token_id)] = str(text)
    roles = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id)
    bos_id, eos_id, pad_id, unk_id = (token_id if token_id in content else None for token_id in roles)
    return ControlRoles(bos_id, eos_id, pad_id, unk_id, frozenset(content), content)


def map_controls(source: TokenizerAdapter, destination: TokenizerAdapter) -> dict[int, tuple[int, ...]]:
    """Map every control id of `source` to the ids with the same meaning in `destination`.

    First the same name of a chat marker, a begin or an end of text; then the destination's marker with the same
    meaning; the same role (pad and unk: nothing); any control token with the same name; the name as plain text.
    """
    roles, others = source.controls, sorted(destination.controls.content.items(), reverse=True)
    by_name = {text: other_id for other_id, text in others}
    return {token_id: _map_one(token_id, roles, by_name, destination) for token_id in sorted(roles.control_ids)}


def _map_one(
    token_id: int, roles: ControlRoles, by_name: Mapping[str, int], destination: TokenizerAdapter
) -> tuple[int, ...]:
    content, destination_roles = roles.content[token_id], destination.controls
    if content in _MARKERS and content in by_name:
        return (by_name[content],)
    # One id may have several roles (GPT-2's <|endoftext|> is BOS, EOS and unk); EOS takes precedence. Without a marker
    # for the end of a turn, EOS also ends turns (Mistral's </s>) and maps to the other tokenizer's EOS.
    has_turns = not set(_END_OF_TURN).isdisjoint(roles.content.values())
    is_end_of_turn = content in _END_OF_TURN or (content in _END_OF_TEXT and has_turns)
    if token_id == roles.eos_id and destination_roles.eos_id is not None and not is_end_of_turn:
        return (destination_roles.eos_id,)
    same_meaning = _map_meaning(content, by_name, destination)
    if same_meaning is not None:
        return same_meaning
    if token_id == roles.bos_id and content not in _START_OF_TURN:
        bos_id = destination_roles.bos_id  # SmolLM2's BOS opens a turn
        return () if bos_id is None or destination_roles.content[bos_id] in _START_OF_TURN else (bos_id,)
    if token_id in (roles.pad_id, roles.unk_id):
        return ()
    if content in by_name:
        return (by_name[content],)
    return tuple(destination.encode_continuation(content.encode("utf-8", "replace")))


def _map_meaning(content: str, by_name: Mapping[str, int], destination: TokenizerAdapter) -> tuple[int, ...] | None:

    def first(names: tuple[str, ...]) -> tuple[int, ...]:
        return next(((by_name[name],) for name in names if name in by_name), ())

    if content in _END_OF_TEXT or content in _END_OF_TURN:
        eos_id = destination.controls.eos_id
        names: tuple[str, ...] = _END_OF_TEXT if content in _END_OF_TEXT else _END_OF_TURN
        if eos_id is not None and destination.controls.content[eos_id] in names:
            return (eos_id,)  # Phi-3 has both </s> and <|endoftext|>: use its EOS
        return first(names) or (None if eos_id is None else (eos_id,))
    start = first(_START_OF_TURN)
    if content in _START_OF_TURN:
        return start or None
    if content in _END_OF_HEADER and start:
        return first(_END_OF_HEADER)  # ChatML has none: the line break that follows ends the header
    for role, names in _ROLES.items():
        if content in names:
            opening = first(names)
            if start and not opening:  # the role's name between the markers of a header
                is_gemma = destination.controls.content[start[0]] == "<start_of_turn>"
                name = "model" if is_gemma and role == "assistant" else role
                opening = (*start, *destination.encode_continuation(name.encode()), *first(_END_OF_HEADER))
            if not opening or content not in _STANDALONE:
                return opening or None
            line_break = tuple(destination.encode_continuation(b"\n"))
            ended = (*first(_END_OF_TURN), *line_break) if content == "[/INST]" else ()
            return (*ended, *opening, *line_break)
    return None
