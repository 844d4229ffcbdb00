"""Every field of OpenAI's requests is served, harmless to ignore, or refused."""

import importlib
import json
from typing import Any

import pytest
from transformers import GenerationConfig

from uag.serving.requests import HARMLESS, REFUSED, SERVED, complete, passed_on, problem, schema_of

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
PARAMS = {
    COMPLETIONS: ("openai.types.completion_create_params", "CompletionCreateParams"),
    CHAT: ("openai.types.chat.completion_create_params", "CompletionCreateParams"),
    RESPONSES: ("openai.types.responses.response_create_params", "ResponseCreateParams"),
}
TOOL = {"type": "function", "function": {"name": "f"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


def said(body: dict[str, Any], path: str = CHAT, **target: Any) -> str:
    return problem(json.dumps(body).encode(), path, **target)


@pytest.mark.parametrize("path", PARAMS)
def test_each_field_of_openais_list_was_decided(path: str) -> None:
    pytest.importorskip("openai", reason="uag[serve] is not installed")
    module, name = PARAMS[path]
    kinds = [getattr(importlib.import_module(module), name + kind) for kind in ("NonStreaming", "Streaming")]
    published = {field for kind in kinds for field in kind.__required_keys__ | kind.__optional_keys__}
    assert len(published) > 15
    assert published <= SERVED[path] | HARMLESS | REFUSED.keys(), "decide for these in uag/serving/requests.py"
    assert not SERVED[path] & HARMLESS
    for field in published:
        assert said({field: None}, path) == ""


def test_fields_that_answers_obey_are_fields_of_transformers_server() -> None:
    pytest.importorskip("openai", reason="uag[serve] is not installed")
    serving = "transformers.cli.serving."
    handlers = {
        COMPLETIONS: (serving + "completion", "CompletionHandler"),
        CHAT: (serving + "chat_completion", "ChatCompletionHandler"),
        RESPONSES: (serving + "response", "ResponseHandler"),
    }
    for path, (module, name) in handlers.items():
        handler = getattr(importlib.import_module(module), name)
        # Usage is always sent, and the limit is renamed.
        ignored = handler._unused_fields - {"stream_options", "max_completion_tokens"}
        assert not SERVED[path] & ignored, path
        assert SERVED[path] <= handler._valid_params_class.__mutable_keys__, path


WRONG: list[Any] = [1.5, True, "1", [], {}]  # for a whole number, and those behind the first one for any
BIASES: list[Any] = ["x", "3", None, True, [], float("inf"), 10**400]
ASKING: list[tuple[str, dict[str, Any]]] = [
    *((CHAT, {"response_format": {"type": kind}}) for kind in ("json_schema", "grammar", ["json_object"])),
    *((CHAT, {"response_format": {"type": "json_schema", "json_schema": each}}) for each in ({}, 3, {"schema": True})),
    (COMPLETIONS, {"response_format": {"type": "json_object"}}),
    (CHAT, {"response_format": {"type": "json_object"}, "tools": [TOOL]}),
    *((CHAT, {"response_format": {"type": kind, "schema": {}}}) for kind in ("text", "json_schema")),
    *((CHAT, {"response_format": {"type": "json_object", name: True}}) for name in ("schema", "json_schema", "strict")),
    (CHAT, {"functions": [{"name": "f"}], "function_call": {"name": "f"}}),
    (CHAT, {"function_call": {"name": "f"}}),
    *((CHAT, {"tool_choice": choice}) for choice in ("required", TOOL, {"type": "allowed_tools"}, 3)),
    *((CHAT, {"tools": [TOOL], "tool_choice": choice}) for choice in ("none", "required", TOOL)),
    (CHAT, {"tools": [TOOL], "parallel_tool_calls": False}),
    (CHAT, {"tools": [{"type": "custom", "custom": {"name": "f"}}]}),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}),
    *((CHAT, {name: True}) for name in ("logprobs", "echo", "moderation", "web_search_options")),
    (CHAT, {"top_logprobs": 5}),
    (CHAT, {"modalities": ["text", "audio"], "audio": {"voice": "x", "format": "wav"}}),
    (CHAT, {"presence_penalty": -0.5}),
    *((CHAT, {"n": n}) for n in (2, 0, "2", True)),
    *((CHAT, {name: "high"}) for name in ("reasoning_effort", "verbosity")),
    *((CHAT, {name: 1}) for name in ("min_tokens", "ignore_eos", "top_k", "guided_json", "suffix")),
    (CHAT, {"generation_config": '{"num_return_sequences": 2}'}),
    *((CHAT, {name: value}) for name in ("max_completion_tokens", "seed") for value in WRONG),
    *((COMPLETIONS, {name: value}) for name in ("temperature", "top_p") for value in WRONG[1:]),
    *((COMPLETIONS, {"top_p": value}) for value in (0, -0.5, 1.5, float("nan"))),
    *((COMPLETIONS, {"temperature": value, "stream": True}) for value in (1e-45, 1e308, float("inf"))),
    (COMPLETIONS, {"seed": 1 << 64}),
    (COMPLETIONS, {"frequency_penalty": 1e6}),
    *((CHAT, {"logit_bias": {"5": value}}) for value in BIASES),
    *((CHAT, {"logit_bias": {key: 1}}) for key in ("x", "-1", "99", "1.0", "\u0665", "\u00b2", "9" * 5000)),
    (CHAT, {"logit_bias": [1]}),
    *((CHAT, {"messages": [{"role": "user", "content": [{"type": kind}]}]}) for kind in (None, 3, ["text"])),
    (CHAT, {"stream_options": True}),
    *((COMPLETIONS, {"stop": value}) for value in [*WRONG[:2], ["a", None], {}]),
    *((COMPLETIONS, {name: -1}) for name in ("max_tokens", "temperature", "frequency_penalty")),
    *((COMPLETIONS, {"logprobs": num}) for num in (0, 1, True)),
    (COMPLETIONS, {"suffix": "b"}),
    *((COMPLETIONS, {"prompt": value}) for value in [*WRONG[:2], ["a", "b"], [3], [[3]], [], {}]),
    (RESPONSES, {"instructions": "x", "input": [{"role": "system", "content": "y"}]}),
    (COMPLETIONS, {"best_of": 2}),
    (COMPLETIONS, {"echo": True}),
    (COMPLETIONS, {"logit_bias": {"5": 3}}),
    (COMPLETIONS, {"messages": []}),
    (RESPONSES, {"text": {"format": {"type": "json_object"}}}),
    (RESPONSES, {"text": {"verbosity": "low"}}),
    (RESPONSES, {"tools": [{"type": "web_search"}]}),
    (RESPONSES, {"tools": [{"type": "function", "name": "f", "strict": True}]}),
    (RESPONSES, {"include": ["message.output_text.logprobs"]}),
    (RESPONSES, {"previous_response_id": "x"}),
    (RESPONSES, {"conversation": "x"}),
    (RESPONSES, {"truncation": "auto"}),
    (RESPONSES, {"background": True}),
    (RESPONSES, {"reasoning": {"effort": "high"}}),
    *((RESPONSES, {"input": [{"type": kind}]}) for kind in ("input_image", "input_file", "item_reference")),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
    (RESPONSES, {"input": [{"role": "user"}, {"type": "function_call_output", "output": [{"type": "input_image"}]}]}),
    *((CHAT, {"messages": [{"role": "user", "content": [part]}]}) for part in (IMAGE, {"type": "input_audio"})),
    (CHAT, {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "function_call": {"name": "f"}}]}),
]


SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}}
NAMED = {"name": "x", "schema": SCHEMA, "strict": True}
FORMATS: list[tuple[str, dict[str, Any], Any]] = [
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": NAMED}}, SCHEMA),
    (CHAT, {"response_format": {"type": "json_object"}}, {"type": "object"}),
    (CHAT, {"response_format": {"type": "json_object", "schema": None}}, {"type": "object"}),
    (CHAT, {"response_format": {"type": "json_object", "schema": SCHEMA}}, SCHEMA),
    (CHAT, {"response_format": {"type": "text"}}, None),
    (CHAT, {}, None),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, None),
    (COMPLETIONS, {"response_format": {"type": "json_object"}}, None),
]


@pytest.mark.parametrize(("path", "fields", "schema"), FORMATS)
def test_the_schema_of_an_answer(path: str, fields: dict[str, Any], schema: Any) -> None:
    assert schema_of(fields, path) == schema


@pytest.mark.parametrize(("path", "fields"), ASKING, ids=[json.dumps(fields)[:60] for _, fields in ASKING])
def test_what_is_not_served_is_refused_in_one_sentence(path: str, fields: dict[str, Any]) -> None:
    sentence = said(fields, path, chat_template="{{ tools }}", num_ids=99)
    assert sentence.endswith(".")
    assert len(sentence) < 200
    for streamed in (True, False):
        assert said(fields | {"stream": streamed}, path, chat_template="{{ tools }}", num_ids=99) == sentence


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (
            CHAT,
            {"response_format": {"type": "text"}, "tool_choice": "none", "n": 1, "logprobs": False, "functions": []},
        ),
        (CHAT, {"tools": [], "tool_choice": "auto", "modalities": ["text"], "presence_penalty": 0.0}),
        (CHAT, {"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": True}),
        (CHAT, {"parallel_tool_calls": False, "logit_bias": {"5": 3}, "stream_options": {"include_usage": True}}),
        (CHAT, dict.fromkeys(sorted(HARMLESS), "x") | {"stop": ["a"], "max_completion_tokens": 5}),
        (COMPLETIONS, {"suffix": "", "logit_bias": {}, "best_of": 1, "echo": False, "presence_penalty": 0}),
        (RESPONSES, {"text": {"format": {"type": "text"}}, "include": [], "truncation": "disabled"}),
        *((path, {**fields, "tools": []}) for path, fields, _ in FORMATS[:-2]),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]}),
        (
            RESPONSES,
            {
                "input": [
                    {"role": "user", "content": "x"},
                    {"type": "reasoning", "content": [{"type": "reasoning_text"}]},
                ]
            },
        ),
    ],
)
def test_what_asks_for_nothing_is_accepted(path: str, fields: dict[str, Any]) -> None:
    assert said(fields, path, chat_template="{{ tools }}") == ""


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        (COMPLETIONS, {"prompt": "x", "seed": 3, "suffix": "", "user": "me", "echo": False}, {"prompt": "x"}),
        (CHAT, {"logit_bias": {"5": 3}, "stream": True, "n": 1}, {"logit_bias": {"5": 3.0}, "stream": True}),
        (CHAT, {"max_completion_tokens": 5, "max_tokens": None}, {"max_tokens": 5}),
        (RESPONSES, {"input": "x"}, {"input": "x", "parallel_tool_calls": True}),
        (RESPONSES, {"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
    ],
)
def test_what_transformers_server_gets(path: str, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    passed = passed_on(fields, path)
    assert passed == {"stream": False} | expected
    assert all(isinstance(bias, float) for bias in passed.get("logit_bias", {}).values())


@pytest.mark.parametrize(
    ("body", "samples", "temperature"),
    [
        ({}, None, 0.7),
        ({"temperature": 0.7}, True, 0.7),  # the config's own
        ({"top_p": 0.9}, True, 0.7),
        ({"top_p": 0.9, "temperature": 0}, None, 0),
        ({"temperature": 0.7, "generation_config": '{"do_sample": false}'}, None, 0.7),
        ({"generation_config": '{"temperature": 0.7}'}, True, 0.7),
    ],
)
def test_what_samples(body: dict[str, Any], samples: bool | None, temperature: float) -> None:
    config = GenerationConfig(temperature=body.get("temperature", 0.7), stop_strings=["", "a"], sequence_bias={})
    complete(config, body)
    assert (config.do_sample, config.temperature) == (samples, temperature)
    assert (config.stop_strings, config.sequence_bias) == (["a"], None)


def test_top_p_samples_where_the_config_has_a_temperature_of_0() -> None:
    config = GenerationConfig(temperature=0.0)
    complete(config, {"top_p": 0.9})
    assert (config.do_sample, config.temperature) == (True, 1.0)


@pytest.mark.parametrize("value", ["false", 0, 1, []])
def test_a_request_that_may_want_a_stream_is_refused(value: Any) -> None:
    assert said({"stream": value}) == f"stream={json.dumps(value)} must be true or false."


def test_parts_and_tools_depend_on_the_target() -> None:
    image = {"messages": [{"role": "user", "content": [IMAGE]}]}
    assert said(image, modality="VLM") == ""
    audio = {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}
    assert "'input_audio'" in said(audio, modality="VLM")
    assert said(audio, modality="MULTIMODAL") == ""
    assert "no place for tools" in said({"tools": [TOOL]}, chat_template="{{ messages }}")
