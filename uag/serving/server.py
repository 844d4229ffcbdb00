"""transformers' OpenAI-compatible server, with a draft attached to its target."""

import errno
import json
import logging
import shlex
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from transformers.utils.import_utils import is_serve_available

from uag.errors import OptionError, UagError
from uag.hf import models, required_names
from uag.hf.devices import accelerator
from uag.installing import attach
from uag.loading import EMPTY, check_dtype, load_tokenizer
from uag.serving.requests import SERVED, complete, passed_on, problem, schema_of
from uag.serving.streams import Served, UntilEnd, as_openai, error_of
from uag.stats import Totals
from uag.structured import JsonSchemas

logger = logging.getLogger("uag")

_SHUTDOWN_S = 10  # seconds that running requests get after Ctrl-C to end their current pass

_MOST_OTHER_BYTES, _BYTES_PER_CHARACTER = 1 << 20, 6
"""Bounds of a body of text: bytes besides the prompt, and bytes of a character in JSON."""

_OF_SERVER = (torch.OutOfMemoryError, MemoryError, OSError, ImportError)
_OF_REQUESTS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, TemplateError)
"""What transformers' server and `generate` raise for valid requests that cannot be served, and for invalid ones."""

_asked: ContextVar[tuple[dict[str, Any], str]] = ContextVar("_asked", default=({}, ""))
"""The body of the current request without its nulls, and the path."""

_HANDLERS = ("_chat_handler", "_response_handler")
_NOT_SERVED = "/v1/audio/transcriptions"
_OF_TEMPLATES = ("name", "reasoning", "reasoning_content", "thinking")  # what chat templates read of messages


class Server:
    """transformers' server for one target, whose calls a draft assists.

    Args:
        target: hub name or folder of the target, which requests must name as their `model`.
        draft: hub name, folder or GGUF file of the draft.
        host, port: address to listen on.
        dtype: as in `uag.load_pair`.
        device: a device for `device_map`; None for all GPUs if there are any, else the CPU.
        max_prompt_tokens: longer prompts are refused; None for the target's positions.
        options: other arguments of `uag.attach`.

    Raises:
        ImportError: the server's packages are not installed.
        OptionError: the address cannot be used, which is found before a model is loaded.
    """

    def __init__(
        self,
        target: str,
        draft: str,
        *,
        host: str,
        port: int,
        dtype: str | None = None,
        device: str | None = None,
        max_prompt_tokens: int | None = None,
        **options: Any,
    ) -> None:
        if not is_serve_available():
            raise ImportError("uag serve needs transformers' server. Install it: pip install 'uag-transformers[serve]'")
        required_names.check(required_names.SERVER)
        from transformers.cli.serve import Serve

        dtype = check_dtype(dtype)
        device = device or ("auto" if accelerator() else "cpu")
        dtype = dtype or ("float32" if device == "cpu" else "auto")

        class _Serve(Serve):
            def start_server(self) -> None:
                """Do nothing: the constructor calls it, and `Server.run` starts the server instead."""

        self.target = target
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self.totals = Totals()
        self._own = {"id": target, "object": "model", "created": int(time.time()), "owned_by": "uag"}
        # A port in use and a wrong name fail here, before gigabytes of weights are read.
        self._socket = _bound(host, port)
        tokenizer = load_tokenizer(target, role="target")
        served = _Serve(force_model=target, host=host, port=port, dtype=dtype, device=device, non_blocking=True)
        required_names.require(served, "_model_manager", "_generation_state", "server", *_HANDLERS)
        model, self._processor = self._assist(served._model_manager, draft, options)
        self._modality = served._model_manager.get_model_modality(model, processor=self._processor).name
        self._num_ids = models.head_size(model)
        for handler in (getattr(served, name) for name in _HANDLERS):
            convert = handler.get_processor_inputs_from_messages
            handler.get_processor_inputs_from_messages = partial(_with_contents, convert)
        self._get_manager = served._generation_state.get_manager
        served._generation_state.get_manager = self._manager
        most = models.max_positions(model)
        self._most_tokens = most if max_prompt_tokens is None else min(most, max_prompt_tokens)
        self._too_long = f"The prompt is too long: the server accepts at most {self._most_tokens:,} tokens."
        longest = max(map(len, tokenizer.get_vocab()), default=1)
        self._most_bytes = _MOST_OTHER_BYTES + _BYTES_PER_CHARACTER * longest * self._most_tokens
        self._server = served.server
        self._server.config.timeout_graceful_shutdown = _SHUTDOWN_S
        app = self._server.config.app
        app.router.routes[:] = [each for each in app.router.routes if getattr(each, "path", "") != _NOT_SERVED]
        app.get("/v1/models/{name:path}")(self._listed)
        app.get("/v1/uag/stats")(lambda: self.totals.to_dict())
        self._refuse()
        self._until_end = UntilEnd()
        self._schemas: JsonSchemas | None = None

    def _assist(self, manager: Any, draft: str, options: dict[str, Any]) -> Any:
        """Return the target and its processor, assisted, also when transformers' server loads them anew."""
        canonical, load = manager.process_model_name, manager.load_model_and_processor
        assisted: list[Any] = []

        def load_assisted(name: str, *args: Any, **kwargs: Any) -> Any:
            model, processor = load(canonical(name), *args, **kwargs)
            if model not in assisted:
                tokenizer = getattr(processor, "tokenizer", processor)
                self.totals = attach(model, draft, tokenizer=tokenizer, **options).totals
                assisted[:] = [model]
            return model, processor

        def own_name(name: str) -> str:  # transformers appends a revision, which answers would contain
            self._listed(name)
            return name

        manager.load_model_and_processor = load_assisted
        manager.process_model_name = own_name
        manager.get_gen_models = lambda: [self._own]  # transformers lists the hub's cache, and fails without one
        return load_assisted(self.target)

    def _listed(self, name: str) -> dict[str, Any]:
        if name != self.target:
            raise OptionError(f"This server has the model {self.target!r} only.")
        return self._own

    def _manager(self, *args: Any, **kwargs: Any) -> Any:
        """Return transformers' manager of a model's calls, which passes requests on to `_generate`."""
        manager = self._get_manager(*args, **kwargs)
        for name in {"generate_streaming", "generate_non_streaming"} - {*vars(manager)}:
            setattr(manager, name, partial(self._generate, getattr(manager, name)))
        return manager

    def _generate(
        self, generate: Callable[..., Any], model: Any, processor: Any, inputs: Any, config: Any, **kwargs: Any
    ) -> Any:
        """Refuse an empty or long prompt, before the answer begins: the status of a stream cannot change later."""
        if not 0 < inputs["input_ids"].shape[1] <= self._most_tokens:
            raise OptionError(self._too_long if inputs["input_ids"].shape[1] else EMPTY)
        body, path = _asked.get()
        complete(config, body)
        if (schema := schema_of(body, path)) is not None:
            try:
                self._schemas = self._schemas or JsonSchemas(getattr(processor, "tokenizer", processor), model)
            except ImportError as error:
                raise OptionError(str(error)) from error
            inputs = {**inputs, "logits_processor": [self._schemas.processor(schema)]}
        return generate(Served(model, body.get("seed"), self._until_end), processor, inputs, config, **kwargs)

    def run(self) -> None:
        """Serve until Ctrl-C, which ends requests at their next token, with an error."""
        handle_exit = self._server.handle_exit

        def end(signal: int, frame: Any) -> None:
            self._until_end.has_ended = True
            handle_exit(signal, frame)

        self._server.handle_exit = end
        with suppress(KeyboardInterrupt):  # uvicorn raises it after the shutdown
            self._server.run(sockets=[self._socket])

    def _refuse(self) -> None:
        """Answer requests that cannot be served with 400 or 500 and one sentence, in the form of OpenAI's API."""
        from fastapi import Request
        from fastapi.responses import JSONResponse
        from starlette.exceptions import HTTPException
        from starlette.requests import ClientDisconnect

        async def explain(_: Request, error: Any) -> Any:
            return JSONResponse(error_of(str(error.detail), error.status_code), error.status_code, error.headers)

        async def refuse(request: Request, run: Callable[[Request], Awaitable[Any]]) -> Any:
            status, reason = 400, ""
            try:
                if request.method == "POST" and request.url.path in SERVED:
                    reason = await self._reason(request)
                if not reason:
                    response = await run(request)
                    if response.headers.get("content-type", "").startswith("text/event-stream"):
                        response.body_iterator = as_openai(response.body_iterator, request.url.path)
                    return response
            except ClientDisconnect:
                reason = "The client has hung up."
            except (*_OF_REQUESTS, *_OF_SERVER) as error:
                status = 500 if isinstance(error, _OF_SERVER) else 400
                reason = str(error) if isinstance(error, UagError) else f"The request cannot be served: {error!r:.300}."
                logger.warning("%s: %s", request.url.path, reason)
            return JSONResponse(error_of(reason, status), status)

        app = self._server.config.app
        app.add_exception_handler(HTTPException, explain)
        app.middleware("http")(refuse)

    async def _reason(self, request: Any) -> str:
        """Return why a request is refused, or replace its body by what transformers' server shall read."""
        data, path = await request.body(), request.url.path
        # The server would tokenize it between the tokens of other answers.
        if len(data) > self._most_bytes and isinstance(self._processor, PreTrainedTokenizerBase):
            return self._too_long
        template = str(getattr(self._processor, "chat_template", None))
        reason = problem(data, path, self._modality, template, self._num_ids)
        if not reason:
            body = {name: value for name, value in json.loads(data).items() if value is not None}
            _asked.set((body, path))
            request._body = json.dumps(passed_on(body, path)).encode()
            headers = [each for each in request.scope["headers"] if each[0] != b"content-type"]
            request.scope["headers"] = [*headers, (b"content-type", b"application/json")]
        return reason

    def example(self) -> str:
        body: dict[str, Any] = {"model": self.target, "max_tokens": 64}
        if getattr(self._processor, "chat_template", None):
            path, body["messages"] = "chat/completions", [{"role": "user", "content": "Tell me a story."}]
        else:
            path, body["prompt"] = "completions", "def read_lines(path):"
        header = "-H 'Content-Type: application/json'"
        return f"curl {self.url}/v1/{path} {header} -d {shlex.quote(json.dumps(body))}"


def _with_contents(convert: Callable[..., list[dict[str, Any]]], messages: Any, modality: Any) -> list[dict[str, Any]]:
    """Convert messages for the chat template with what transformers drops: names, and contents beside tool calls."""
    without_calls = [{name: each for name, each in message.items() if name != "tool_calls"} for message in messages]
    kept = [{name: message[name] for name in _OF_TEMPLATES if message.get(name)} for message in messages]
    converted = zip(kept, convert(messages, modality), convert(without_calls, modality), strict=True)
    return [names | message | {"content": other["content"]} for names, message, other in converted]


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket for an address, or refuse one that another program uses or that this machine does not have."""
    try:
        bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        if sys.platform != "win32":  # there, the option would allow two servers on one port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except (OSError, UnicodeError) as error:
        option = "--port" if getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES) else "--host"
        reason = f"{host}:{port}: {getattr(error, 'strerror', error)}"
        raise OptionError(f"The server cannot listen on {reason}. Pass another {option}.") from error
    return bound
