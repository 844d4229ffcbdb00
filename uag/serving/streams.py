"""Streams of answers: their seeds, their ends, and their errors."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

_STREAMED_ERROR = re.compile(rb'(\A|\n\n)data: \{"error": "(.*)"\}\n\n\Z', re.DOTALL)


class Served:
    """A target whose calls of `generate` start from a seed, on the thread that draws.

    A stream ends after the call: after an error, transformers' server reports it only if the stream has no end.
    """

    def __init__(self, model: Any, seed: int | None) -> None:
        self._model, self._seed = model, seed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def generate(self, *, streamer: Any, **kwargs: Any) -> Any:
        """Return the sequences of a call."""
        if self._seed is not None:
            torch.manual_seed(self._seed)
        output = self._model.generate(streamer=_Endless(streamer), **kwargs)
        streamer.end()
        return output


class _Endless(BaseStreamer):
    def __init__(self, streamer: Any) -> None:
        self._streamer = streamer

    def put(self, value: Any) -> None:
        self._streamer.put(value)

    def end(self) -> None:
        pass


class UntilEnd(BaseStreamer):
    """Aborts calls of `generate` at their next token once the server has ended."""

    has_ended = False

    def put(self, value: Any) -> None:  # noqa: ARG002
        """Raise a ConnectionAbortedError if the server has ended."""
        if self.has_ended:
            raise ConnectionAbortedError("the server is shutting down")

    def end(self) -> None:
        """Do nothing: the answer is not streamed."""


def error_of(reason: str, status: int) -> dict[str, Any]:
    """Return an error in the form of OpenAI's API."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": reason, "type": kind, "param": None, "code": None}}


async def with_valid_errors(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pass on a stream with an error at its end in the form of OpenAI's API; transformers does not escape its text."""
    async for chunk in chunks:
        if found := _STREAMED_ERROR.search(chunk):
            event = json.dumps(error_of(found[2].decode(errors="replace"), 500)).encode()
            chunk = chunk[: found.start()] + found[1] + b"data: " + event + b"\n\n"
        yield chunk
