"""Measure the arms of a benchmark interleaved, and compare every output with plain decoding's."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import GenerationConfig

from uag.bench.arms import ARM_NAMES, WITHOUT_DRAFT, Arm, build_arms, check_arm_names, run_arm
from uag.bench.equality import first_difference, is_half, is_rounding
from uag.bench.prompts import Prompt
from uag.bench.report import Record
from uag.errors import OptionError
from uag.hf import passes
from uag.loading import Pair, encode

_NUM_WARM_UP_TOKENS = 16
"""Tokens generated in each arm's warm-up call: increase for steadier first trials, decrease to save time."""

# Errors that transformers and other engines raise for a pair, batch or option that they do not support.
PEER_ERRORS = (ValueError, TypeError, AttributeError, RuntimeError, IndexError, KeyError, NotImplementedError)


@dataclass(frozen=True)
class BenchOptions:
    """Options of a benchmark.

    Attributes:
        arm_names: plain decoding is always measured.
        batch_size: prompts per call.
        temperature: 0 is greedy.
        max_new_tokens: maximum number of new tokens per prompt.
        num_trials: timed runs of each arm on each batch.
        seed: seed for sampling.
        is_chat: make each prompt a user turn of the target's chat template.
        cache: the `cache_implementation` of every call; None for transformers' default.
        is_compiled: compile the passes after the prompt of every call; needs a static cache.
        draft_independent: of uag's arms, as in `uag.Assistant`; uag-no-draft is then measured, as their reference.
        compile_draft: of the arm uag, as in `uag.Assistant`.
    """

    arm_names: tuple[str, ...] = ARM_NAMES
    batch_size: int = 1
    temperature: float = 0.0
    max_new_tokens: int = 64
    num_trials: int = 5
    seed: int = 0
    is_chat: bool = False
    cache: str | None = None
    is_compiled: bool = False
    draft_independent: bool = False
    compile_draft: bool = False

    def __post_init__(self) -> None:
        check_arm_names(self.arm_names)
        if min(self.max_new_tokens, self.num_trials, self.batch_size) < 1:
            raise OptionError("the batch size, new tokens and trials must be at least 1")
        try:
            GenerationConfig(cache_implementation=self.cache)
        except ValueError as error:
            raise OptionError(str(error)) from error
        if self.is_compiled and self.cache != "static":
            raise OptionError("compiled passes need a static cache: pass --cache static")
        if self.temperature < 0:
            raise OptionError(f"the temperature must be 0 (greedy) or more, not {self.temperature!r}")

    def generate_options(self) -> dict[str, Any]:
        """Return the options of every call of `generate`."""
        options: dict[str, Any] = {"max_new_tokens": self.max_new_tokens, "do_sample": self.temperature > 0}
        if self.cache is not None:
            options["cache_implementation"] = self.cache
        if self.is_compiled:
            options["compile_config"] = passes.compile_config()
        if self.temperature > 0:  # the whole distribution: by default transformers keeps the 50 most probable tokens
            options |= {"temperature": self.temperature, "top_k": 0, "top_p": 1.0}
        return options


def measure(
    pair: Pair, prompts: Sequence[Prompt], options: BenchOptions, *, arms: Sequence[Arm] | None = None
) -> Iterator[Record]:
    """Yield a record for each arm and batch of prompts, plain decoding first, and show progress on a terminal.

    The arms run interleaved, `num_trials` times, and every output is compared with plain decoding's. Before the first
    batch, each arm generates a few tokens after the longest prompt as a warm-up, or all tokens if passes are compiled
    or have a fixed width, because a longer static cache is compiled or tried again. `arms` begin with plain
    decoding; None for those in the options.
    """
    if arms is None:
        first = ["plain", WITHOUT_DRAFT] if options.draft_independent else ["plain"]
        names = [*first, *(name for name in options.arm_names if name not in first)]
        arms = build_arms(pair, names, draft_independent=options.draft_independent, compile_draft=options.compile_draft)
    batches = [_Batch(pair, prompts, options, start) for start in range(0, len(prompts), options.batch_size)]
    max(batches, key=lambda batch: pair.prompt_width(batch.inputs)).warm_up(arms)
    num_runs = len(batches) * options.num_trials * len(arms)
    with tqdm(total=num_runs, desc="measuring", unit="run", disable=None) as bar:
        for batch in batches:
            records = {arm.name: batch.record(arm) for arm in arms}
            for arm in [*arms] * options.num_trials:
                if records[arm.name].refusal is None:
                    records[arm.name] = batch.run(arm, records[arm.name])
                bar.update()
            yield from records.values()


class _Batch:
    """One batch of prompts; `start` is the index of its first prompt."""

    def __init__(self, pair: Pair, prompts: Sequence[Prompt], options: BenchOptions, start: int) -> None:
        self.pair, self.prompts, self.options = pair, prompts[start : start + options.batch_size], options
        self.seed = options.seed + start
        self.inputs = encode(pair, [prompt.content for prompt in self.prompts], is_chat=options.is_chat)
        self.outputs: dict[str, torch.Tensor] = {}  # the first one of each arm

    def warm_up(self, arms: Sequence[Arm]) -> None:
        """Generate with each arm; its errors are reported when it is measured."""
        options = self.options.generate_options()
        if not (self.options.is_compiled or self.options.compile_draft or self.options.draft_independent):
            options["max_new_tokens"] = _NUM_WARM_UP_TOKENS
        for arm in arms:
            with suppress(*PEER_ERRORS):
                run_arm(arm, self.pair, self.inputs, options, self.seed)

    def record(self, arm: Arm) -> Record:
        """Return the record of an arm without figures."""
        return Record(
            arm=arm.name,
            prompt_ids=tuple(prompt.prompt_id for prompt in self.prompts),
            batch_size=self.options.batch_size,
            temperature=self.options.temperature,
            num_prompt_tokens=int(self.inputs["attention_mask"].sum()),
            note=arm.note,
        )

    def run(self, arm: Arm, record: Record) -> Record:
        """Return an arm's record with another trial; without figures if the arm fails or its output is not accepted."""
        try:
            run = run_arm(arm, self.pair, self.inputs, self.options.generate_options(), self.seed)
        except PEER_ERRORS as error:
            if arm.name == "plain" or arm.name.startswith("uag"):
                raise
            return replace(self.record(arm), refusal=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
        self.outputs.setdefault(arm.name, run.output_ids)
        difference, refusal = self._compare(arm, run.output_ids)
        if refusal:
            return replace(self.record(arm), difference=difference, refusal=refusal)
        seconds = (*record.trial_seconds, run.seconds)
        figures: dict[str, Any] = {**run.counts, "seconds": statistics.median(seconds), "trial_seconds": seconds}
        stats = None if run.stats is None else run.stats.to_dict()
        return replace(record, **figures, stats=stats, difference=difference or record.difference)

    def _compare(self, arm: Arm, output_ids: torch.Tensor) -> tuple[str | None, str | None]:
        """Return where an output differs from the reference's, and the refusal unless it may."""
        pair, reference_ids, is_plain = self.pair, self.outputs[arm.reference], arm.reference == "plain"
        difference = first_difference(reference_ids, output_ids)
        if difference is None:
            return None, None
        name = "plain decoding" if is_plain else arm.reference
        where = difference.describe(pair.target_tokenizer, name)
        sampling: dict[str, Any] = {"temperature": self.options.temperature, "seed": self.seed}
        if arm.note or (
            is_plain
            and not pair.is_encoder_decoder
            and is_rounding(pair.target, self.inputs, reference_ids, difference, **sampling)
        ):
            return where, None
        advice = ", by more than rounding explains (compare in float32, or with a fixed width)"
        hint = advice if is_plain and is_half(pair.target) else ""
        return where, f"differs from {name} at {where}{hint}"
