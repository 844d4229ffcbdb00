"""vLLM servers over loopback: start them, send concurrent requests, and terminate all processes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from tests.engines.vllm_runs import ENVIRONMENT, TIMEOUT_S

_GRACE_S = 20


@contextmanager
def launched(log: Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run one launch of the server, or of engines for another launch's server, and end it with all its children."""
    command = [sys.executable, "-m", "tests.engines.vllm_serve", "serve"]
    for name, value in options.items():
        command.append(f"--{name.replace('_', '-')}")
        if value is not None:
            command.append(json.dumps(value) if isinstance(value, dict) else str(value))
    settings = {name: value for name, value in ENVIRONMENT.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    with log.open("wb") as output:
        # A new session, so that engines and workers are terminated with it.
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | settings, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Server:
    """A running server."""

    def __init__(self, port: int, launches: dict[Path, subprocess.Popen[bytes]]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.launches = launches

    def logs(self) -> list[str]:
        texts = {log: log.read_text(errors="replace") for log in self.launches}
        for log, process in self.launches.items():
            assert process.poll() is None, f"ended with {process.returncode}:\n{texts[log][-6000:]}"
        return list(texts.values())

    def get(self, path: str, body: dict[str, Any] | None = None, timeout_s: float = 120.0) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            text: str = answer.read().decode()
            return text

    def wait(self) -> None:
        until = time.monotonic() + TIMEOUT_S
        while True:
            logs = self.logs()
            with suppress(OSError):
                self.get("/health", timeout_s=5)
                return
            assert time.monotonic() < until, "\n".join(text[-3000:] for text in logs)
            time.sleep(0.5)

    def complete(self, prompts: Sequence[Sequence[int]], num_clients: int, **options: Any) -> list[list[int]]:
        def ask(ids: Sequence[int]) -> list[int]:
            body = {"model": "target", "prompt": list(ids), "return_token_ids": True, **options}
            token_ids: list[int] = json.loads(self.get("/v1/completions", body))["choices"][0]["token_ids"]
            return token_ids

        with ThreadPoolExecutor(num_clients) as clients:
            return list(clients.map(ask, prompts))

    def counts(self, name: str) -> dict[int, float]:
        lines = re.findall(rf'^vllm:{name}_total{{.*engine="(\d+)".*}} (\S+)$', self.get("/metrics"), re.MULTILINE)
        return {int(engine): float(value) for engine, value in lines}


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


@contextmanager
def serving(folder: Path, nodes: Sequence[dict[str, Any]], **common: Any) -> Iterator[Server]:
    """Start a server as the first of several launches, and terminate all of them afterwards."""
    port, launches = free_port(), {}
    with ExitStack() as stack:
        for number, options in enumerate(nodes):
            log = folder / f"launch-{number}.log"
            server_options = {"host": "127.0.0.1", "port": port, "served_model_name": "target", "api_server_count": 1}
            all_options = common | ({} if "headless" in options else server_options) | options
            launches[log] = stack.enter_context(launched(log, **all_options))
        server = Server(port, launches)
        server.wait()
        yield server
        server.logs()
