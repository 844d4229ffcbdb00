"""transformers' OpenAI-compatible server, with a draft attached to its target."""

import json
import logging
import math
import shlex
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from jinja2 import TemplateError
from transformers import MaxTimeCriteria
from transformers.utils.import_utils import is_serve_available

from uag import door
from uag.errors import OptionError
from uag.hf import models
from uag.hf.devices import accelerator
from uag.installing import attach
from uag.loading import check_dtype, load_tokenizer
from uag.serving.requests import CHAT, COMPLETION, RESPONSES, RequestCheck, complete
from uag.stats import Totals

logger = logging.getLogger("uag")

_SHUTDOWN_S = 10
"""Seconds that running requests get after Ctrl-C to end their current pass. Increase for slow targets and long prompts;
decrease to stop sooner."""

_OF_SERVER = (torch.OutOfMemoryError, MemoryError, OSError, ImportError)
_OF_REQUESTS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, TemplateError)
"""What transformers' server and `generate` raise for valid requests that cannot be served, and for invalid ones."""


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

    Attributes:
        target: the argument.
        url: the address of the server.
        totals: sums over all requests, the response of `GET /v1/uag/stats`.

    Raises:
        ImportError: the server's packages are not installed.
        OptionError: the address cannot be used, which is found before a model is loaded.
        LoadingError: a model or a tokenizer cannot be loaded.
        PairError: the models cannot work together.
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
        from transformers.cli.serve import Serve

        dtype = check_dtype(dtype)
        device = device or ("auto" if accelerator() else "cpu")
        dtype = dtype or ("float32" if device == "cpu" else "auto")

        class _Serve(Serve):
            def start_server(self) -> None:
                """Do nothing: the constructor calls it, and `Server.run` starts the server instead."""

        self.target = target
        self.url = f"http://{host}:{port}"
        self.totals = Totals()
        self._created = int(time.time())
        # A port in use and a wrong name fail here, before gigabytes of weights are read.
        self._socket = _bound(host, port)
        tokenizer = load_tokenizer(target, role="target")
        self._loaded: tuple[Any, Any] = (None, None)  # the target and its processor
        with self._attaching(draft, options):
            served = _Serve(force_model=target, host=host, port=port, dtype=dtype, device=device, non_blocking=True)
        model, processor = self._loaded
        most = models.max_positions(model)
        most = most if max_prompt_tokens is None else min(most, max_prompt_tokens)
        self._server = served.server
        self._server.config.timeout_graceful_shutdown = _SHUTDOWN_S
        self._server.config.app.get("/v1/uag/stats")(lambda: self.totals.to_dict())
        self._refuse(RequestCheck(tokenizer, processor, most))
        self._limits: list[MaxTimeCriteria] = []  # one for each running call
        self._is_ending = False
        self._running = threading.RLock()  # a call may call `generate` itself

    def run(self) -> None:
        """Serve until Ctrl-C, which ends running requests at their next token."""
        handle_exit = self._server.handle_exit

        def end(signal: int, frame: Any) -> None:
            self._is_ending = True
            for limit in list(self._limits):
                limit.max_time = -math.inf
            handle_exit(signal, frame)

        self._server.handle_exit = end
        door.add_route(self._limited, is_first=True)
        try:
            with suppress(KeyboardInterrupt):  # uvicorn raises it after the shutdown
                self._server.run(sockets=[self._socket])
        finally:
            with self._running:  # PyTorch aborts if the interpreter ends during a pass
                door.remove_route(self._limited)

    def _limited(self, generate: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Let a call of `generate` end when the server does; the criterion replaces that of the call's own limit."""
        with self._running:
            max_time = door.option(model, config := kwargs.get("generation_config"), kwargs, "max_time")
            limit = MaxTimeCriteria(math.inf if max_time is None else max_time)
            self._limits.append(limit)
            try:
                if self._is_ending:
                    limit.max_time = -math.inf
                if config is not None:
                    complete(config, model.generation_config)
                kwargs["stopping_criteria"] = [*(kwargs.get("stopping_criteria") or ()), limit]
                return generate(model, *args, **kwargs)
            finally:
                self._limits.remove(limit)

    def _refuse(self, check: RequestCheck) -> None:
        """Answer requests that cannot be served with 400 or 500 and one sentence, in the form of OpenAI's API."""
        from fastapi import Request, Response
        from fastapi.responses import JSONResponse

        async def refuse(request: Request, run: Callable[[Request], Awaitable[Response]]) -> Response:
            path, status = request.url.path, 400
            is_checked = request.method == "POST" and path in (COMPLETION, CHAT, RESPONSES)
            problem = check.problem(path, await request.body()) if is_checked else ""
            try:
                if not problem:
                    return await run(request)
            except (*_OF_REQUESTS, *_OF_SERVER) as error:
                status = 500 if isinstance(error, _OF_SERVER) else 400
                problem = f"The request cannot be served: {error!r:.300}."
                logger.warning("%s: %s", path, problem)
            kind = "invalid_request_error" if status == 400 else "server_error"
            return JSONResponse({"error": {"message": problem, "type": kind, "param": None, "code": None}}, status)

        self._server.config.app.middleware("http")(refuse)

    def example(self) -> str:
        """Return a shell command that sends a request."""
        body: dict[str, Any] = {"model": self.target, "max_tokens": 64}
        if getattr(self._loaded[1], "chat_template", None):
            path, body["messages"] = "chat/completions", [{"role": "user", "content": "Tell me a story."}]
        else:
            path, body["prompt"] = "completions", "def read_lines(path):"
        header = "-H 'Content-Type: application/json'"
        return f"curl {self.url}/v1/{path} {header} -d {shlex.quote(json.dumps(body))}"

    @contextmanager
    def _attaching(self, draft: str, options: dict[str, Any]) -> Iterator[None]:
        """Let transformers' server attach the draft to each model that it loads, also when it reloads one."""
        from transformers.cli.serving import model_manager

        server, original = self, model_manager.ModelManager

        class _AttachingManager(original):  # type: ignore[misc, valid-type]
            @staticmethod
            def process_model_name(model_id: str) -> str:
                """Keep the user's name, which answers contain; transformers appends a revision to it."""
                return model_id

            def get_gen_models(self) -> list[dict[str, Any]]:
                """List the target alone; transformers lists what the hub's cache contains, and fails without one."""
                return [{"id": server.target, "object": "model", "created": server._created, "owned_by": "uag"}]

            def load_model_and_processor(self, name: str, *args: Any, **kwargs: Any) -> Any:
                name = original.process_model_name(name)
                model, processor = super().load_model_and_processor(name, *args, **kwargs)
                if model is not server._loaded[0]:
                    tokenizer = getattr(processor, "tokenizer", processor)
                    server.totals = attach(model, draft, tokenizer=tokenizer, **options).totals
                    server._loaded = model, processor
                return model, processor

        model_manager.ModelManager = _AttachingManager
        try:
            yield
        finally:
            model_manager.ModelManager = original


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket for an address, or refuse one that another program uses or that this machine does not have."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    if sys.platform != "win32":  # there, the option would allow two servers on one port
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        raise OptionError(
            f"The server cannot listen on {host}:{port}: {error.strerror}. Pass another --port."
        ) from error
    return bound
