"""Complete one text with a pair, and tell where each token came from."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.assistant import Assistant
from uag.loading import Pair, encode
from uag.stats import Stats


@dataclass(frozen=True)
class Completion:
    """What was written after a prompt.

    `texts` is the text that each of `output_ids` contributes, and `is_drafted` tells of each whether the draft proposed
    it; what the draft did not propose, the target wrote itself.
    """

    prompt: str
    output_ids: tuple[int, ...]
    texts: tuple[str, ...]
    is_drafted: tuple[bool, ...]
    stats: Stats

    @property
    def text(self) -> str:
        """The text after the prompt, without control tokens."""
        return "".join(self.texts)

    def to_dict(self) -> dict[str, Any]:
        """Return everything ready for JSON."""
        return {
            "prompt": self.prompt,
            "text": self.text,
            "output_ids": list(self.output_ids),
            "is_drafted": list(self.is_drafted),
            "stats": self.stats.to_dict(),
        }


def complete(
    pair: Pair,
    prompt: str,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    is_chat: bool = False,
    on_text: Callable[[str], None] | None = None,
) -> Completion:
    """Complete a prompt with uag; `temperature` 0 is greedy, `on_text` gets each piece of text as it is written."""
    adapter = from_tokenizer(pair.target_tokenizer)
    assistant = Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer)
    inputs = encode(pair, [prompt], is_chat=is_chat)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": temperature > 0}
    if temperature > 0:
        options["temperature"] = temperature
    if on_text is not None:
        options["streamer"] = _TextStreamer(adapter, on_text)
    torch.manual_seed(seed)
    sequences: torch.Tensor = assistant.generate(pair.target, **inputs, **options)
    start = 1 if pair.is_encoder_decoder else inputs["input_ids"].shape[1]
    output_ids = tuple(sequences[0, start:].tolist())
    return Completion(
        prompt=prompt,
        output_ids=output_ids,
        texts=tuple(decode_tokens([adapter.join([token_id]) for token_id in output_ids])),
        is_drafted=tuple(assistant.stats.origins[0]),
        stats=assistant.stats,
    )


def decode_tokens(token_bytes: Sequence[bytes | None]) -> Iterator[str]:
    """Yield the text of each token; a character that several tokens write belongs to the one that completes it.

    >>> list(decode_tokens([b"a", None, "é".encode()[:1], "é".encode()[1:]]))
    ['a', '', '', 'é']
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for text in token_bytes:
        yield decoder.decode(text or b"")


class _TextStreamer:
    """A streamer for `generate` that hands out text character by character, never half a character."""

    def __init__(self, adapter: TokenizerAdapter, on_text: Callable[[str], None]) -> None:
        self._adapter = adapter
        self._on_text = on_text
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._has_seen_prompt = False

    def put(self, value: torch.Tensor) -> None:
        """Take the prompt, which comes first and is not shown, or the next token ids."""
        if not self._has_seen_prompt:
            self._has_seen_prompt = True
            return
        for token_id in value.flatten().tolist():
            text = self._decoder.decode(self._adapter.join([token_id]) or b"")
            if text:
                self._on_text(text)

    def end(self) -> None:
        """Hand out what is left of a character that was never completed."""
        rest = self._decoder.decode(b"", final=True)
        if rest:
            self._on_text(rest)
