"""One sequence from the draft's side: the tokens that were fed, and the continuations that a search tried."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from uag.proposal import Proposal

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


class Node:
    """One draft token in the tree of continuations that were run through the draft.

    Attributes:
        text: the bytes it covers; empty for control tokens.
        end: offset in the row's text where its text ends.
        depth: number of draft tokens before it in the row.
        probs: [draft_vocab_size] float32, the draft's distribution after this token; None if it was not kept.
        log_normalizer: logsumexp of the logits of `probs`.
        children: continuations by draft id.
    """

    __slots__ = ("children", "depth", "draft_id", "end", "log_normalizer", "parent", "probs", "text")

    def __init__(self, parent: Node | None, draft_id: int, text: bytes, end: int) -> None:
        self.parent = parent
        self.draft_id = draft_id
        self.text = text
        self.end = end
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.probs: FloatArray | None = None
        self.log_normalizer = 0.0
        self.children: dict[int, Node] = {}

    @property
    def valid_probs(self) -> FloatArray | None:
        """Its distribution; None if it was not kept, or is NaN because the pass overflowed."""
        return None if self.probs is None or math.isnan(self.probs.item(0)) else self.probs


class HasPath(Protocol):
    """The part of a row that the draft model needs: the tokens that were requested, in order."""

    path: list[Node]


@dataclass(slots=True)
class Feed:
    """A request for a draft pass: `keep` tokens of the row's path, followed by a chain of `nodes`."""

    keep: int
    nodes: list[Node]


Search = Generator[Feed, None, Proposal | None]


@dataclass(slots=True)
class DraftRow:
    """One sequence from the draft's side.

    `text` are the bytes of the committed target tokens, including the current candidates, and `path` the draft tokens
    that were requested, in order. The search never steps back from depth `barrier`: a control token or rewritten text.
    `forced` draft tokens must be fed before anything else.
    """

    text: bytearray = field(default_factory=bytearray)
    path: list[Node] = field(default_factory=list)
    barrier: int = 0
    forced: list[Node] = field(default_factory=list)
    last_target_text: bytes = b""

    def tail(self, end: int | None = None) -> int:
        """Return the position in `path` of the last token that ends within the committed text, or by offset `end`."""
        end, position = len(self.text) if end is None else end, len(self.path) - 1
        while self.path[position].end > end:
            position -= 1
        return position

    def truncate_path(self, valid_bytes: int) -> None:
        """Remove the draft tokens that contradict the text, which changed from offset `valid_bytes` on."""
        path, text = self.path, self.text
        size = len(text)
        start = len(path)
        while start > 0 and path[start - 1].end > valid_bytes:
            start -= 1
        for position in range(start, len(path)):
            node = path[position]
            begin = node.end - len(node.text)
            committed = text[begin : min(node.end, size)]
            if node.text[: len(committed)] != committed:
                if position:
                    path[position - 1].children.pop(node.draft_id, None)
                del path[position:]
                return


def forget_before(path: list[Node], num_kept: int) -> None:
    """Free distributions and side branches of all but the last `num_kept` draft tokens."""
    position = len(path) - num_kept - 1
    while position >= 0 and (path[position].probs is not None or path[position].children):
        path[position].probs, path[position].children = None, {}
        position -= 1


def link(nodes: list[Node], parent: Node | None = None) -> list[Node]:
    """Chain nodes after `parent` and return them."""
    for node in nodes:
        node.parent = parent
        node.depth = 0 if parent is None else parent.depth + 1
        parent = node
    return nodes
