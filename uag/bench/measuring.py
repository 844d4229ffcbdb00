"""Measure the arms of a benchmark: first that their outputs are equal, then how long they take, interleaved."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch

from uag.bench.arms import (
    DEFAULT_ARM_NAMES,
    NUM_FIXED_CANDIDATE_TOKENS,
    PEER_ARM_NAMES,
    Arm,
    Run,
    build_arms,
    check_arm_names,
    run_arm,
)
from uag.bench.equality import Difference, first_difference, replay, sampling_noise
from uag.bench.identity import ids_digest
from uag.bench.journal import Journal
from uag.bench.prompts import Prompt
from uag.bench.record import Record
from uag.errors import OptionError
from uag.hf import models
from uag.loading import Pair, encode

_NUM_WARM_UP_TOKENS = 16
"""Enough for a few rounds; more cost a slow model time."""

# What transformers raises where its own path does not support a pair, a batch or an option.
PEER_ERRORS = (ValueError, TypeError, AttributeError, RuntimeError, IndexError, KeyError, NotImplementedError)


@dataclass(frozen=True)
class BenchOptions:
    """What to measure; one group of records for each batch size and temperature (0 stands for greedy).

    With `warms_up_once` the arms run untimed on the first group only, a few tokens each: for slow models.
    """

    arm_names: tuple[str, ...] = DEFAULT_ARM_NAMES
    batch_sizes: tuple[int, ...] = (1,)
    temperatures: tuple[float, ...] = (0.0,)
    max_new_tokens: int = 64
    num_trials: int = 5
    num_candidate_tokens: int = NUM_FIXED_CANDIDATE_TOKENS
    seed: int = 0
    is_chat: bool = False
    warms_up_once: bool = False

    def __post_init__(self) -> None:
        check_arm_names(self.arm_names)
        counts = (self.max_new_tokens, self.num_trials, self.num_candidate_tokens, *self.batch_sizes)
        if min(counts) < 1:
            raise OptionError("batch sizes, new tokens, trials and candidates must be 1 or more")
        if min(self.temperatures) < 0:
            raise OptionError(f"temperatures are {self.temperatures!r}, they must be 0 (greedy) or more")


@dataclass(frozen=True)
class Place:
    """How far a measurement is, in runs and in groups of prompts.

    `num_known` of the runs that are done were measured earlier; `arm` ran last, "" where the group was known.
    """

    num_done: int
    num_runs: int
    num_known: int
    group: int
    num_groups: int
    arm: str = ""


def measure(
    pair: Pair,
    prompts: Sequence[Prompt],
    options: BenchOptions,
    *,
    arms: Sequence[Arm] | None = None,
    journal: Journal | None = None,
    on_run: Callable[[Place], None] = lambda _: None,
) -> Iterator[Record]:
    """Yield a record for each arm and prompt; plain comes first in every group, whether asked for or not.

    Each arm runs once untimed: that warms it up and shows whether it writes what plain writes. The arms that do are
    then timed `num_trials` times, one after the other in turns, and every timed output is compared again. With
    `warms_up_once` the first timed run is the one that is compared.

    Args:
        pair: the models.
        prompts: what they go on from.
        options: what to measure.
        arms: ways to generate, plain decoding first; None for those that the options name.
        journal: gives the records that an earlier run has measured, and takes those of this one, a group at a time.
        on_run: called after each run of an arm, and for each group that was known.
    """
    if arms is None:
        names = ["plain", *(name for name in options.arm_names if name != "plain")]
        arms = build_arms(pair, names, num_candidate_tokens=options.num_candidate_tokens)
    groups = [
        (batch_size, temperature, start)
        for batch_size, temperature in product(options.batch_sizes, options.temperatures)
        for start in range(0, len(prompts), batch_size)
    ]
    runs_per_group = len(arms) * (options.num_trials + (not options.warms_up_once))
    num_known, is_warm = 0, not options.warms_up_once
    for index, (batch_size, temperature, start) in enumerate(groups):
        group = _Group(pair, prompts[start : start + batch_size], batch_size, temperature, options, start)
        place = Place(index * runs_per_group, len(groups) * runs_per_group, num_known, index + 1, len(groups))
        rows = None if journal is None else journal.find(group.key)
        if rows is not None:
            num_known += runs_per_group
            on_run(replace(place, num_done=place.num_done + runs_per_group, num_known=num_known))
            yield from map(Record.from_dict, rows)
            continue
        if not is_warm:
            group.warm_up(arms)
            is_warm = True
        records = group.measure(arms, place, on_run)
        if journal is not None:
            journal.write(group.key, [record.to_dict(pair) for record in records])
        yield from records


def num_records(num_prompts: int, options: BenchOptions) -> int:
    """Return how many records `measure` will yield.

    >>> num_records(10, BenchOptions(arm_names=("uag",), batch_sizes=(1, 4), temperatures=(0.0, 1.0)))
    52
    """
    num_groups = sum(-(-num_prompts // batch_size) for batch_size in options.batch_sizes) * len(options.temperatures)
    return num_groups * len({"plain", *options.arm_names})


@dataclass
class _Outcome:
    """What one arm did on one group so far; the first of its runs is untimed unless the arms are warm."""

    arm: Arm
    runs: list[Run] = field(default_factory=list)
    refusal: str | None = None
    rounding: str | None = None


class _Group:
    """The prompts of one batch, and what every arm is called with; `start` is the place of the first of them."""

    def __init__(
        self,
        pair: Pair,
        prompts: Sequence[Prompt],
        batch_size: int,
        temperature: float,
        options: BenchOptions,
        start: int,
    ) -> None:
        self.pair, self.prompts = pair, prompts
        self.batch_size, self.temperature = batch_size, temperature
        self.num_trials, self.seed = options.num_trials, options.seed + start
        self.num_untimed = 0 if options.warms_up_once else 1
        self.inputs = encode(pair, [prompt.content for prompt in prompts], is_chat=options.is_chat)
        self.generate_options: dict[str, Any] = {"max_new_tokens": options.max_new_tokens, "do_sample": temperature > 0}
        if temperature > 0:
            # The whole distribution: transformers would keep the 50 likeliest tokens unless told otherwise.
            self.generate_options |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}

    @property
    def key(self) -> dict[str, Any]:
        """What tells this group from the others of one measurement."""
        names = [prompt.prompt_id for prompt in self.prompts]
        digest = ids_digest(self.inputs)
        seed = self.seed if self.temperature > 0 else None
        return {"prompts": names, "ids": digest, "temperature": self.temperature, "seed": seed}

    def warm_up(self, arms: Sequence[Arm]) -> None:
        """Run each arm for a few tokens; what is wrong with one shows when it is measured."""
        options = self.generate_options | {"max_new_tokens": _NUM_WARM_UP_TOKENS}
        for arm in arms:
            with suppress(*PEER_ERRORS):
                run_arm(arm, self.pair, self.inputs, options, self.seed)

    def measure(self, arms: Sequence[Arm], place: Place, on_run: Callable[[Place], None]) -> list[Record]:
        """Run the arms in turns, plain decoding first; an arm that is refused takes no further turn."""
        outcomes = [_Outcome(arm) for arm in arms]
        for trial in range(self.num_untimed + self.num_trials):
            for turn, outcome in enumerate(outcomes, start=1):
                if outcome.refusal is None:
                    self._take_turn(outcome, plain=outcomes[0])
                num_done = place.num_done + trial * len(outcomes) + turn
                on_run(replace(place, num_done=num_done, arm=outcome.arm.name))
        return [self._record(outcome) for outcome in outcomes]

    def _take_turn(self, outcome: _Outcome, plain: _Outcome) -> None:
        """Run an arm; note where it differs from plain decoding: as rounding, or as the reason not to report it."""
        try:
            run = run_arm(outcome.arm, self.pair, self.inputs, self.generate_options, self.seed)
        except PEER_ERRORS as error:
            if outcome.arm.name not in PEER_ARM_NAMES:
                raise
            outcome.refusal = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            return
        outcome.runs.append(run)
        plain_ids = plain.runs[0].output_ids
        difference = first_difference(plain_ids, run.output_ids)
        if difference is None:
            return
        if not self.pair.is_encoder_decoder:
            difference = replay(self.pair.target, self.inputs, plain_ids, difference, self._noise(difference))
        description = difference.describe(self.pair.target_tokenizer)
        if difference.is_rounding:
            outcome.rounding = description
        else:
            outcome.refusal = f"differs from plain decoding in {description}"

    def _noise(self, difference: Difference) -> torch.Tensor | None:
        """Return what sampling adds to a logit before the argmax, None for greedy."""
        if self.temperature == 0:
            return None
        target, num_rows = self.pair.target, len(self.prompts)
        size = models.head_size(target)
        # Plain decoding adds the noise to logit / temperature, the replay to the logit.
        return self.temperature * sampling_noise(
            self.seed, difference.step, num_rows, difference.row, size, target.device
        )

    def _record(self, outcome: _Outcome) -> Record:
        record = Record(
            arm=outcome.arm.name,
            prompt_ids=tuple(prompt.prompt_id for prompt in self.prompts),
            categories=tuple(prompt.category for prompt in self.prompts),
            batch_size=self.batch_size,
            temperature=self.temperature,
            num_prompt_tokens=int(self.inputs["attention_mask"].sum()),
            refusal=outcome.refusal,
        )
        if not record.is_reported:
            return record
        first = outcome.runs[0]
        trial_seconds = tuple(run.seconds for run in outcome.runs[self.num_untimed :])
        return replace(
            record,
            num_output_tokens=first.num_output_tokens,
            seconds=statistics.median(trial_seconds),
            trial_seconds=trial_seconds,
            num_rounds=first.num_rounds,
            num_candidate_tokens=first.num_candidate_tokens,
            num_accepted_tokens=first.num_accepted_tokens,
            num_target_forwards=first.num_target_forwards,
            rounding=outcome.rounding,
            stats=None if first.stats is None else first.stats.to_dict(),
        )
