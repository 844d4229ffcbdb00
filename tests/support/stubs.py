"""Stubs for the benchmark: a token per character, a fixed continuation, and arms that write a given text."""

import time
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console

from uag.bench.arms import Arm
from uag.hf.cache.caches import CACHE
from uag.loading import Pair

EOS = 1


class StubTokenizer:
    """One token per character, whose id is the code point."""

    pad_token_id = 0
    eos_token_id = EOS

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) for character in text]}

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))

    def get_vocab(self) -> dict[str, int]:
        return {}


class StubTarget(torch.nn.Module):
    """Writes a fixed continuation, with one forward pass per token."""

    device = torch.device("cpu")
    dtype = torch.float32
    config = SimpleNamespace(is_encoder_decoder=False)
    generation_config = SimpleNamespace(eos_token_id=EOS)

    def __init__(self, continuation: str = "abcd") -> None:
        super().__init__()
        self.continuation = [ord(character) for character in continuation]

    def get_output_embeddings(self) -> torch.nn.Linear:
        return torch.nn.Linear(1, 200)

    def forward(self, input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        logits = torch.zeros(*input_ids.shape, 200)
        logits[..., self.continuation[0]] = 1.0
        return SimpleNamespace(logits=logits, **{CACHE: None})

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> torch.Tensor:
        for step in range(len(self.continuation)):
            self(input_ids=input_ids[:, -1:] if step else input_ids)
        rows = input_ids.shape[0]
        return torch.cat([input_ids, torch.tensor([self.continuation] * rows)], dim=1)


def stub_pair(target: Any = None) -> Pair:
    tokenizer = StubTokenizer()
    return Pair(target or StubTarget(), tokenizer, "stub target", None, tokenizer, "stub draft")


def plain_arm(pair: Pair) -> Arm:
    return Arm("plain", pair.target.generate)


def writer(pair: Pair, text: str, name: str = "uag", seconds: float = 0.0) -> Arm:
    def generate(input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        pair.target(input_ids=torch.cat([input_ids, input_ids[:, :1]], dim=1))
        time.sleep(seconds)
        return torch.cat([input_ids, torch.tensor([[ord(character) for character in text]])], dim=1)

    return Arm(name, generate)


def shown(table: Any, width: int = 80) -> str:
    console = Console(width=width, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()
