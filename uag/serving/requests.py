"""Checks of requests before they reach transformers' server, which answers invalid ones with a bare 500."""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

COMPLETION, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"


def _is_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and value != ""


def _is_config(text: Any) -> bool:
    try:  # early exit changes the number of layers in the shared target's config, and not back if the call fails
        value = json.loads(text) if isinstance(text, str) else None
        return isinstance(value, dict) and not value.get("assistant_early_exit")
    except ValueError:
        return False


def _number(least: float, most: float = sys.float_info.max) -> Callable[[Any], bool]:
    return lambda v: type(v) in (int, float) and least <= v <= most


_NUM_TOKENS = (lambda v: type(v) is int and v >= 1, "a whole number of 1 or more")
_ONE = (lambda v: v == 1, "1: the server returns one choice")
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_tokens": _NUM_TOKENS,
    "max_completion_tokens": _NUM_TOKENS,
    "max_output_tokens": _NUM_TOKENS,
    "temperature": (_number(0), "a number of 0 or more"),
    "top_p": (_number(0, 1), "a number from 0 to 1"),
    "frequency_penalty": (_number(-0.999), "a number above -1"),
    "seed": (lambda v: type(v) is int and -(1 << 63) <= v < 1 << 64, "a whole number from -2**63 to 2**64 - 1"),
    "stream": (lambda v: isinstance(v, bool), "true or false"),
    "stop": (
        lambda v: _is_text(v) or (isinstance(v, list) and all(map(_is_text, v))),
        "a text or a list of texts, none of them empty",
    ),
    "suffix": (lambda v: isinstance(v, str), "a text"),
    "generation_config": (_is_config, "the JSON of an object without assistant_early_exit, as a text"),
    "instructions": (lambda v: isinstance(v, str), "a text"),
    "chat_template_kwargs": (
        lambda v: isinstance(v, dict) and "chat_template" not in v,
        "an object without a chat_template, which would run on the server",
    ),
    "logit_bias": (
        lambda v: isinstance(v, dict) and all(str(k).isdecimal() and _number(-100)(b) for k, b in v.items()),
        "an object that maps token ids to numbers",
    ),
    "n": _ONE,
    "best_of": _ONE,
    "logprobs": (lambda v: v is False, "left out: the server returns no log probabilities"),
    "top_logprobs": (lambda v: v == 0, "left out: the server returns no log probabilities"),
    "echo": (lambda v: v is False, "left out: the server does not repeat prompts"),
    "presence_penalty": (lambda v: v == 0, "left out: the server does not support it"),
}
"""For each field: a check of its value, which null always passes, and a description of valid values."""


class RequestCheck:
    """Finds out why a request is invalid.

    `processor` is what transformers' server tokenizes conversations with: a tokenizer, or a processor of other media.
    """

    def __init__(self, tokenizer: Any, processor: Any, max_prompt_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._processor = processor
        self._max_prompt_tokens = max_prompt_tokens
        # A text of more characters has more tokens: none is longer than the longest string of the vocabulary.
        self._most_characters = max_prompt_tokens * max(map(len, tokenizer.get_vocab()), default=1)

    def problem(self, path: str, data: bytes) -> str:
        """Return one sentence about what is wrong with the body of a request to a path, or an empty string."""
        try:
            body = json.loads(data)
            json.dumps(body, ensure_ascii=False).encode()  # lone surrogates cannot be encoded
        except (ValueError, RecursionError) as error:
            return f"The body is not valid JSON in UTF-8: {error}."
        if not isinstance(body, dict):
            return "The body must be a JSON object."
        for name, (is_valid, expected) in _RULES.items():
            value = body.get(name)
            if value is not None and not is_valid(value):
                return f"{name}={value!r:.80} must be {expected}."
        if path == COMPLETION:
            prompt = body.get("prompt")
            return self._of_text(prompt) if _is_text(prompt) else "prompt must be a text that is not empty."
        return self._of_messages(body) if path == CHAT else self._of_input(body)

    def _of_input(self, body: Mapping[str, Any]) -> str:
        given: Any = body.get("input")
        items = given if isinstance(given, list) else []
        if not (_is_text(given) or items) or not all(isinstance(item, dict) for item in items):
            return "input must be a text or a list of objects, neither of them empty."
        if not any("role" in item for item in items):
            given = [{"role": "user", "content": given}]
        if not all("role" in item for item in given):
            return ""  # calls of tools, which transformers converts
        system = [{"role": "system", "content": text}] if (text := body.get("instructions")) else []
        return self._of_messages({**body, "messages": [*system, *given]})

    def _of_messages(self, body: Mapping[str, Any]) -> str:
        from transformers.cli.serving.utils import BaseHandler, Modality

        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            return "messages must be a list of at least one message."
        if not getattr(self._processor, "chat_template", None):
            return f"The target has no chat template. Send a prompt to {COMPLETION} instead."
        if not isinstance(self._processor, PreTrainedTokenizerBase):
            return ""  # the number of tokens depends on the media
        options = body.get("chat_template_kwargs") or {}
        try:
            inputs = BaseHandler.get_processor_inputs_from_messages(messages, Modality.LLM)
            text = self._processor.apply_chat_template(
                inputs, tools=body.get("tools"), tokenize=False, add_generation_prompt=True, **options
            )
        except (ValueError, TypeError, KeyError, AttributeError, TemplateError) as error:
            return f"messages cannot be read by the target's chat template: {error!r:.200}."
        return self._of_text(text, add_special_tokens=False)

    def _of_text(self, text: str, **options: Any) -> str:
        is_long = len(text) > self._most_characters  # encoding megabytes would block the server
        num_tokens = 0 if is_long else len(self._tokenizer(text, **options)["input_ids"])
        if is_long or num_tokens > self._max_prompt_tokens:
            return f"The prompt is too long: the server accepts at most {self._max_prompt_tokens:,} tokens."
        return "" if num_tokens else "The prompt has no tokens."


def complete(config: Any, default: Any) -> None:
    """Give the generation config of a request the meaning of OpenAI's API, where transformers' server does not.

    Empty stop strings and biases are none, and a temperature samples unless the request says otherwise. `default` is
    the model's config.
    """
    for name in ("stop_strings", "sequence_bias"):
        setattr(config, name, getattr(config, name) or None)
    if config.temperature and config.temperature != default.temperature and config.do_sample == default.do_sample:
        config.do_sample = True
