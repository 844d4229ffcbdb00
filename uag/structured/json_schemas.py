"""Logits processors of llguidance or xgrammar, whichever is installed, under which a target writes JSON of a schema."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from transformers import LogitsProcessor

from uag import forks
from uag.errors import OptionError
from uag.hf import models

ANY_OBJECT: dict[str, Any] = {"type": "object"}
"""The JSON schema of every object."""


class GuidanceProcessor(LogitsProcessor):
    """Masks what a grammar of an `llguidance.LLTokenizer` excludes, in one call; llguidance has no processor itself."""

    def __init__(self, tokenizer: Any, grammar: str) -> None:
        self._tokenizer, self._grammar = tokenizer, grammar
        self.matchers: list[Any] = []  # one for each row, from the first step on

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return a copy of the scores [batch_size, vocab_size] in which excluded tokens have minus infinity."""
        from llguidance import LLMatcher

        for matcher, token_id in zip(self.matchers, input_ids[:, -1].tolist(), strict=False):
            if not matcher.is_stopped():  # ended rows get padding
                matcher.consume_token(token_id)
        self.matchers = self.matchers or [LLMatcher(self._tokenizer, self._grammar, log_level=0) for _ in input_ids]
        if error := next(filter(None, (matcher.get_error() for matcher in self.matchers)), ""):
            raise RuntimeError(f"llguidance: {error}")
        allowed = [torch.frombuffer(bytearray(each.compute_logit_bias()), dtype=torch.uint8) for each in self.matchers]
        mask = torch.stack(allowed)[:, : scores.shape[-1]].to(scores.device) == 0
        return scores.masked_fill(mask, -torch.inf)


class JsonSchemas:
    """Makes logits processors under which a target writes JSON, laid out as `json.dumps` does: one way for each value.

    Args:
        tokenizer: the target's tokenizer, whose vocabulary is read once, in seconds if it is large.
        model: the target.
        library: "llguidance" or "xgrammar"; None for the first one that is installed.

    Raises:
        ImportError: the library is not installed, or none is.
        OptionError: there is no such library.
    """

    def __init__(self, tokenizer: Any, model: Any, library: str | None = None) -> None:
        if library is not None and library not in _MAKERS:
            raise OptionError(f"library is {library!r}, it must be one of {', '.join(_MAKERS)}")
        eos_ids = model.generation_config.eos_token_id
        eos_ids = [eos_ids] if isinstance(eos_ids, int) else eos_ids
        for make in [_MAKERS[library]] if library else _MAKERS.values():
            with suppress(ImportError):
                self._make = make(tokenizer, max(models.head_size(model), len(tokenizer)), eos_ids)
                return
        missing = (library or "llguidance or xgrammar", library or "llguidance")
        raise ImportError("JSON of a schema needs {}. Install it: pip install {}".format(*missing))

    def processor(self, schema: Mapping[str, Any] = ANY_OBJECT) -> LogitsProcessor:
        """Return the logits processor of one call of `generate`, with any number of rows.

        Raises:
            OptionError: the JSON schema is invalid, or has what the library does not support.
        """
        try:
            return self._make(json.dumps(schema))
        except (ValueError, TypeError, RuntimeError) as error:
            forks.let_pass(error)
            raise OptionError(f"The JSON schema cannot be used: {str(error).strip()}") from error


def _with_llguidance(tokenizer: Any, size: int, eos_ids: Sequence[int] | None) -> Callable[[str], LogitsProcessor]:
    import llguidance.hf

    vocabulary = llguidance.hf.from_tokenizer(tokenizer, size, eos_ids)
    layout = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

    def make(schema: str) -> LogitsProcessor:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=layout)
        if problem := llguidance.LLMatcher.validate_grammar(grammar, vocabulary):
            raise ValueError(problem)
        return GuidanceProcessor(vocabulary, grammar)

    return make


def _with_xgrammar(tokenizer: Any, size: int, eos_ids: Sequence[int] | None) -> Callable[[str], LogitsProcessor]:
    import xgrammar

    vocabulary = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=size, stop_token_ids=eos_ids)
    compiler, make = xgrammar.GrammarCompiler(vocabulary), xgrammar.contrib.hf.LogitsProcessor
    return lambda schema: make(compiler.compile_json_schema(schema, any_whitespace=False, strict_mode=False))


_MAKERS = {"llguidance": _with_llguidance, "xgrammar": _with_xgrammar}
