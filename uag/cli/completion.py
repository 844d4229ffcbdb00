"""Complete one text with a pair, and record the source of each token."""

import codecs
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.assistant import Assistant
from uag.loading import Content, Pair, encode
from uag.stats import Stats


@dataclass(frozen=True)
class Completion:
    """The completion of a prompt, which is empty here if it was a conversation.

    `texts` is the text that each of `output_ids` adds, and `sources` the source of each, as in `uag.Stats`.
    """

    prompt: str
    output_ids: tuple[int, ...]
    texts: tuple[str, ...]
    sources: tuple[str, ...]
    stats: Stats

    @property
    def text(self) -> str:
        """The text after the prompt, without control tokens."""
        return "".join(self.texts)

    def to_dict(self) -> dict[str, Any]:
        """Return the completion as plain data for JSON."""
        return asdict(self) | {"text": self.text, "stats": self.stats.to_dict()}


def complete(
    pair: Pair,
    prompt: Content,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    is_chat: bool = False,
    prediction: str | None = None,
    assistant: Assistant | None = None,
    on_text: Callable[[str], object] = lambda _: None,
) -> Completion:
    """Complete a prompt with uag.

    Args:
        pair: the models.
        prompt: a text, or the messages of a conversation.
        max_new_tokens: maximum number of new tokens.
        temperature: 0 is greedy.
        seed: seed of the sampling.
        is_chat: apply the chat template to a text.
        prediction: the expected text.
        assistant: the pair's assistant; None for a new one.
        on_text: receives each piece of text at once.
    """
    assistant = assistant or Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer)
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
        prompt=prompt if isinstance(prompt, str) else "",
        output_ids=tuple(sequences[0, pair.prompt_width(inputs) :].tolist()),
        texts=tuple(streamer.texts),
        sources=tuple(assistant.stats.sources[0]),
        stats=assistant.stats,
    )


@dataclass
class _TextStreamer:
    """A streamer for `generate` that passes on whole characters.

    `texts` is the text of each token; a character that several tokens form belongs to the last of them.
    """

    adapter: TokenizerAdapter
    on_text: Callable[[str], object]
    texts: list[str] = field(default_factory=list)
    is_at_prompt: bool = True

    def __post_init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def put(self, value: torch.Tensor) -> None:
        """Receive the next token ids; the first call has the prompt, which is not passed on."""
        if self.is_at_prompt:
            self.is_at_prompt = False
            return
        for token_id in value.flatten().tolist():
            self.texts.append(self._decoder.decode(self.adapter.join([token_id]) or b""))
            self.on_text(self.texts[-1])

    def end(self) -> None:
        """Pass on the rest of a character that was never completed."""
        self.on_text(self._decoder.decode(b"", final=True))
