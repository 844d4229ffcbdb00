"""`uag serve` in a process of its own, asked by the official client: plain decoding's text in every way."""

import json
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.conftest import ROOT
from tests.support.served import ENVIRONMENT, UAG, chat_target, plain_text
from uag.errors import LoadingError, OptionError
from uag.loading import demo_folder, load_model, load_tokenizer
from uag.serving import Server
from uag.serving.requests import HARMLESS, REFUSED, SERVED
from uag.serving.server import _with_contents
from uag.structured import JsonSchemas

openai = pytest.importorskip("openai", reason="uag[serve] is not installed")
pytest.importorskip("uvicorn", reason="uag[serve] is not installed")

CODE = "def read_lines(path):\n"
CHAT = [{"role": "user", "content": "def add(first, second):"}]
NEW = 16
POSITIONS = 128


class Running:
    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        port = ["--port", self.url.rpartition(":")[2]]
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [*UAG, "serve", name, "--draft", demo_folder("draft"), *port],
                stderr=stderr,
                env=ENVIRONMENT | {"HF_HOME": str(log.parent / "hub")},
            )
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=300)
        self.target = load_model(self.name)
        self.tokenizer = load_tokenizer(self.name)
        while not self._answers():
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            return bool(self.get("/health") == {"status": "ok"})
        except OSError:
            return False

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path) as response:
            return json.load(response)

    def counted(self, num_calls: int) -> Any:
        """Wait for the statistics of these calls: one is counted just after its last token was sent."""
        deadline = time.monotonic() + 20.0
        while (stats := self.get("/v1/uag/stats"))["num_calls"] != num_calls:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.1)  # until it is logged
        return stats

    def post(self, path: str, body: Any, content_type: str = "application/json") -> tuple[int, Any]:
        """Return the status of a request, and the JSON of an error, which transformers' bare 500 has not."""
        data = body if isinstance(body, bytes) else json.dumps({"model": self.name} | body).encode()
        request = urllib.request.Request(f"{self.url}/v1/{path}", data, {"Content-Type": content_type})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def complete(self, prompt: str | list[str] = CODE, **options: Any) -> Any:
        return self.client.completions.create(model=self.name, prompt=prompt, **{"max_tokens": NEW} | options)

    def plain(self, prompt: str = CODE, **options: Any) -> str:
        return plain_text(self.target, self.tokenizer, prompt, **{"max_new_tokens": NEW} | options)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of the demo pair; the target gets a chat template, and few layers and positions, to be soon exceeded."""
    folder = tmp_path_factory.mktemp("served")
    target = chat_target(folder / "target", max_position_embeddings=POSITIONS, num_hidden_layers=6)
    running = Running(target, folder / "log")
    yield running
    # Requests end with the server at their next token, and say so: a stream, and the one that waits for it.
    answer = running.complete(stream=True, max_tokens=100_000)
    next(answer)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(running.complete, max_tokens=100_000)
        served = psutil.Process(running.process.pid)
        while sum(each.status == psutil.CONN_ESTABLISHED for each in served.net_connections()) < 2:
            time.sleep(0.1)
        time.sleep(1.0)  # until the server has it
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(60) == 0
        with pytest.raises(openai.APIError, match="the server is shutting down"):
            assert sum(1 for _ in answer) < 100_000
        with pytest.raises(openai.InternalServerError, match="the server is shutting down"):
            waiting.result()
    log = running.log.read_text()
    assert "Finished server process" in log
    assert "Traceback" not in log


def test_a_completion_is_plain_decodings(server: Running) -> None:
    before = server.get("/v1/uag/stats")
    expected = server.plain()
    assert "".join(chunk.choices[0].text for chunk in server.complete(stream=True)) == expected
    answer = server.complete(stop=[], logit_bias={})  # empty, as clients of OpenAI's API send them
    assert answer.choices[0].text == expected
    assert answer.choices[0].finish_reason == "length"
    after = server.counted(before["num_calls"] + 2)
    assert after["num_output_tokens"] - before["num_output_tokens"] == 2 * NEW
    assert after["num_fallbacks"] == before["num_fallbacks"]
    assert f"uag: cross-tokenizer: {NEW} tokens in" in server.log.read_text()


def test_a_chat_is_plain_decodings(server: Running) -> None:
    expected = server.plain(CHAT[0]["content"] + "\n")
    options: dict[str, Any] = {"model": server.name, "messages": CHAT, "max_tokens": NEW}
    create = server.client.chat.completions.create
    assert create(**options, stop=[], logit_bias={}).choices[0].message.content == expected
    streamed = (chunk.choices[0].delta.content for chunk in create(**options, stream=True))
    assert "".join(text or "" for text in streamed) == expected


ENCODING: dict[str, Any] = {
    "type": "object",
    "properties": {"encoding": {"enum": ["utf-8", "latin-1"]}},
    "required": ["encoding"],
    "additionalProperties": False,
}
NAMED = {"name": "encoding", "schema": ENCODING, "strict": True}
AS_JSON: dict[str, Any] = {"type": "json_schema", "json_schema": NAMED}


def test_an_answer_is_json_of_the_requests_schema(server: Running) -> None:
    pytest.importorskip("llguidance")
    processor = JsonSchemas(server.tokenizer, server.target).processor(ENCODING)
    expected = server.plain(CHAT[0]["content"] + "\n", max_new_tokens=64, logits_processor=[processor])
    assert json.loads(expected)["encoding"] in ("utf-8", "latin-1")
    create = server.client.chat.completions.create
    options: dict[str, Any] = {"model": server.name, "messages": CHAT, "max_tokens": 64}
    answer = create(**options, response_format=AS_JSON)
    assert answer.choices[0].message.content == expected
    assert answer.choices[0].finish_reason == "stop"
    streamed = (chunk.choices[0].delta.content for chunk in create(**options, response_format=AS_JSON, stream=True))
    assert "".join(text or "" for text in streamed) == expected
    assert create(**options, response_format={"type": "json_object"}).choices[0].message.content.startswith("{")
    of_llama_cpp: Any = {"type": "json_object", "schema": ENCODING}
    assert create(**options, response_format=of_llama_cpp).choices[0].message.content == expected
    assert create(**options).choices[0].message.content != expected  # a format is one request's
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strin"}}}
    for is_streamed in (False, True):
        with pytest.raises(openai.BadRequestError, match="The JSON schema cannot be used: "):
            create(**options, response_format=bad, stream=is_streamed)


@pytest.mark.usefixtures("detached")
def test_a_schema_without_its_package_is_a_client_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("llguidance", "xgrammar"):
        monkeypatch.setitem(sys.modules, name, None)
    target = chat_target(tmp_path / "target", num_hidden_layers=1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Server(target, demo_folder("draft"), host="127.0.0.1", port=port)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.run)
        try:
            client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=5, timeout=60)
            for is_streamed in (False, True):
                options: dict[str, Any] = {"model": target, "messages": CHAT, "max_tokens": 2, "stream": is_streamed}
                with pytest.raises(openai.BadRequestError, match=r"needs llguidance or xgrammar\. Install it: pip"):
                    client.chat.completions.create(**options, response_format=AS_JSON)
                assert client.chat.completions.create(**options, response_format={"type": "text"})
        finally:
            server._server.should_exit = True
        running.result(60)


def test_a_seed_and_a_temperature(server: Running) -> None:
    sampling: dict[str, Any] = {"do_sample": True, "temperature": 0.7, "top_k": 20}
    torch.manual_seed(11)
    expected = server.plain(**sampling)
    body = {"generation_config": json.dumps(sampling)}
    assert server.complete(seed=11, extra_body=body).choices[0].text == expected != server.plain()
    torch.manual_seed(5)
    expected = server.plain(do_sample=True, temperature=1.5)  # the target's config does not say do_sample
    assert server.complete(seed=5, temperature=1.5).choices[0].text == expected != server.plain()
    assert server.complete(seed=5, temperature=0).choices[0].text == server.plain()


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({"temperature": 1}, {}),  # the default of the target's config
        ({"top_p": 0.5}, {"top_p": 0.5}),
        ({"top_p": 0.5, "temperature": 0}, None),
        ({"extra_body": {"generation_config": '{"max_new_tokens": 16, "top_p": 0.5}'}}, {"top_p": 0.5}),
        ({"extra_body": {"generation_config": '{"do_sample": false}'}, "temperature": 0.7}, None),
    ],
)
def test_what_samples(server: Running, fields: dict[str, Any], sampling: dict[str, Any] | None) -> None:
    torch.manual_seed(3)
    expected = server.plain() if sampling is None else server.plain(do_sample=True, **sampling)
    assert server.complete(seed=3, **fields).choices[0].text == expected
    assert (expected == server.plain()) == (sampling is None)


def test_seeds_of_requests_at_once(server: Running) -> None:
    """Each is answered as alone, also behind a stream that samples."""
    options: dict[str, Any] = {"temperature": 1.0, "max_tokens": 24}
    expected = {}
    for seed in range(4):
        torch.manual_seed(seed)
        expected[seed] = server.plain(do_sample=True, max_new_tokens=24)
    assert len(set(expected.values())) == 4
    with ThreadPoolExecutor(8) as pool:
        for _ in range(2):
            stream = server.complete(**options | {"max_tokens": 300}, seed=0, stream=True)
            chunks = [next(iter(stream))]
            answers = list(pool.map(lambda seed: server.complete(seed=seed % 4, **options), range(8)))
            assert [answer.choices[0].text for answer in answers] == [expected[seed % 4] for seed in range(8)]
            assert "".join(each.choices[0].text for each in [*chunks, *stream]).startswith(expected[0])


def test_a_bias_of_a_whole_number(server: Running) -> None:
    (banned,) = server.tokenizer(server.plain(CHAT[0]["content"] + "\n", max_new_tokens=1))["input_ids"][:1]
    expected = server.plain(CHAT[0]["content"] + "\n", sequence_bias={(banned,): -100.0})
    create = server.client.chat.completions.create
    answer = create(model=server.name, messages=CHAT, max_tokens=NEW, logit_bias={str(banned): -100})
    assert answer.choices[0].message.content == expected != server.plain(CHAT[0]["content"] + "\n")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_is_read_as_json(server: Running, content_type: str) -> None:
    status, answer = server.post("completions", {"prompt": CODE, "max_tokens": NEW}, content_type)
    assert (status, json.loads(answer)["choices"][0]["text"]) == (200, server.plain())


@pytest.mark.parametrize("path", SERVED)
def test_null_is_absent(server: Running, path: str) -> None:
    body = dict.fromkeys(sorted(SERVED[path] | HARMLESS | REFUSED.keys() - {"model"}))
    body |= {"prompt": CODE} if path == "/v1/completions" else {"messages": CHAT} if "chat" in path else {"input": "x"}
    status, answer = server.post(path.removeprefix("/v1/"), body | {"generation_config": '{"max_new_tokens": 2}'})
    assert status == 200, answer
    assert json.loads(answer)["object"] in ("text_completion", "chat.completion", "response")


@pytest.mark.parametrize("field", ["name", "reasoning_content", "reasoning", "thinking"])
def test_what_templates_read_of_messages_is_passed_on(field: str) -> None:
    from transformers.cli.serving.utils import BaseHandler, Modality

    convert = partial(_with_contents, BaseHandler.get_processor_inputs_from_messages)
    message = {"role": "user", "content": [{"type": "text", "text": "x"}], field: "y"}
    assert convert([message], Modality.LLM) == [{"role": "user", "content": "x", field: "y"}]
    assert convert([message | {field: None}], Modality.LLM) == [{"role": "user", "content": "x"}]


def test_the_content_beside_tool_calls_is_read(server: Running) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "x = f()"}
    after = {"role": "tool", "tool_call_id": "1", "content": "3"}
    expected = server.plain("def add(first, second):\nx = f()\n3\n")
    body = {"messages": [*CHAT, message | {"tool_calls": [call]}, after], "max_tokens": NEW}
    status, answer = server.post("chat/completions", body)
    assert (status, json.loads(answer)["choices"][0]["message"]["content"]) == (200, expected)
    items = [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}]
    items += [{"type": "function_call_output", "call_id": "1", "output": "3"}]
    status, answer = server.post("responses", {"input": [*CHAT, message, *items], "max_output_tokens": NEW})
    assert (status, json.loads(answer)["output"][0]["content"][0]["text"]) == (200, expected)


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_an_error_in_a_stream_is_valid_json(server: Running, path: str) -> None:
    config = json.dumps({"max_new_tokens": 2, "bad_words_ids": 'a "quoted"\nname'})
    body = {"prompt": CODE} if path == "completions" else {"messages": CHAT}
    _, answer = server.post(path, body | {"stream": True, "generation_config": config})
    *_, event = answer.decode().strip().split("\n\n")
    assert 'a "quoted"' in json.loads(event.removeprefix("data: "))["error"]["message"]


@pytest.mark.parametrize("path", ["completions", "chat/completions", "responses"])
def test_an_error_after_a_stream_has_begun_is_no_end(server: Running, path: str) -> None:
    """A stream that ends as usual would make a text that was cut off look complete."""
    config = json.dumps({"max_new_tokens": 9, "bad_words_ids": [[10**7]]})
    body: dict[str, dict[str, Any]]
    body = {"completions": {"prompt": CODE}, "chat/completions": {"messages": CHAT}, "responses": {"input": CODE}}
    _, answer = server.post(path, body[path] | {"stream": True, "generation_config": config})
    assert "vocabulary size" in answer.decode()
    assert "[DONE]" not in answer.decode()
    assert not re.search('"finish_reason": ?"stop"|response.completed', answer.decode())


def test_a_path_or_another_model_that_is_not_served(server: Running) -> None:
    status, answer = server.post("audio/transcriptions", {})
    assert (status, answer["error"]["message"]) == (404, "Not Found")
    load = urllib.request.Request(f"{server.url}/load_model", b'{"model": "x"}', {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(load, timeout=60)
    reason = json.load(caught.value)["error"]["message"]
    assert (caught.value.code, reason) == (400, f"This server has the model {server.name!r} only.")


@pytest.mark.parametrize("path", ["completions", "chat/completions", "responses"])
def test_a_streams_end_is_openais(server: Running, path: str) -> None:
    body: dict[str, dict[str, Any]]
    body = {"completions": {"prompt": CODE}, "chat/completions": {"messages": CHAT}, "responses": {"input": CODE}}
    length = "max_output_tokens" if path == "responses" else "max_tokens"
    _, answer = server.post(path, {**body[path], "stream": True, length: 3})
    assert (answer.decode().endswith("}\n\ndata: [DONE]\n\n")) == (path != "responses")


def test_a_prompt_in_a_list(server: Running) -> None:
    assert server.complete([CODE]).choices[0].text == server.plain()


@pytest.mark.parametrize("empty", [["", "x"], [""], ""])
def test_an_empty_stop_string_is_none(server: Running, empty: Any) -> None:
    stop = [each.replace("x", server.plain()[8:12]) for each in empty]
    expected = server.plain(stop_strings=stop[1:], tokenizer=server.tokenizer) if stop[1:] else server.plain()
    assert server.complete(stop=stop if isinstance(empty, list) else empty).choices[0].text == expected


def test_a_stop_string(server: Running) -> None:
    stop = server.plain()[8:12]
    expected = server.plain(stop_strings=[stop], tokenizer=server.tokenizer)
    answer = server.complete(stop=[stop])
    assert answer.choices[0].text == expected
    assert answer.choices[0].finish_reason == "stop"


def test_the_client_of_the_documentation(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(from openai .*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    code = code.replace("http://127.0.0.1:8000", server.url).replace("TARGET", server.name)
    exec(compile(code, "integrations.md", "exec"), {})
    assert capsys.readouterr().out.endswith(server.plain(max_new_tokens=64) + "\n")


def test_requests_at_once_are_answered_as_alone(server: Running) -> None:
    prompts = [CODE, "class Reader:\n", "import os\n", "def main():\n"] * 3
    expected = {prompt: server.plain(prompt, max_new_tokens=12) for prompt in prompts[:4]}
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda prompt: server.complete(prompt, max_tokens=12), prompts))
    assert [answer.choices[0].text for answer in answers] == [expected[prompt] for prompt in prompts]


def test_a_client_that_hangs_up(server: Running) -> None:
    num_tokens = server.get("/v1/uag/stats")["num_output_tokens"]
    stream = server.complete(stream=True, max_tokens=4000)
    next(iter(stream))
    stream.close()
    assert server.complete().choices[0].text == server.plain()  # requests run in turn: the first one has ended
    assert server.get("/v1/uag/stats")["num_output_tokens"] - num_tokens < 2000


def test_a_client_that_hangs_up_while_it_sends(server: Running) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        time.sleep(0.2)
    time.sleep(0.5)  # until the server has noticed
    assert "Traceback" not in server.log.read_text()


def test_a_target_that_does_not_exist() -> None:
    with pytest.raises(LoadingError, match=r"The tokenizer of the target '\./none' cannot be loaded"):
        Server("./none", demo_folder("draft"), host="127.0.0.1", port=0)


def test_models_without_a_hub_cache_are_the_target(server: Running) -> None:
    """The server runs with an empty HF_HOME."""
    assert [model.id for model in server.client.models.list()] == [server.name]
    assert server.client.models.retrieve(server.name).id == server.name
    with pytest.raises(openai.BadRequestError, match=r"This server has the model .* only"):
        server.client.models.retrieve("gpt-4o")
    assert server.complete(max_tokens=1).model == server.name


LONG = "x = 1\n" * POSITIONS
COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0, "stream": True}, "max_tokens=0 must be a whole number of 1 or more"),
    ({"max_tokens": "x"}, 'max_tokens="x" must be a whole number'),
    ({"temperature": "hot"}, 'temperature="hot" must be 0, or a number'),
    ({"stream": "false"}, 'stream="false" must be true or false'),
    ({"temperature": float("nan")}, "temperature=NaN must be 0, or a number from"),
    ({"temperature": -1, "stream": True}, "temperature=-1 must be 0, or a number from"),
    ({"temperature": 1e-45, "stream": True}, "temperature=1e-45 must be 0, or a number from"),
    ({"top_p": 5, "stream": True}, "top_p=5 must be a number above 0, and at most 1"),
    ({"frequency_penalty": -1}, "frequency_penalty=-1 must be a number above -1"),
    ({"seed": 1 << 70, "stream": True}, "must be a whole number of at most 64 bits"),
    ({"stop": 3, "stream": True}, "stop=3 must be a text, or a list of texts"),
    ({"n": 2}, "n=2 is not supported: leave it out, or send 1"),
    ({"logprobs": 0}, "logprobs=0 is not supported: leave it out, or send false"),
    ({"generation_config": "{"}, "generation_config the JSON of one, as a text"),
    ({"generation_config": "3"}, "generation_config the JSON of one, as a text"),
    ({"generation_config": '{"max_new_tokens": "x"}'}, "The request cannot be served: .*'str'"),
    ({"generation_config": '{"return_dict_in_generate": true}'}, "The request cannot be served"),
    ({"generation_config": '{"assistant_early_exit": 1}'}, "must not have assistant_early_exit"),
    ({"prompt": ""}, "The prompt is empty, and the target"),
    ({"prompt": "", "stream": True}, "The prompt is empty, and the target"),
    ({"prompt": ["a", "b"]}, "prompt=.* must be a text, or a list of one text"),
    ({"model": "gpt-4o"}, "Server is pinned to"),
    ({"prompt": None}, "The prompt is empty"),
    ({"prompt": "\ud800"}, "surrogates not allowed"),
    ({"prompt": LONG}, f"^The prompt is too long: the server accepts at most {POSITIONS} tokens.$"),
    ({"prompt": LONG, "stream": True}, f"^The prompt is too long: the server accepts at most {POSITIONS} tokens.$"),
    ({"prompt": "a" * 10_000_000}, f"too long: the server accepts at most {POSITIONS} tokens"),
]
CHATS: list[tuple[Any, str]] = [
    ([], "Provide at least one message"),
    ("hello", "The request cannot be served"),
    ([{"content": "no role"}], r"The request cannot be served: KeyError\('role'\)"),
    ([{"role": "user", "content": LONG}], "too long"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "parts of the type 'image"),
]
CHAT_FIELDS: list[tuple[dict[str, Any], str]] = [
    (
        {"logit_bias": {"x": 1}, "stream": True},
        r'logit_bias has \{"x": 1\}: send ids from 0 to \d+, and finite numbers',
    ),
    ({"logit_bias": {"9999999": 1}, "stream": True}, 'logit_bias has {"9999999": 1}: send ids from 0'),
    ({"response_format": {"type": "json_object", "schema": {"type": "strin"}}}, "The JSON schema cannot be used"),
    ({"response_format": {"type": "grammar"}}, r'response_format=.*leave it out, or send \{"type": "text"\}\.'),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "no place for tools"),
    ({"chat_template_kwargs": {"chat_template": "{{ 1/0 }}"}}, "must not have a chat_template"),
    ({"chat_template_kwargs": 3}, "chat_template_kwargs must be an object"),
]
RESPONSES: list[tuple[dict[str, Any], str]] = [
    ({}, r"KeyError\('input'\)"),
    ({"input": []}, "Provide at least one message"),
    ({"input": ["x"]}, "The request cannot be served"),
    ({"input": LONG}, "too long"),
    ({"input": [{"type": "input_text", "text": LONG}]}, "too long"),
    ({"input": "x", "instructions": LONG}, "too long"),
    ({"input": "x", "instructions": 3}, "The request cannot be served"),
    ({"input": "x", "text": {"format": {"type": "json_object"}}}, "text=.* is not supported"),
]
INVALID: list[tuple[str, Any, str]] = [
    *(("completions", {"prompt": CODE, "max_tokens": 2} | fields, message) for fields, message in COMPLETIONS),
    *(("chat/completions", {"messages": messages}, message) for messages, message in CHATS),
    *(("chat/completions", {"messages": CHAT, "max_tokens": 2} | fields, message) for fields, message in CHAT_FIELDS),
    *(("responses", {"stream": False} | fields, message) for fields, message in RESPONSES),
    *(("completions", data, "JSON") for data in (b"{", b"[]", b"null", b"\xff")),
]


@pytest.mark.parametrize(("path", "body", "message"), INVALID, ids=[message[:24] for *_, message in INVALID])
def test_an_invalid_request_is_a_client_error(server: Running, path: str, body: Any, message: str) -> None:
    status, answer = server.post(path, body)
    assert status == 400
    assert re.search(message, answer["error"]["message"])


FIELDS: dict[str, list[Any]] = {
    "model": ["other"],
    "temperature": [0, 0.5, 1e-45, 1e308, None],
    "top_p": [0, -0.0, 0.5, 1],
    "frequency_penalty": [0.5, -0.998, 1e308],
    "seed": [0, -1, 1 << 63],
    "stop": [[], "e", ["\u2028", "return"], ["a"] * 200, None],
    "logit_bias": [{}, {"5": 3}, {"999999999": 3}, {"\u0665": 100}, {"\u00b2": 1}, {"5": 1e308}, None],
    "stream": [False, True, None],
    "suffix": ["", "x"],
    "user": [3, "me"],
    "stream_options": [{"include_usage": True}, {}, 3],
    "tools": [[], 3, [3], [{"type": "function", "function": {"name": "f"}}]],
    "tool_choice": ["auto", 3],
    "response_format": [{"type": "text"}, 3],
    "chat_template_kwargs": [{}, {"tokenize": True}, {"x": 1}],
    "instructions": ["", "be brief"],
    "previous_response_id": ["x", None],
    "generation_config": [
        *("{}", '{"max_new_tokens": 2, "do_sample": true, "top_k": -1}', '{"max_new_tokens": 2, "eos_token_id": "x"}'),
        *('{"max_new_tokens": 2, "num_beams": 2}', '{"max_new_tokens": 2, "stop_strings": []}'),
        *('{"max_new_tokens": 2, "cache_implementation": "nonsense"}', '{"max_new_tokens": 2, "max_time": "x"}'),
        *('{"max_new_tokens": 2, "watermarking_config": 5}', '{"max_new_tokens": 2, "compile_config": {"a": "x"}}'),
        *('{"max_new_tokens": 2, "token_healing": true}', '{"max_new_tokens": 2, "assistant_early_exit": 1}'),
        *('{"max_new_tokens": 2, "temperature": "hot", "do_sample": true}', '{"max_new_tokens": 2, "max_time": 0}'),
    ],
}
TEXT = {"type": "text", "text": "x"}
CONTENTS: list[Any] = [CODE, "", None, 3, [], [3], [TEXT], [TEXT | {"type": "input_text"}], [{}]]


def drawn(path: str, seed: int) -> dict[str, Any]:
    """Draw the body of a request: usual values and those that clients of other servers send."""
    draw = random.Random(f"{path} {seed}")
    body = {name: draw.choice(FIELDS[name]) for name in draw.sample(sorted(FIELDS), draw.randrange(5))}
    messages = [{"role": draw.choice(["user", "system", 3]), "content": draw.choice(CONTENTS)} for _ in range(2)]
    items = draw.choice([CODE, messages, draw.choice(CONTENTS), [{"type": "function_call", "name": "f"}]])
    required: dict[str, dict[str, Any]] = {
        "completions": {"prompt": CODE, "max_tokens": 2},
        "chat/completions": {"messages": messages, "max_tokens": 2},
        "responses": {"input": items, "max_output_tokens": 2},
    }
    return required[path] | body


@pytest.mark.parametrize("path", ["completions", "chat/completions", "responses"])
def test_drawn_requests_get_an_answer_or_a_reason(server: Running, path: str) -> None:
    statuses = []
    for seed in range(25):
        body = drawn(path, seed)
        status, answer = server.post(path, body)
        assert status < 500, (body, answer)
        statuses.append(status)
    assert {200, 400} <= set(statuses)
    assert server.complete(max_tokens=2).choices[0].text == server.plain(max_new_tokens=2)


def test_a_requests_time_limit_holds(server: Running) -> None:
    config = json.dumps({"max_new_tokens": 100_000, "max_time": 0.3, "do_sample": False})
    start = time.perf_counter()
    answer = server.complete(extra_body={"generation_config": config}, max_tokens=None)
    assert time.perf_counter() - start < 20.0
    assert 0 < answer.usage.completion_tokens < 50_000


def test_a_call_inside_a_call_does_not_lock_the_server(server: Running) -> None:
    """transformers heals a prompt's last token with a `generate` of its own."""
    config = json.dumps({"max_new_tokens": 3, "token_healing": True, "pad_token_id": 0, "do_sample": False})
    assert server.post("completions", {"prompt": CODE, "generation_config": config})[0] in (200, 400)
    assert server.complete(max_tokens=2).choices[0].text == server.plain(max_new_tokens=2)


def test_a_target_that_was_unloaded_is_assisted_again(server: Running) -> None:
    urllib.request.urlopen(urllib.request.Request(f"{server.url}/reset", method="POST"), timeout=30)
    assert server.complete().choices[0].text == server.plain()
    server.counted(1)  # of the assistant that is now attached


def test_values_at_the_limits_are_accepted(server: Running) -> None:
    options: dict[str, Any] = {"max_tokens": 1, "temperature": 0, "top_p": 1.0, "n": 1, "seed": -1, "logprobs": None}
    assert len(server.complete(**options).choices) == 1
    ids = server.tokenizer(LONG)["input_ids"][:POSITIONS]
    prompt = server.tokenizer.decode(ids)
    assert len(server.tokenizer(prompt)["input_ids"]) == POSITIONS
    assert server.complete(prompt, max_tokens=2).choices[0].text == server.plain(prompt, max_new_tokens=2)


def test_a_port_in_use_is_found_before_the_target_is_loaded() -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = used.getsockname()[1]
        with pytest.raises(OptionError, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*Pass another --port"):
            Server("./none", "./none", host="127.0.0.1", port=port)


@pytest.mark.parametrize("host", ["host.invalid", "192.0.2.1", "a..b", "2001:db8::1"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(OptionError, match=rf"cannot listen on {host}:8000: .*\. Pass another --host"):
        Server("./none", "./none", host=host, port=8000)


@pytest.mark.usefixtures("detached")
def test_an_ipv6_address_has_brackets(tmp_path: Path) -> None:
    try:
        with socket.socket(socket.AF_INET6) as free:
            free.bind(("::1", 0))
            port = free.getsockname()[1]
    except OSError:
        pytest.skip("this machine has no IPv6")
    server = Server(chat_target(tmp_path / "target", num_hidden_layers=1), demo_folder("draft"), host="::1", port=port)
    assert f" http://[::1]:{port}/v1/" in server.example()


@pytest.mark.slow
def test_memory_after_many_requests(server: Running) -> None:
    process = psutil.Process(server.process.pid)
    for place in range(200):
        server.complete(max_tokens=4, stream=place % 2 == 0)
        if place == 50:
            before = process.memory_info().rss
    assert process.memory_info().rss - before < 20_000_000


def test_empty_fields_are_none(server: Running) -> None:
    """As in OpenAI's API, whose clients send them."""
    assert server.complete(stop=[], logit_bias={}).choices[0].text == server.plain()
    create = server.client.chat.completions.create
    answer = create(model=server.name, messages=CHAT, max_tokens=NEW, stop=[], logit_bias={})
    assert answer.choices[0].message.content == server.plain(CHAT[0]["content"] + "\n")
