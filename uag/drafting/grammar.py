"""Forced tokens: what must follow by the grammars of llguidance and xgrammar is a free candidate.

A logits processor that keeps matchers of these libraries is called as every other that uag does not know: once in each
output step, in order, never after a rejected candidate. So its matchers stand before the last output token, and need no
rewinding. A copy of a matcher reads that token, and then the library's own look-ahead says what must follow.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from uag.adapters import encode_after
from uag.drafting.drafter import Ask
from uag.drafting.ranked import AcceptanceRates, FreeSource
from uag.hf.processors import unknown_processors

_PRIORS = (0.99, 0.7, 0.9)
"""Initial acceptance rates: inside forced text, its last token, which later text may lengthen, and the output's end."""

_INSIDE, _LAST, _END = range(len(_PRIORS))


class GrammarTokens(FreeSource):
    """Candidates that the grammars in a call's logits processors force.

    Args:
        processors: those that may keep a matcher for each row.
        num_rows: number of rows of the batch.
        find_adapter: returns the adapter of the target's tokenizer, or None.
    """

    source = "constraint"

    def __init__(self, processors: Sequence[Any], num_rows: int, find_adapter: Callable[[], Any]) -> None:
        super().__init__(AcceptanceRates(_PRIORS))
        self._processors, self._num_rows, self._find_adapter = processors, num_rows, cache(find_adapter)
        self._ids: list[list[int]] = []  # of each row

    @classmethod
    def of(cls, processors: Sequence[Any], *arguments: Any) -> "list[GrammarTokens]":
        """Return the source of a call; none if none of its processors can have a matcher."""
        unknown = unknown_processors(processors) if {"llguidance", "xgrammar"} & sys.modules.keys() else []
        return [cls(unknown, *arguments)] if unknown else []

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Any = None) -> None:  # noqa: ARG002
        self._ids = [list(prompt) for prompt in prompts]

    def _written(self, row: int, output_ids: Sequence[int], num_right: int) -> None:  # noqa: ARG002
        self._ids[row] += output_ids

    def _candidates(self, row: int, num: int, ask: Ask) -> tuple[list[int], list[int]]:
        matchers, written = self._matchers(), self._ids[row]
        if not matchers:
            return [], []
        copy = (_Guidance if hasattr(matchers[row], "compute_ff_tokens") else _XGrammar)(matchers[row])
        if not copy.read(written[-1:]):  # its processor uses it in another way
            return [], []
        ids, text = copy.forced()
        levels = [_INSIDE] * len(ids)
        if (adapter := self._find_adapter()) is not None:
            rest, _ = encode_after(adapter, [*written, *ids], text)
            ids, levels = ids + rest, levels + [_INSIDE] * (len(rest) - 1) + [_LAST] * bool(rest)
            eos_id = adapter.controls.eos_id
            if eos_id is not None and eos_id in ask.stop_ids and copy.read(rest) and copy.is_complete():
                ids, levels = [*ids, eos_id], [*levels, _END]
        return ids[:num], levels[:num]

    def _matchers(self) -> Sequence[Any]:
        """Return the matchers of the first processor that has one for each row, which it may make in its first step."""
        for processor in self._processors:
            for value in getattr(processor, "__dict__", {}).values():
                matchers = value if isinstance(value, list | tuple) else [value]
                if len(matchers) == self._num_rows and all(map(_is_matcher, matchers)):
                    return matchers
        return ()


def _is_matcher(value: Any) -> bool:
    return hasattr(value, "compute_ff_tokens") or hasattr(value, "find_jump_forward_string")


class _Guidance:
    """A copy of an `llguidance.LLMatcher`: reads ids while the grammar allows them, and looks ahead."""

    def __init__(self, matcher: Any) -> None:
        self._copy = matcher.deep_copy()
        self.is_complete = self._copy.is_stopped

    def read(self, ids: Sequence[int]) -> bool:
        return bool(self._copy.try_consume_tokens(ids) == len(ids))

    def forced(self) -> tuple[list[int], bytes]:
        """Read the forced tokens that no later text can change, and return them and the forced text after them."""
        ids: list[int] = self._copy.compute_ff_tokens()
        self.read(ids)
        return ids, self._copy.compute_ff_bytes()


class _XGrammar:
    """The same for an `xgrammar.GrammarMatcher`, whose text is complete where it may also go on."""

    def __init__(self, matcher: Any) -> None:
        self._copy = matcher.fork()
        self.is_complete = self._copy.is_completed

    def read(self, ids: Sequence[int]) -> bool:
        return all(not self._copy.is_terminated() and self._copy.accept_token(token_id) for token_id in ids)

    def forced(self) -> tuple[list[int], bytes]:
        try:
            return [], b"" if self._copy.is_terminated() else self._copy.find_jump_forward_string().encode()
        except UnicodeDecodeError as error:  # the text ends within a character
            return [], error.object
