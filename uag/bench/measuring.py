"""Measure the arms of a benchmark interleaved, and compare every output with plain decoding's."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from tqdm.auto import tqdm

from uag.bench.arms import WITHOUT_DRAFT, Arm, build_arms, run_arm
from uag.bench.equality import first_difference, is_half, is_rounding
from uag.bench.prompts import Prompt
from uag.bench.report import Record
from uag.hf import passes
from uag.loading import Pair, encode
from uag.options import BenchOptions

_NUM_WARM_UP_TOKENS = 16
"""Tokens generated in each arm's warm-up call: increase for steadier first trials, decrease to save time."""

# Errors that transformers and other engines raise for a pair, batch or option that they do not support.
PEER_ERRORS = (ValueError, TypeError, AttributeError, RuntimeError, IndexError, KeyError, NotImplementedError)


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
        names = (*first, *(name for name in options.arm_names if name not in first))
        arms = build_arms(pair, replace(options, arm_names=names))
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
        options = generate_options(self.options)
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
            output_ids, figures = run_arm(arm, self.pair, self.inputs, generate_options(self.options), self.seed)
        except PEER_ERRORS as error:
            if arm.name == "plain" or arm.name.startswith("uag"):
                raise
            return replace(self.record(arm), refusal=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
        self.outputs.setdefault(arm.name, output_ids)
        difference, refusal = self._compare(arm, output_ids)
        if refusal:
            return replace(self.record(arm), difference=difference, refusal=refusal)
        seconds = (*record.trial_seconds, figures["seconds"])
        figures |= {"seconds": statistics.median(seconds), "trial_seconds": seconds}
        return replace(record, **figures, difference=difference or record.difference)

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
