"""An engine without a model: vLLM's buffers, and greedy verification against known texts."""

from collections.abc import Collection, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tests.support.trained import prompt, trained
from uag.loading import demo_folder
from uag.vllm import Proposer

GARBAGE = 7
TARGET, DRAFT = demo_folder("target"), demo_folder("draft")


class Engine:
    """Runs requests whose output is known, and accepts candidates that match it."""

    def __init__(self, texts: Sequence[Sequence[int]], prompt_lengths: Sequence[int], max_length: int = 1024) -> None:
        self.texts = [list(text) for text in texts]
        self.prompt_lengths = list(prompt_lengths)
        self.max_length = max_length
        self.sizes = [length + 1 for length in prompt_lengths]
        self.num_steps = 0
        self.num_accepted = 0

    def unfinished(self) -> list[int]:
        return [r for r, text in enumerate(self.texts) if self.sizes[r] < len(text)]

    def context(self, request: int) -> list[int]:
        return self.texts[request][: self.sizes[request]]

    def buffers(
        self, running: Sequence[int], partial: Collection[int] = ()
    ) -> tuple[list[list[int]], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Fill buffers as vLLM does: a row per running request, and garbage in unused entries."""
        ids = np.full((len(running) + 2, self.max_length), GARBAGE, dtype=np.int32)
        sizes = np.full(len(running) + 2, GARBAGE, dtype=np.int32)
        sampled: list[list[int]] = []
        for row, request in enumerate(running):
            known = self.texts[request][: self.prompt_lengths[request]] if request in partial else self.context(request)
            ids[row, : len(known)] = known
            sizes[row] = len(known)
            sampled.append([] if request in partial else known[-1:])
        return sampled, sizes, ids

    def step(self, proposer: Any, running: Sequence[int], partial: Collection[int] = ()) -> list[list[int]]:
        """Request candidates, verify them and write output; requests in `partial` still read their prompt."""
        proposed: list[list[int]] = proposer.propose(*self.buffers(running, partial))
        assert len(proposed) == len(running)
        for request, candidates in zip(running, proposed, strict=True):
            if request in partial:
                assert candidates == []
            else:
                self.write(request, candidates)
        return proposed

    def write(self, request: int, candidates: Sequence[int]) -> None:
        text, start = self.texts[request], self.sizes[request]
        num_accepted = 0
        for position, candidate in enumerate(candidates, start=start):
            if position >= len(text) or text[position] != candidate:
                break
            num_accepted += 1
        self.num_steps += 1
        self.num_accepted += num_accepted
        self.sizes[request] = min(start + num_accepted + 1, len(text))


def config(
    target: str, draft: str | None, num_candidates: int = 5, max_length: int = 1024, vocab_size: int = 1536,
    rank: int = 0, tensor_parallel: int = 1, backend: str | None = None, is_hybrid: bool = False,
    is_attention_free: bool = False, **settings: Any,
) -> SimpleNamespace:  # fmt: skip
    return SimpleNamespace(
        additional_config={"uag": {"draft": draft, **settings}},
        speculative_config=SimpleNamespace(num_speculative_tokens=num_candidates),
        model_config=SimpleNamespace(
            max_model_len=max_length,
            get_vocab_size=lambda: vocab_size,
            tokenizer=target,
            tokenizer_revision=None,
            trust_remote_code=False,
            is_hybrid=is_hybrid,
            is_attention_free=is_attention_free,
        ),
        parallel_config=SimpleNamespace(
            rank=rank, tensor_parallel_size=tensor_parallel, distributed_executor_backend=backend
        ),
    )


def demo_proposer(**options: Any) -> Proposer:
    made = Proposer(config(TARGET, DRAFT, **{"min_confidence": 0.0, **options}))
    made.load_model(None)
    return made


@cache
def _text(length: int) -> list[int]:
    ids = torch.tensor([prompt("demo-target", length, 11 * length)])
    output = trained("demo-target")[0].generate(ids, max_new_tokens=16, do_sample=False, eos_token_id=None)
    written: list[int] = output[0].tolist()
    return written


def demo_engine(lengths: tuple[int, ...] = (30, 60, 12), max_length: int = 1024) -> Engine:
    return Engine([_text(length) for length in lengths], lengths, max_length)


class Clock:
    """A replacement for the `time` module: each call advances it by 10 ms, and the engine's steps by a given time."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 0.01
        return self.now
