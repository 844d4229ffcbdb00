"""Complete one text with a pair, and record the source of each token."""

import codecs
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import TextStreamer

from uag.adapters import from_tokenizer
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
    assistant: Assistant,
    prompt: Content,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    is_chat: bool = False,
    prediction: str | None = None,
    streams: bool = False,
) -> Completion:
    """Complete a prompt, a text or the messages of a conversation.

    It is sampled with `seed` unless `temperature` is 0. `is_chat` applies the chat template to a text, `prediction` is
    the expected text, and `streams` prints the text as it is generated.
    """
    inputs = encode(pair, [prompt], is_chat=is_chat)
    streamer = TextStreamer(pair.target_tokenizer, skip_prompt=True, skip_special_tokens=True) if streams else None
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
    output_ids = tuple(sequences[0, pair.prompt_width(inputs) :].tolist())
    adapter, decoder = from_tokenizer(pair.target_tokenizer), codecs.getincrementaldecoder("utf-8")(errors="replace")
    return Completion(
        prompt=prompt if isinstance(prompt, str) else "",
        output_ids=output_ids,
        # A character that several tokens form belongs to the last of them.
        texts=tuple(decoder.decode(adapter.join([token_id]) or b"") for token_id in output_ids),
        sources=tuple(assistant.stats.sources[0]),
        stats=assistant.stats,
    )
