"""Drafting for vLLM without an engine: call proposers as vLLM would, for `replay` and `propose`."""

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import common
import numpy as np
import torch
from rich.table import Table

from uag.bench import heldout_prompts
from uag.loading import Pair, load_model, load_tokenizer
from uag.vllm import Proposer

SHARES = (0.1, 0.05, 0.03, 0.02, 0.01)
MAX_LENGTH = 1024
REPLAY_COLUMNS = {
    "pair": "{pair}",
    "proposer": "{proposer}",
    "drafted": "{drafted:.2f}",
    "accepted": "{accepted:.3f}",
    "draft passes": "{passes:.2f}",
}
PROPOSE_COLUMNS = {
    "requests": "{requests}",
    "first round, ms": "{first_ms:.1f}",
    "later rounds, ms": "{later_ms:.1f}",
    "per request, ms": "{per_request_ms:.2f}",
    "drafted per request": "{drafted:.2f}",
}
Output = tuple[list[int], list[int]]
"""Ids of a prompt, and of the target's output."""


class TextProposer:
    """The baseline: decode the context, let the draft continue it, re-encode the text, and propose the new ids.

    A proposer for vLLM's `custom_class` method; the draft is read from `additional_config["text"]`.
    """

    def __init__(self, vllm_config: Any) -> None:
        self.num_candidates = vllm_config.speculative_config.num_speculative_tokens
        self.target_tokenizer = load_tokenizer(vllm_config.model_config.tokenizer)
        self.draft_name = vllm_config.additional_config["text"]["draft"]

    def load_model(self, _target_model: Any) -> None:
        """Load the draft."""
        self.draft = load_model(self.draft_name, dtype="float32", device="cpu")
        self.draft_tokenizer = load_tokenizer(self.draft_name)

    def propose(self, sampled_token_ids: Any, num_tokens: Any, token_ids: Any, slot_mappings: Any = None) -> Any:
        """Return candidates for every request."""
        del slot_mappings
        return [
            self._candidates(token_ids[row, : num_tokens[row]]) if sampled else []
            for row, sampled in enumerate(sampled_token_ids)
        ]

    @torch.inference_mode()
    def _candidates(self, context: np.ndarray) -> list[int]:
        text = self.target_tokenizer.decode(context.tolist(), skip_special_tokens=False)
        inputs = self.draft_tokenizer(text, return_tensors="pt")
        width = inputs["input_ids"].shape[1]
        # Draft tokens may be shorter than the target's, so generate twice as many and truncate.
        continuation = self.draft.generate(**inputs, max_new_tokens=2 * self.num_candidates, do_sample=False)[0, width:]
        new = self.draft_tokenizer.decode(continuation, skip_special_tokens=True)
        encode = self.target_tokenizer.encode
        before, after = (encode(part, add_special_tokens=False) for part in (text, text + new))
        if after[: len(before)] == before:
            return after[len(before) :][: self.num_candidates]
        return encode(new, add_special_tokens=False)[: self.num_candidates]


def _load(kind: Any, pair: common.Folders, num_candidates: int, vocab_size: int, min_confidence: float = 0.0) -> Any:
    """Create a proposer from the parts of vLLM's configuration that it reads, and load its draft."""
    settings = {"draft": pair.draft, "min_confidence": min_confidence, "dtype": "float32", "device": "cpu"}
    proposer = kind(
        SimpleNamespace(
            additional_config={"uag": settings, "text": settings},
            speculative_config=SimpleNamespace(num_speculative_tokens=num_candidates),
            model_config=SimpleNamespace(
                max_model_len=MAX_LENGTH, get_vocab_size=lambda: vocab_size, tokenizer=pair.target,
                tokenizer_revision=None, trust_remote_code=False, is_hybrid=False, is_attention_free=False,
            ),
            parallel_config=SimpleNamespace(rank=0, tensor_parallel_size=1, distributed_executor_backend=None),
        )
    )  # fmt: skip
    proposer.load_model(None)
    return proposer


def replay(arguments: argparse.Namespace) -> None:
    """Print the acceptance of each proposer on existing outputs of the target, and the resulting speed."""
    common.show(arguments, "per target step", REPLAY_COLUMNS, _replay_all(arguments), notes=_speeds)


def _replay_all(arguments: argparse.Namespace) -> Iterator[common.Row]:
    for folders in common.demo_and_python(arguments.pairs):
        pair = folders.load(dtype="float32", device="cpu")
        outputs = list(_written(pair, arguments))
        vocab_size = pair.target.config.vocab_size
        for confidence in arguments.confidences:
            proposer = _load(Proposer, folders, arguments.candidates, vocab_size, confidence)
            row = {"pair": folders.name, "proposer": f"uag {confidence:g}", "min_confidence": confidence}
            row |= _replay(proposer, outputs)
            yield row | {"passes": proposer.stats.num_draft_forwards / row["steps"]}
        if not arguments.no_text:
            proposer = _load(TextProposer, folders, arguments.candidates, vocab_size)
            yield {"pair": folders.name, "proposer": "text"} | _replay(proposer, outputs)


def _speeds(rows: list[common.Row]) -> Iterator[Table]:
    table = Table(title="speed of uag by the cost of a draft pass in target steps", title_justify="left")
    for heading in ("min_confidence", *map(str, SHARES)):
        table.add_column(heading, justify="right")
    by_uag = [row for row in rows if "min_confidence" in row]
    for confidence in dict.fromkeys(row["min_confidence"] for row in by_uag):
        figures = [(row["accepted"], row["passes"]) for row in by_uag if row["min_confidence"] == confidence]
        rates = [statistics.geometric_mean((1 + a) / (1 + share * p) for a, p in figures) for share in SHARES]
        table.add_row(f"{confidence:g}", *(f"{rate:.2f}" for rate in rates))
    yield table


def _written(pair: Pair, arguments: argparse.Namespace) -> Iterator[Output]:
    """Yield the target's output for each prompt."""
    options: dict[str, object] = {"do_sample": False}
    if arguments.temperature:
        options = {"do_sample": True, "temperature": arguments.temperature, "top_k": 0, "top_p": 1.0}
    options |= {"max_new_tokens": arguments.tokens, "num_return_sequences": arguments.samples}
    torch.manual_seed(0)
    for prompt in common.python_texts(arguments.prompts):
        inputs = pair.target_tokenizer(prompt, return_tensors="pt")
        size = inputs["input_ids"].shape[1]
        for row in pair.target.generate(**inputs, **options, eos_token_id=None, pad_token_id=0).tolist():
            yield row[:size], row[size:]


def _replay(proposer: Any, outputs: Sequence[Output]) -> common.Row:
    """Return the number of target steps after the prompts', and the candidates drafted and accepted per step."""
    num_steps = num_candidates = num_accepted = 0
    for prompt_ids, output_ids in outputs:
        ids = np.array([prompt_ids + output_ids], dtype=np.int32)
        position = 1  # the pass over the prompt yields the first token
        while position < len(output_ids):
            (candidates,) = proposer.propose([[1]], np.array([len(prompt_ids) + position]), ids)
            num_steps += 1
            num_candidates += len(candidates)
            for candidate, target_id in zip(candidates, output_ids[position:], strict=False):
                if candidate != target_id:
                    break
                num_accepted += 1
                position += 1
            position += 1
    figures = {"steps": num_steps, "drafted": num_candidates / num_steps, "accepted": num_accepted / num_steps}
    return figures | {"dtype": "float32"}


def propose(arguments: argparse.Namespace) -> None:
    """Print the processor time of a `propose` call for each number of requests."""
    common.show(arguments, "processor time of a propose call", PROPOSE_COLUMNS, _propose(arguments))


def _propose(arguments: argparse.Namespace) -> Iterator[common.Row]:
    demo, length = common.demo_and_python()[0], arguments.prompt_tokens
    tokenizer = load_tokenizer(demo.target)
    ids = tokenizer("\n".join(prompt.text for prompt in heldout_prompts()), truncation=False)["input_ids"]
    for num in arguments.requests:
        proposer = _load(Proposer, demo, arguments.candidates, len(tokenizer))
        buffer = np.zeros((num, MAX_LENGTH), dtype=np.int32)
        for row in range(num):
            start = 97 * row % (len(ids) - length)
            buffer[row, :length] = ids[start : start + length]
        sizes = np.full(num, length, dtype=np.int32)
        milliseconds, drafted = [], []
        for _ in range(arguments.rounds + 1):
            start_s = time.process_time()
            proposed = proposer.propose([[1]] * num, sizes, buffer)
            milliseconds.append(1e3 * (time.process_time() - start_s))
            drafted.append(sum(map(len, proposed)) / num)
            for row, candidates in enumerate(proposed):
                buffer[row, sizes[row]] = candidates[0] if candidates else ids[0]
                sizes[row] += 1
        if proposer.stats.failures:
            raise SystemExit(f"drafting failed: {proposer.stats.failures}")
        later_ms = statistics.median(milliseconds[1:])
        row = {"requests": num, "first_ms": milliseconds[0], "later_ms": later_ms, "per_request_ms": later_ms / num}
        yield row | {"drafted": statistics.mean(drafted[1:]), "dtype": "float32"}
