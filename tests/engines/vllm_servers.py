"""vLLM servers over loopback: start them, send concurrent requests, and terminate all processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from tests.engines.vllm_runs import ENVIRONMENT, TIMEOUT_S

_REQUEST_TIMEOUT_S = 120
_GRACE_S = 20


class Launch:
    """One launch of the server, or of engines for another launch's server.

    Args:
        log: where its output goes.
        options: vLLM command-line options, by name without dashes; None for a flag.
    """

    def __init__(self, log: Path, **options: Any) -> None:
        self.log = log
        command = [sys.executable, "-m", "tests.engines.vllm_serve", "serve"]
        for name, value in options.items():
            command.append(f"--{name.replace('_', '-')}")
            if value is not None:
                command.append(json.dumps(value) if isinstance(value, dict) else str(value))
        settings = {name: value for name, value in ENVIRONMENT.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
        with log.open("wb") as output:
            # A new session, so that engines and workers are terminated with it.
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=os.environ | settings, stdout=output, stderr=output, start_new_session=True
            )

    def check(self) -> None:
        """Fail if the process has ended."""
        assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.text()[-6000:]}"

    def text(self) -> str:
        """Return its log."""
        return self.log.read_text(errors="replace")

    def ask_to_end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def end(self) -> None:
        """Terminate it and all its children, then kill those that remain."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Server:
    """A running server.

    Args:
        port: its HTTP port.
        launches: all launches that belong to it.
    """

    def __init__(self, port: int, launches: Sequence[Launch]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.launches = launches

    def get(self, path: str, body: dict[str, Any] | None = None, timeout_s: float = _REQUEST_TIMEOUT_S) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            text: str = answer.read().decode()
            return text

    def wait(self) -> None:
        """Wait until it answers."""
        until = time.monotonic() + TIMEOUT_S
        while True:
            for launch in self.launches:
                launch.check()
            try:
                self.get("/health", timeout_s=5)
                return
            except OSError:
                assert time.monotonic() < until, "\n".join(launch.text()[-3000:] for launch in self.launches)
                time.sleep(0.5)

    def complete(self, prompts: Sequence[Sequence[int]], num_clients: int, **options: Any) -> list[list[int]]:
        """Return the ids generated for each prompt, requested by concurrent clients."""

        def ask(ids: Sequence[int]) -> list[int]:
            body = {"model": "target", "prompt": list(ids), "return_token_ids": True, **options}
            token_ids: list[int] = json.loads(self.get("/v1/completions", body))["choices"][0]["token_ids"]
            return token_ids

        with ThreadPoolExecutor(num_clients) as clients:
            return list(clients.map(ask, prompts))

    def counts(self, name: str) -> dict[int, float]:
        """Return one of vLLM's counters by engine."""
        lines = re.findall(rf'^vllm:{name}_total{{.*engine="(\d+)".*}} (\S+)$', self.get("/metrics"), re.MULTILINE)
        return {int(engine): float(value) for engine, value in lines}


def free_ports(num: int) -> list[int]:
    """Return unused ports."""
    sockets = [socket.socket() for _ in range(num)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@contextmanager
def serving(folder: Path, nodes: Sequence[dict[str, Any]], **common: Any) -> Iterator[Server]:
    """Start a server as the first of several launches, and terminate all of them afterwards.

    Args:
        folder: folder for logs.
        nodes: options of each launch.
        common: options of all launches.
    """
    (port,) = free_ports(1)
    launches: list[Launch] = []
    try:
        for number, options in enumerate(nodes):
            server_options = {"host": "127.0.0.1", "port": port, "served_model_name": "target", "api_server_count": 1}
            if "headless" in options:
                server_options = {}
            launches.append(Launch(folder / f"launch-{number}.log", **common, **server_options, **options))
        server = Server(port, launches)
        server.wait()
        yield server
        for launch in launches:
            launch.check()
    finally:
        for launch in launches:
            launch.ask_to_end()
        for launch in launches:
            launch.end()
