"""Fields of requests that transformers' server ignores, runs or reads differently from OpenAI's API."""

import json
from typing import Any

_IGNORED = {"n": 1, "best_of": 1, "logprobs": False, "top_logprobs": 0, "echo": False, "presence_penalty": 0}
"""Fields that transformers' server ignores, with the value for which that is right."""


def problem(data: bytes) -> str:
    """Return why a request would be answered wrongly or harm the server, in one sentence; empty if it would not.

    All other invalid requests are refused by transformers or by uag.
    """
    try:
        body = json.loads(data)
        json.dumps(body, ensure_ascii=False).encode()  # lone surrogates would fail after the answer has begun
    except (ValueError, RecursionError) as error:
        return f"The body is not valid JSON in UTF-8: {error}."
    if not isinstance(body, dict):
        return "The body must be a JSON object."
    for name, value in _IGNORED.items():
        if body.get(name) not in (None, value):
            return f"{name}={body[name]!r:.80} is not supported: leave it out, or send {json.dumps(value)}."
    try:
        if "chat_template" in (body.get("chat_template_kwargs") or ()):
            return "chat_template_kwargs must not have a chat_template, which would run on the server."
        # Early exit changes the number of layers in the config that requests share, and not back after an error.
        if "assistant_early_exit" in json.loads(body.get("generation_config") or "{}"):
            return "generation_config must not have assistant_early_exit."
    except (TypeError, ValueError) as error:
        return f"chat_template_kwargs must be an object, and generation_config the JSON of one, as a text: {error}."
    return ""


def complete(config: Any, default: Any) -> None:
    """Give the generation config of a request the meaning of OpenAI's API, where transformers' server does not.

    Empty stop strings and biases are none, and a temperature samples unless the request says otherwise. `default` is
    the model's config.
    """
    for name in ("stop_strings", "sequence_bias"):
        setattr(config, name, getattr(config, name) or None)
    if config.temperature and config.temperature != default.temperature and config.do_sample == default.do_sample:
        config.do_sample = True
