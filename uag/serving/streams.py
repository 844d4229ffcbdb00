"""Streams of answers: their seeds, their ends, and their errors."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

_STREAMED_ERROR = re.compile(rb'(\A|\n\n)data: \{"error": "(.*)"\}\n\n\Z', re.DOTALL)


class Served:
    """A target whose calls of `generate` start from a seed, on the thread that draws, and end with the server.

    A stream ends after the call: after an error, transformers' server reports it only if the stream has no end.
    """

    def __init__(self, model: Any, seed: int | None, until_end: "UntilEnd") -> None:
        self._model, self._seed, self._until_end = model, seed, until_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def generate(self, *, streamer: Any = None, **kwargs: Any) -> Any:
        """Return the sequences of a call."""
        if self._seed is not None:
            torch.manual_seed(self._seed)
        output = self._model.generate(streamer=_Endless(streamer, self._until_end), **kwargs)
        if streamer is not None:
            streamer.end()
        return output


class UntilEnd:
    """Whether the server has ended, which aborts its calls of `generate` at their next token."""

    has_ended = False


class _Endless(BaseStreamer):
    def __init__(self, streamer: Any, until_end: UntilEnd) -> None:
        self._streamer, self._until_end = streamer, until_end

    def put(self, value: Any) -> None:
        if self._until_end.has_ended:
            raise ConnectionAbortedError("the server is shutting down")
        if self._streamer is not None:
            self._streamer.put(value)

    def end(self) -> None:
        pass


def error_of(reason: str, status: int) -> dict[str, Any]:
    """Return an error in the form of OpenAI's API."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": reason, "type": kind, "param": None, "code": None}}


async def as_openai(chunks: AsyncIterator[bytes], path: str) -> AsyncIterator[bytes]:
    """Pass on a stream with the end, or the error, of OpenAI's API; transformers does not escape an error's text."""
    found = None
    async for chunk in chunks:
        if found := _STREAMED_ERROR.search(chunk):
            event = json.dumps(error_of(found[2].decode(errors="replace"), 500)).encode()
            chunk = chunk[: found.start()] + found[1] + b"data: " + event + b"\n\n"
        yield chunk
    if not found and path != "/v1/responses":
        yield b"data: [DONE]\n\n"
