"""Measure the arms of a benchmark interleaved, and compare every output with plain decoding's."""

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from uag.bench.arms import Arm, build_arms, run_arm
from uag.bench.equality import first_difference, is_half
from uag.bench.options import WITHOUT_DRAFT, BenchOptions
from uag.bench.prompts import Prompt
from uag.bench.record import Record
from uag.errors import UagError
from uag.hf import passes
from uag.loading import Pair, encode

_NUM_WARM_UP_TOKENS = 16  # tokens generated in each arm's warm-up call

# Errors that transformers and other engines raise for a pair, batch or option that they do not support.
PEER_ERRORS = (ValueError, TypeError, AttributeError, RuntimeError, IndexError, KeyError, NotImplementedError)
_MAY_BE_REFUSED = (UagError, torch.OutOfMemoryError)  # of uag's arms, whose other errors are never hidden

Progress = Callable[[float, str], None]


def measure(
    pair: Pair,
    prompts: Sequence[Prompt],
    options: BenchOptions,
    *,
    arms: Sequence[Arm] | None = None,
    progress: Progress = lambda *_: None,
) -> Iterator[Record]:
    """Yield a record for each arm and batch of prompts, plain decoding first.

    The arms run interleaved, `num_trials` times, and every output is compared with plain decoding's, and those of uag's
    arms with uag-no-draft's. The warm-up after the longest prompt takes at most half of the `minutes`, after which no
    call begins: the first batch is then reported as far as it was measured, and a later one if every arm has run it.
    If the target is so slow that one turn of all arms would take longer, every output is shorter, down to 16 tokens.
    `progress` is called before each call, with the share of the work that is done and the arm's name.
    """
    arms = build_arms(pair, options) if arms is None else arms
    batches = [_Batch(pair, prompts, options, start) for start in range(0, len(prompts), options.batch_size)]
    longest = max(batches, key=lambda batch: pair.prompt_width(batch.inputs))
    num_tokens = longest.num_warm_up_tokens + options.max_new_tokens * options.num_trials * len(batches)
    work = _Work(options.minutes, len(arms) * num_tokens, progress)
    call_s, *_ = [longest.warm_up(arm, work) for arm in arms]  # plain decoding's
    first_s = longest.warm_up(arms[0], work, 1) if options.minutes else 0.0  # of the prompt, most of all
    token_s = max(call_s - first_s, 0.0) / max(longest.num_warm_up_tokens - 1, 1)
    num_affordable = max(longest.num_warm_up_tokens, work.num_affordable(len(arms) * token_s, len(arms) * first_s))
    if num_affordable < options.max_new_tokens:
        work.num_tokens -= (options.max_new_tokens - num_affordable) * len(arms) * options.num_trials * len(batches)
        options = replace(options, max_new_tokens=num_affordable)
    for batch in batches:
        batch.options = options
        records, num_runs = batch.measure(arms, work, is_first=batch is batches[0])
        if num_runs < len(arms) and batch is not batches[0]:
            return
        for record in records:
            late = f"not measured within {options.minutes:g} minutes"
            yield record if record.trial_seconds or record.refusal else replace(record, refusal=late)


class _Work:
    """The calls of a benchmark: how many of their tokens are done, and whether their time is over."""

    def __init__(self, minutes: float, num_tokens: int, progress: Progress) -> None:
        self._end_s = time.perf_counter() + (60 * minutes or math.inf)
        self._half_s = (self._end_s + time.perf_counter()) / 2
        self._num_done, self.num_tokens, self._progress = 0, num_tokens, progress

    def begin(self, name: str, num_tokens: int) -> None:
        self._progress(self._num_done / self.num_tokens, name)
        self._num_done += num_tokens

    def num_affordable(self, token_s: float, first_s: float) -> int:
        """Return how many tokens of `token_s` seconds can be generated in the time left, the first in `first_s`."""
        left_s = self._end_s - time.perf_counter() - first_s
        return int(max(left_s, 0.0) / token_s) if token_s and left_s < math.inf else sys.maxsize

    def is_over(self, *, half: bool = False) -> bool:
        return time.perf_counter() > (self._half_s if half else self._end_s)


class _Batch:
    """One batch of prompts; `start` is the index of its first prompt."""

    def __init__(self, pair: Pair, prompts: Sequence[Prompt], options: BenchOptions, start: int) -> None:
        self.pair, self.prompts, self.options = pair, prompts[start : start + options.batch_size], options
        self.seed = options.seed + start
        self.inputs = encode(pair, [prompt.content for prompt in self.prompts], is_chat=options.is_chat)
        self.outputs: dict[str, torch.Tensor] = {}  # the first one of each arm

    @property
    def num_warm_up_tokens(self) -> int:
        options = self.options
        needs_all = options.is_compiled or options.compile_draft or options.draft_independent
        return options.max_new_tokens if needs_all else _NUM_WARM_UP_TOKENS

    def warm_up(self, arm: Arm, work: _Work, num_tokens: int | None = None) -> float:
        """Generate with an arm; return the seconds, 0 after an error, which is reported when it is measured."""
        num_tokens = num_tokens or self.num_warm_up_tokens
        work.begin(f"{arm.name}, warm-up", num_tokens)
        if not work.is_over(half=True):
            with suppress(*PEER_ERRORS):
                options = generate_options(self.options) | {"max_new_tokens": num_tokens}
                seconds: float = run_arm(arm, self.pair, self.inputs, options, self.seed)[1]["seconds"]
                return seconds
        return 0.0

    def measure(self, arms: Sequence[Arm], work: _Work, *, is_first: bool) -> tuple[list[Record], int]:
        """Run all arms in turns until the time is over; return their records and the number of runs."""
        records, num_runs = [self.record(arm) for arm in arms], 0
        for index in [*range(len(arms))] * self.options.num_trials:
            if work.is_over() and (num_runs or not is_first):
                break
            work.begin(arms[index].name, self.options.max_new_tokens)
            if records[index].refusal is None:
                records[index] = self.run(arms[index], records[index])
            num_runs += 1
        return records, num_runs

    def record(self, arm: Arm) -> Record:
        return Record(
            arm=arm.name,
            prompt_ids=tuple(prompt.prompt_id for prompt in self.prompts),
            batch_size=self.options.batch_size,
            temperature=self.options.temperature,
            num_prompt_tokens=int(self.inputs["attention_mask"].sum()),
            draft=arm.draft,
            max_new_tokens=self.options.max_new_tokens,
            note=arm.note,
        )

    def run(self, arm: Arm, record: Record) -> Record:
        """Return an arm's record with another trial; without figures if the arm fails or its output is not accepted."""
        try:
            output_ids, figures = run_arm(arm, self.pair, self.inputs, generate_options(self.options), self.seed)
        except PEER_ERRORS as error:
            if arm.name == "plain" or (arm.name.startswith("uag") and not isinstance(error, _MAY_BE_REFUSED)):
                raise
            return replace(self.record(arm), refusal=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
        self.outputs.setdefault(arm.name, output_ids)
        difference, dependence, refusal = self._compare(arm, output_ids)
        found: dict[str, Any] = {
            "difference": difference or record.difference,
            "dependence": dependence or record.dependence,
        }
        if refusal:
            return replace(self.record(arm), **found, refusal=refusal)
        seconds = (*record.trial_seconds, figures["seconds"])
        figures |= {"seconds": statistics.median(seconds), "trial_seconds": seconds}
        return replace(record, **figures, **found)

    def _compare(self, arm: Arm, output_ids: torch.Tensor) -> tuple[str | None, str | None, str | None]:
        """Return where an output differs from plain decoding's and from uag's without a draft, and the refusal."""
        difference = self._difference("plain", output_ids, "plain decoding")
        dependence = self._difference(WITHOUT_DRAFT, output_ids) if arm.name.startswith("uag") else None
        if dependence and (arm.stats is None or arm.stats().is_draft_independent):
            return difference, dependence, f"differs from {WITHOUT_DRAFT} at {dependence}"
        if difference and not arm.note and not is_half(self.pair.target):
            return difference, dependence, f"differs from plain decoding at {difference}"
        return difference, dependence, None

    def _difference(self, reference: str, output_ids: torch.Tensor, name: str = "") -> str | None:
        if reference not in self.outputs:
            return None
        difference = first_difference(self.outputs[reference], output_ids)
        return None if difference is None else difference.describe(self.pair.target_tokenizer, name or reference)


def generate_options(options: BenchOptions) -> dict[str, Any]:
    """Return the options of every call of `generate`."""
    values: dict[str, Any] = {"max_new_tokens": options.max_new_tokens, "do_sample": options.temperature > 0}
    if options.cache is not None:
        values["cache_implementation"] = options.cache
    if options.is_compiled:
        values["compile_config"] = passes.compile_config()
    if options.temperature > 0:  # the whole distribution: by default transformers keeps the 50 most probable tokens
        values |= {"temperature": options.temperature, "top_k": 0, "top_p": 1.0}
    return values
