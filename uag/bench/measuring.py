"""Measure the arms of a benchmark: first that their outputs are equal, then how long they take, interleaved."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from uag.bench.arms import DEFAULT_ARM_NAMES, PEER_ARM_NAMES, Arm, Run, build_arms, check_arm_names, run_arm
from uag.bench.environment import describe_environment
from uag.bench.equality import Difference, first_difference, replay, sampling_noise
from uag.bench.prompts import Prompt
from uag.errors import OptionError
from uag.loading import Pair, encode

# What transformers raises where its own path does not support a pair, a batch or an option.
PEER_ERRORS = (ValueError, TypeError, AttributeError, RuntimeError, IndexError, KeyError, NotImplementedError)


@dataclass(frozen=True)
class BenchOptions:
    """What to measure; one group of records for each batch size and temperature (0 stands for greedy)."""

    arm_names: tuple[str, ...] = DEFAULT_ARM_NAMES
    batch_sizes: tuple[int, ...] = (1,)
    temperatures: tuple[float, ...] = (0.0,)
    max_new_tokens: int = 64
    num_trials: int = 5
    num_candidate_tokens: int = 5
    seed: int = 0
    is_chat: bool = False

    def __post_init__(self) -> None:
        check_arm_names(self.arm_names)
        counts = (self.max_new_tokens, self.num_trials, self.num_candidate_tokens, *self.batch_sizes)
        if min(counts) < 1:
            raise OptionError("batch sizes, new tokens, trials and candidates must be 1 or more")
        if min(self.temperatures) < 0:
            raise OptionError(f"temperatures are {self.temperatures!r}, they must be 0 (greedy) or more")


@dataclass(frozen=True)
class Record:
    """One arm on one prompt (with a batch: on one group of prompts); tokens and passes are those of one call.

    `seconds` is the median of `trial_seconds`, None where the arm is not reported: `refusal` says why. `rounding` tells
    of the first difference that is the target's own rounding, None where the outputs are equal id for id.
    """

    arm: str
    prompt_ids: tuple[str, ...]
    categories: tuple[str | None, ...]
    batch_size: int
    temperature: float
    num_prompt_tokens: int
    num_output_tokens: int = 0
    seconds: float | None = None
    trial_seconds: tuple[float, ...] = ()
    num_rounds: int = 0
    num_candidate_tokens: int = 0
    num_accepted_tokens: int = 0
    num_target_forwards: int = 0
    rounding: str | None = None
    refusal: str | None = None
    stats: dict[str, Any] | None = None

    @property
    def is_reported(self) -> bool:
        """Whether the arm wrote what plain decoding writes and was therefore timed."""
        return self.refusal is None

    def to_dict(self, pair: Pair) -> dict[str, Any]:
        """Return the record with pair, commit, versions, hardware and dtype, ready for one line of JSON."""
        models = {"target": pair.target_name, "draft": pair.draft_name}
        dtype = str(pair.target.dtype).removeprefix("torch.")
        return {**asdict(self), **models, "dtype": dtype, **describe_environment()}


@dataclass(frozen=True)
class _Group:
    """The prompts of one batch, with what every arm is called with."""

    prompts: Sequence[Prompt]
    batch_size: int
    temperature: float
    seed: int
    inputs: dict[str, torch.Tensor]
    generate_options: dict[str, Any]


@dataclass
class _Outcome:
    """What one arm did on one group so far; `run` is its first, untimed call."""

    arm: Arm
    run: Run | None = None
    seconds: list[float] = field(default_factory=list)
    refusal: str | None = None
    rounding: Difference | None = None


def measure(
    pair: Pair, prompts: Sequence[Prompt], options: BenchOptions, *, on_group: Callable[[], None] = lambda: None
) -> Iterator[Record]:
    """Yield a record for each arm and prompt; plain comes first in every group, whether asked for or not.

    Each arm runs once untimed: that warms it up and shows whether it writes what plain writes. The arms that do are
    then timed `num_trials` times, one after the other in turns, and every timed output is compared again.

    `on_group` is called after each group of records, for a progress bar; `num_groups` tells how many there will be.
    """
    names = ["plain", *(name for name in options.arm_names if name != "plain")]
    arms = build_arms(pair, names, num_candidate_tokens=options.num_candidate_tokens)
    for batch_size in options.batch_sizes:
        for temperature in options.temperatures:
            for start in range(0, len(prompts), batch_size):
                group = _group(pair, prompts[start : start + batch_size], batch_size, temperature, options, start)
                for outcome in _measure_group(pair, arms, group, options.num_trials):
                    yield _record(pair, group, outcome)
                on_group()


def num_groups(num_prompts: int, options: BenchOptions) -> int:
    """Return how many groups of records `measure` will yield.

    >>> num_groups(10, BenchOptions(batch_sizes=(1, 4), temperatures=(0.0, 1.0)))
    26
    """
    return len(options.temperatures) * sum(-(-num_prompts // batch_size) for batch_size in options.batch_sizes)


def _group(
    pair: Pair, prompts: Sequence[Prompt], batch_size: int, temperature: float, options: BenchOptions, start: int
) -> _Group:
    generate_options: dict[str, Any] = {"max_new_tokens": options.max_new_tokens, "do_sample": temperature > 0}
    if temperature > 0:
        # The whole distribution: transformers would keep the 50 likeliest tokens unless told otherwise.
        generate_options |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
    inputs = encode(pair, [prompt.text for prompt in prompts], is_chat=options.is_chat)
    return _Group(prompts, batch_size, temperature, options.seed + start, inputs, generate_options)


def _measure_group(pair: Pair, arms: list[Arm], group: _Group, num_trials: int) -> list[_Outcome]:
    outcomes = [_Outcome(arm) for arm in arms]
    plain = run_arm(arms[0], pair, group.inputs, group.generate_options, group.seed)
    for outcome in outcomes:
        outcome.run = plain if outcome.arm is arms[0] else _first_run(pair, group, outcome)
        _check(pair, group, plain, outcome, outcome.run)
    for _ in range(num_trials):
        for outcome in outcomes:
            if outcome.refusal is None:
                run = run_arm(outcome.arm, pair, group.inputs, group.generate_options, group.seed)
                outcome.seconds.append(run.seconds)
                _check(pair, group, plain, outcome, run)
    return outcomes


def _first_run(pair: Pair, group: _Group, outcome: _Outcome) -> Run | None:
    """Run an arm for the first time; where transformers' own arm refuses the call, note why and return None."""
    try:
        return run_arm(outcome.arm, pair, group.inputs, group.generate_options, group.seed)
    except PEER_ERRORS as error:
        if outcome.arm.name not in PEER_ARM_NAMES:
            raise
        outcome.refusal = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return None


def _check(pair: Pair, group: _Group, plain: Run, outcome: _Outcome, run: Run | None) -> None:
    """Note in the outcome where a run differs from plain's: as rounding, or as the reason not to report the arm."""
    difference = None if run is None else first_difference(plain.output_ids, run.output_ids)
    if difference is None:
        return
    if difference.has_both_ids and not pair.is_encoder_decoder:
        noise = _noise(pair, group, difference)
        difference = replay(pair.target, group.inputs, plain.output_ids, difference, noise)
    if difference.is_rounding:
        outcome.rounding = difference
    else:
        outcome.refusal = f"differs from plain decoding in {difference.describe(pair.target_tokenizer)}"


def _noise(pair: Pair, group: _Group, difference: Difference) -> torch.Tensor | None:
    """Return what sampling adds to a logit before the argmax, None for greedy."""
    if group.temperature == 0:
        return None
    vocabulary_size = pair.target.get_output_embeddings().weight.shape[0]
    draw = sampling_noise(
        seed=group.seed,
        step=difference.step,
        num_rows=len(group.prompts),
        row=difference.row,
        vocabulary_size=vocabulary_size,
        device=pair.target.device,
    )
    # Plain decoding adds it to logit / temperature, the replay to the logit.
    return group.temperature * draw


def _record(pair: Pair, group: _Group, outcome: _Outcome) -> Record:
    record = Record(
        arm=outcome.arm.name,
        prompt_ids=tuple(prompt.prompt_id for prompt in group.prompts),
        categories=tuple(prompt.category for prompt in group.prompts),
        batch_size=group.batch_size,
        temperature=group.temperature,
        num_prompt_tokens=int(group.inputs["attention_mask"].sum()),
        refusal=outcome.refusal,
    )
    run = outcome.run
    if run is None or outcome.refusal is not None:
        return record
    return replace(
        record,
        num_output_tokens=run.num_output_tokens,
        seconds=statistics.median(outcome.seconds),
        trial_seconds=tuple(outcome.seconds),
        num_rounds=run.num_rounds,
        num_candidate_tokens=run.num_candidate_tokens,
        num_accepted_tokens=run.num_accepted_tokens,
        num_target_forwards=run.num_target_forwards,
        rounding=None if outcome.rounding is None else outcome.rounding.describe(pair.target_tokenizer),
        stats=None if run.stats is None else run.stats.to_dict(),
    )
