"""Complete one text with a pair, and tell where each token came from."""

import codecs
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.assistant import Assistant
from uag.loading import Pair, encode
from uag.stats import TARGET, Stats


@dataclass(frozen=True)
class Completion:
    """What was written after a prompt.

    `texts` is the text that each of `output_ids` contributes, and `sources` tells where each came from: the names of
    `uag.Stats`, "target" for what the target wrote itself.
    """

    prompt: str
    output_ids: tuple[int, ...]
    texts: tuple[str, ...]
    sources: tuple[str, ...]
    stats: Stats

    @property
    def is_drafted(self) -> tuple[bool, ...]:
        """Tell of each token whether it was a candidate."""
        return tuple(source != TARGET for source in self.sources)

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
            "sources": list(self.sources),
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
    prediction: str | None = None,
    on_text: Callable[[str], object] = lambda _: None,
) -> Completion:
    """Complete a prompt with uag; `temperature` 0 is greedy, `on_text` gets each piece of text as it is written."""
    assistant = Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer)
    inputs = encode(pair, [prompt], is_chat=is_chat)
    streamer = _TextStreamer(from_tokenizer(pair.target_tokenizer), on_text)
    options: dict[str, Any] = {"temperature": temperature} if temperature > 0 else {}
    torch.manual_seed(seed)
    sequences: torch.Tensor = assistant.generate(
        pair.target,
        **inputs,
        **options,
        max_new_tokens=max_new_tokens,
        do_sample=temperature > 0,
        streamer=streamer,
        prediction=prediction,
    )
    return Completion(
        prompt=prompt,
        output_ids=tuple(sequences[0, pair.prompt_width(inputs) :].tolist()),
        texts=tuple(streamer.texts),
        sources=tuple(assistant.stats.sources[0]),
        stats=assistant.stats,
    )


@dataclass
class _TextStreamer:
    """A streamer for `generate` that hands out text by characters, never half a one.

    `texts` holds the text of each token; a character that several tokens write belongs to the one that completes it.
    """

    adapter: TokenizerAdapter
    on_text: Callable[[str], object]
    texts: list[str] = field(default_factory=list)
    is_at_prompt: bool = True

    def __post_init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def put(self, value: torch.Tensor) -> None:
        """Take the prompt, which comes first and is not shown, or the next token ids."""
        if self.is_at_prompt:
            self.is_at_prompt = False
            return
        for token_id in value.flatten().tolist():
            self.texts.append(self._decoder.decode(self.adapter.join([token_id]) or b""))
            self.on_text(self.texts[-1])

    def end(self) -> None:
        """Hand out what is left of a character that was never completed."""
        self.on_text(self._decoder.decode(b"", final=True))
