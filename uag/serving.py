"""`uag serve`: transformers' OpenAI-compatible server, with a draft attached to its target."""

import json
import math
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers import MaxTimeCriteria
from transformers.utils.import_utils import is_serve_available

from uag import routing
from uag.attaching import attach, totals_of
from uag.errors import UnsupportedError
from uag.hf.devices import accelerator
from uag.loading import check_dtype, load_tokenizer
from uag.stats import Totals

_SHUTDOWN_S = 10
"""Seconds that running requests get after Ctrl-C to end their current pass. Increase for slow targets and long prompts;
decrease to stop sooner."""


class Server:
    """transformers' server for one target, whose calls a draft assists.

    Args:
        target: hub name or folder of the target, which requests must name as their `model`.
        draft: hub name, folder or GGUF file of the draft.
        host: address to listen on.
        port: port to listen on.
        dtype: one of `uag.loading.DTYPES`; None for float32 on a CPU and the checkpoint's own type elsewhere.
        device: a device for `device_map`; None for all GPUs if there are any, else the CPU.
        options: other arguments of `uag.attach`.

    Attributes:
        target: see above.
        url: the address of the server.
        totals: sums over all requests.

    Raises:
        ImportError: the server's packages are not installed.
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
        **options: Any,
    ) -> None:
        if not is_serve_available():
            raise ImportError("uag serve needs transformers' server. Install it: pip install 'uag-transformers[serve]'")
        from transformers.cli.serve import Serve

        device = device or ("auto" if accelerator() else "cpu")
        dtype = dtype or ("float32" if device == "cpu" else "auto")
        check_dtype(dtype)

        class _Serve(Serve):
            def start_server(self) -> None:
                """Do nothing: the constructor calls it, and `Server.run` starts the server instead."""

        self.target = target
        self.url = f"http://{host}:{port}"
        self.totals = Totals()
        # A wrong name fails here, before gigabytes of weights are read.
        self._has_chat = bool(getattr(load_tokenizer(target, role="target"), "chat_template", None))
        with self._attaching(draft, options):
            served = _Serve(force_model=target, host=host, port=port, dtype=dtype, device=device, non_blocking=True)
        self._server = served.server
        self._server.config.timeout_graceful_shutdown = _SHUTDOWN_S
        self._server.config.app.get("/v1/uag/stats")(self.stats)
        self._limit = MaxTimeCriteria(math.inf)
        self._running = threading.Lock()

    def run(self) -> None:
        """Serve until Ctrl-C, which ends running requests at their next token."""
        handle_exit = self._server.handle_exit

        def end(signal: int, frame: Any) -> None:
            self._limit.max_time = -math.inf
            handle_exit(signal, frame)

        self._server.handle_exit = end
        routing.add(self._limited, is_first=True)
        try:
            self._server.run()
        except KeyboardInterrupt:  # uvicorn raises it after the shutdown
            pass
        finally:
            with self._running:  # PyTorch aborts if the interpreter ends during a pass
                routing.remove(self._limited)

    def _limited(self, generate: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Let a call of `generate` end when the server does."""
        kwargs["stopping_criteria"] = [*(kwargs.get("stopping_criteria") or ()), self._limit]
        with self._running:
            return generate(model, *args, **kwargs)

    def stats(self) -> dict[str, Any]:
        """Return the sums over all requests, the response of `GET /v1/uag/stats`."""
        return self.totals.to_dict()

    def example(self) -> str:
        """Return a shell command that sends a request."""
        body: dict[str, Any] = {"model": self.target, "max_tokens": 64}
        if self._has_chat:
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
            def load_model_and_processor(self, *args: Any, **kwargs: Any) -> Any:
                model, processor = super().load_model_and_processor(*args, **kwargs)
                try:
                    server.totals = totals_of(model)
                except UnsupportedError:
                    attach(model, draft, tokenizer=getattr(processor, "tokenizer", processor), **options)
                    server.totals = totals_of(model)
                return model, processor

        model_manager.ModelManager = _AttachingManager
        try:
            yield
        finally:
            model_manager.ModelManager = original
