"""Fields of requests that transformers' server ignores, runs or reads differently from OpenAI's API."""

import json
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from uag.structured import ANY_OBJECT

_EVERYWHERE = {"model", "stream", "stream_options", "temperature", "top_p", "seed", "generation_config"}
SERVED = {
    "/v1/completions": _EVERYWHERE | {"prompt", "max_tokens", "frequency_penalty", "stop"},
    "/v1/chat/completions": _EVERYWHERE
    | {"messages", "max_tokens", "max_completion_tokens", "frequency_penalty", "logit_bias", "stop", "tools"}
    | {"chat_template_kwargs"},
    "/v1/responses": _EVERYWHERE | {"input", "instructions", "max_output_tokens", "tools"},
}
"""The paths whose requests are checked, and the fields that their answers obey."""

HARMLESS = {
    *("metadata", "user", "store", "service_tier", "safety_identifier", "access_programs", "max_tool_calls"),
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "prediction"),
}
"""Fields that are ignored, since they do not change the answer."""

REFUSED: dict[str, Any] = {
    **{"n": 1, "best_of": 1, "echo": False, "suffix": "", "presence_penalty": 0, "logit_bias": {}},
    **{"logprobs": False, "top_logprobs": 0, "response_format": {"type": "text"}, "modalities": ["text"], "audio": {}},
    **{"functions": [], "function_call": ("auto", "none"), "tool_choice": ("auto", "none")},
    **{"parallel_tool_calls": (True, False), "reasoning_effort": "medium", "verbosity": "medium"},
    **{"moderation": None, "web_search_options": None, "background": False, "background_options": {}},
    **{"context_management": [], "conversation": None, "image": {}, "include": [], "previous_response_id": None},
    **{"prompt": None, "reasoning": {"effort": "medium"}, "truncation": "disabled"},
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
}
"""Fields that are refused, with the values that ask for nothing: alternatives are a tuple, and an object may lack keys.
None asks for nothing everywhere."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_stop(value: Any) -> bool:
    return all(isinstance(each, str) for each in (value if isinstance(value, list) else [value]))


def _is_prompt(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and len(value) == 1 and isinstance(value[0], str))


def _is_temperature(value: Any) -> bool:
    return _is_number(value) and (value == 0 or 1e-6 <= value <= 1e6)  # others would make logits infinite or NaN


_FEWEST = (lambda value: _is_whole(value) and value >= 1, "a whole number of 1 or more")
_VALID: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), _FEWEST),
    "seed": (lambda value: _is_whole(value) and -(1 << 63) <= value < 1 << 64, "a whole number of at most 64 bits"),
    "temperature": (_is_temperature, "0, or a number from 0.000001 to 1,000,000"),
    "top_p": (lambda value: _is_number(value) and 0 < value <= 1, "a number above 0, and at most 1"),
    "frequency_penalty": (lambda value: _is_number(value) and -1 < value < 1e6, "a number above -1, below 1,000,000"),
    "prompt": (_is_prompt, "a text, or a list of one text"),
    "stop": (_is_stop, "a text, or a list of texts"),
    "stream": (lambda value: isinstance(value, bool), "true or false"),
    **dict.fromkeys(("stream_options", "logit_bias"), (lambda value: isinstance(value, dict), "an object")),
}
"""Checks of values that transformers would convert, such as "false" to true, or refuse in the midst of a stream."""

_WITH_TOOLS: dict[str, Any] = {"tool_choice": "auto", "parallel_tool_calls": True}  # the same, for requests with tools

_TEXT = {"text", "input_text", "output_text"}
_SEEN = {"image_url", "input_image", "video_url"}
PARTS = {"LLM": _TEXT, "VLM": _TEXT | _SEEN, "MULTIMODAL": _TEXT | _SEEN | {"input_audio", "audio_url"}}
"""The parts of a message that transformers reads, for each kind of target; it drops the others."""

_DROPPED_OF_MESSAGES = ("audio", "function_call", "refusal")


def problem(data: bytes, path: str, modality: str = "LLM", chat_template: str = "", num_ids: int = 1 << 31) -> str:
    """Return why a request would be answered wrongly or harm the server, in one sentence; empty if it would not.

    `modality` is what transformers' server takes the target for, and `num_ids` the number of its logits. Other invalid
    requests are refused by transformers or uag.
    """
    try:
        body = json.loads(data)
        json.dumps(body, ensure_ascii=False).encode()  # lone surrogates would fail after the answer has begun
    except (ValueError, RecursionError) as error:
        return f"The body is not valid JSON in UTF-8: {error}."
    if not isinstance(body, dict):
        return "The body must be a JSON object."
    if schema_of(body, path) is not None:
        if body.get("tools"):
            return "response_format is not supported together with tools: leave one of them out."
        body = body | {"response_format": None}
    problems = chain(
        _of_fields(body, path),
        _of_biases(body.get("logit_bias"), num_ids),
        _of_tools(body.get("tools"), chat_template),
        _of_messages(body, PARTS.get(modality, _TEXT)),
        _of_extensions(body),
    )
    return next(problems, "")


def schema_of(body: dict[str, Any], path: str) -> Any:
    """Return the JSON schema that the answer to a chat must match; None for any text, and for formats not served."""
    asked = body.get("response_format") if path == "/v1/chat/completions" else None
    given = {name: value for name, value in asked.items() if value is not None} if isinstance(asked, dict) else {}
    match given:
        case {"type": "json_object", **others} if others.keys() <= {"schema"}:  # as llama.cpp and others take it
            return (others.get("schema") or ANY_OBJECT) if isinstance(others.get("schema", {}), dict) else None
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}, **others} if not others:
            return schema
    return None


def passed_on(body: dict[str, Any], path: str) -> dict[str, Any]:
    """Return what transformers' server gets of a request without nulls: the fields it serves, with OpenAI's defaults.

    Not the seed, which it would set while another request draws.
    """
    fields = {name: value for name, value in body.items() if name in SERVED[path] - {"seed"}}
    if isinstance(prompts := fields.get("prompt"), list):
        fields["prompt"] = prompts[0]
    if most := fields.pop("max_completion_tokens", None):
        fields["max_tokens"] = most  # the only name that early releases of transformers' server know
    if biases := fields.get("logit_bias"):
        fields["logit_bias"] = {id_: float(bias) for id_, bias in biases.items()}
    if path == "/v1/responses":
        fields["parallel_tool_calls"] = body.get("parallel_tool_calls") is not False  # part of the answer
    return {"stream": False} | fields


def _of_fields(body: dict[str, Any], path: str) -> Iterator[str]:
    refused = REFUSED | (_WITH_TOOLS if body.get("tools") else {})
    for name, value in body.items():
        default = refused.get(name)
        if name not in SERVED[path] | HARMLESS and not _asks_nothing(value, default):
            one = default[0] if isinstance(default, tuple) else default
            other = "" if one is None else f", or send {json.dumps(one)}"
            yield f"{name}={json.dumps(value):.80} is not supported: leave it out{other}."
        is_valid, expected = _VALID.get(name, (lambda _: True, ""))
        if value is not None and not is_valid(value):
            yield f"{name}={json.dumps(value):.80} must be {expected}."


def _of_biases(biases: Any, num_ids: int) -> Iterator[str]:
    for id_, bias in biases.items() if isinstance(biases, dict) else ():
        is_id = id_.isascii() and id_.isdigit() and len(id_) < 10 and int(id_) < num_ids
        if not (is_id and _is_number(bias) and abs(bias) <= 1e30):
            pair = json.dumps({id_: bias})
            yield f"logit_bias has {pair:.80}: send ids from 0 to {num_ids - 1}, and finite numbers."


def _of_messages(body: dict[str, Any], parts: set[str]) -> Iterator[str]:
    messages = _messages(body)
    if body.get("instructions") and messages and messages[0].get("role") == "system":
        yield "instructions would replace the first message, which is the system's, too: send one of them."
    for message in messages:
        for name in _DROPPED_OF_MESSAGES:
            if message.get(name):
                yield f"A message's {name} is not supported."
        for part in _objects(message.get("content") or message.get("output")):
            if not isinstance(kind := part.get("type"), str) or kind not in parts:
                yield f"This target does not read parts of the type {kind!r:.80}: send {', '.join(sorted(parts))}."


def _of_extensions(body: dict[str, Any]) -> Iterator[str]:
    try:
        if "chat_template" in (body.get("chat_template_kwargs") or ()):
            yield "chat_template_kwargs must not have a chat_template, which would run on the server."
        config = json.loads(body.get("generation_config") or "{}")
        # Early exit changes the number of layers in the config that requests share, and not back after an error.
        if "assistant_early_exit" in config:
            yield "generation_config must not have assistant_early_exit."
        if config.get("num_return_sequences", 1) not in (1, None):
            yield "generation_config must not have num_return_sequences, since one sequence is returned."
    except (TypeError, ValueError, AttributeError) as error:
        yield f"chat_template_kwargs must be an object, and generation_config the JSON of one, as a text: {error}."


def _asks_nothing(value: Any, default: Any) -> bool:
    if isinstance(default, tuple):
        return value is None or any(_asks_nothing(value, each) for each in default)
    if isinstance(default, dict) and isinstance(value, dict):
        return all(_asks_nothing(each, default.get(name)) for name, each in value.items())
    # logprobs=0 asks for the chosen tokens' values, and logprobs=False for none
    return value is None or (value == default and isinstance(value, bool) == isinstance(default, bool))


def _of_tools(tools: Any, chat_template: str) -> Iterator[str]:
    if tools and "tools" not in chat_template:
        yield "The target's chat template has no place for tools: leave tools out."
    for tool in _objects(tools):
        if (kind := tool.get("type", "function")) != "function":
            yield f"Tools of the type {kind!r:.80} are not supported: send functions."
        function = tool.get("function")
        if tool.get("strict") or (isinstance(function, dict) and function.get("strict")):
            yield "strict=true is not supported for a tool, since arguments are not checked: leave it out."


def _messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a chat or a response; items without a role are one message's parts if the first one is."""
    items = _objects(body.get("input"))
    if items and "role" not in items[0]:
        return [{"content": items}]
    return _objects(body.get("messages")) + [item for item in items if item.get("type") != "reasoning"]


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def complete(config: Any, body: dict[str, Any]) -> None:
    """Give the generation config of a request the meaning of OpenAI's API, where transformers' server does not.

    Empty stop strings and biases are none, and a temperature or top_p samples unless the request says otherwise.
    """
    if isinstance(config.stop_strings, list):
        config.stop_strings = [each for each in config.stop_strings if each != ""]
    for name in ("stop_strings", "sequence_bias"):
        setattr(config, name, getattr(config, name) or None)
    asked = json.loads(body.get("generation_config") or "{}") | body
    temperature, top_p = asked.get("temperature"), asked.get("top_p")
    if asked.get("do_sample") is None and (top_p is not None if temperature is None else temperature):
        config.do_sample = True
        config.temperature = config.temperature or 1.0
