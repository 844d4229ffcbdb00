"""How well the lookahead chooses the number of candidates: real or synthetic rounds, replayed at known costs.

    python benchmarks/lookahead.py record --output FILE [--pairs demo] [--prompts 8] [--tokens 96]
    python benchmarks/lookahead.py replay [FILE ...] [--policy MODULE:CLASS] [--calls 8] [--restarts 4] [--output FILE]

`record` writes, for every position of a target's text, what the draft would have proposed there: each candidate's
confidence, how many the target would have accepted, and what drafting cost. `replay` runs a policy along such texts and
along synthetic ones, on machines whose costs are given. What the policy sees of them is noisy: 3 % jitter, a tenth of
the measurements three times as long, first passes cold.

A call's regret is the policy's time relative to that of the best fixed number of candidates (0, 3, 5 or 8) for this
very text, less one. "One length" compares with the best single number for all calls of a scenario. Below zero, the
policy is faster than any of them. Times include the target's reading of the prompt and leave out the noise.
"""

import argparse
import importlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import common
from rich.console import Console
from rich.table import Table

from uag.drafting.pairing import Pairing
from uag.hf import models
from uag.loading import Pair, encode_prompt
from uag.lookahead import Lookahead, Round
from uag.measure import Text
from uag.measure.replay import Replay
from uag.measure.writing import BatchWriter
from uag.proposal import Proposal

LENGTHS = (0, 3, 5, 8)
MOST_CANDIDATES = 16
LEVELS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95)


@dataclass(frozen=True)
class Machine:
    """What passes cost, in milliseconds.

    Attributes:
        name: for the table.
        plain: a plain target pass.
        block: a target pass over candidates, without them.
        token: each candidate in such a pass.
        start: drafting, without candidates.
        candidate: drafting one candidate.
        reading: the draft's reading of one prompt token.
    """

    name: str
    plain: float
    block: float
    token: float
    start: float
    candidate: float
    reading: float

    @property
    def target_reading(self) -> float:
        """Milliseconds of the target's reading of one prompt token: in proportion to those of a pass."""
        return self.reading * self.plain / self.candidate

    def round_ms(self, num_candidates: int) -> float:
        """Return the milliseconds of a round."""
        if not num_candidates:
            return self.plain
        return self.block + self.start + num_candidates * (self.token + self.candidate)


MACHINES = (
    Machine("CPU, draft 1/3", 60.0, 68.0, 4.0, 4.0, 20.0, 4.0),
    Machine("CPU, draft 1/12", 200.0, 220.0, 12.0, 6.0, 16.0, 6.0),
    Machine("GPU, draft 1/12", 12.0, 12.0, 0.0, 1.0, 1.0, 0.02),
    Machine("CPU, draft 2/3", 60.0, 75.0, 6.0, 4.0, 40.0, 10.0),
)


class Position(NamedTuple):
    """What the draft proposes at one position of a text.

    Attributes:
        confidences: of the candidates.
        num_accepted: how many of them the target accepts.
    """

    confidences: Sequence[float]
    num_accepted: int


@dataclass(frozen=True)
class Script:
    """One text, for any policy to draft along.

    Attributes:
        name: of the pair or scenario.
        num_prompt_tokens: of the prompt.
        positions: from the second output token on; the first is the prompt pass's.
        coldness: how many times as long the first draft pass and the first target passes take.
    """

    name: str
    num_prompt_tokens: int
    positions: Sequence[Position]
    coldness: float = 1.0

    def fixed_ms(self, machine: Machine, length: int) -> float:
        """Return the milliseconds of decoding with a fixed number of candidates."""
        place, total = 0, self.num_prompt_tokens * (machine.target_reading + (machine.reading if length else 0.0))
        while place < len(self.positions):
            confidences, num_accepted = self.positions[place]
            size = min(length, len(confidences))
            total += machine.round_ms(size)
            place += min(num_accepted, size) + 1
        return total


# ---------------------------------------------------------------------- policies along scripts


def run_call(policy: Any, script: Script, machine: Machine, draw: random.Random) -> tuple[float, list[int]]:
    """Let a policy decide a call; return its expected milliseconds, and the candidates of each round."""

    def seen_s(milliseconds: float) -> float:
        slow = 3.0 if draw.random() < 0.1 else 1.0
        return milliseconds / 1e3 * slow * draw.lognormvariate(0.0, 0.03)

    num_tokens = script.num_prompt_tokens
    policy.begin(1, "greedy", num_tokens, len(script.positions) + 1, machine.candidate / machine.plain)
    total = num_tokens * machine.target_reading
    policy.learn_prefill(seen_s(total))
    if size := getattr(policy, "num_to_measure", int)():  # policies that measure how fast the draft reads
        total += size * machine.reading
        policy.learn_reading(size, seen_s(script.coldness * size * machine.reading))
    place, lengths = 0, list[int]()
    while place < len(script.positions):
        confidences, num_acceptable = script.positions[place]
        drafted = list[Proposal]()
        limit = min(policy.plan(1), len(confidences))
        while len(drafted) < limit:
            drafted.append(Proposal(0, confidences[len(drafted)]))
            if not policy.go_on(0, drafted):
                break
        size, num_accepted = len(drafted), min(num_acceptable, len(drafted))
        is_first_draft = size > 0 and not any(lengths)
        reading_ms = num_tokens * machine.reading if is_first_draft else 0.0
        draft_ms = machine.start + size * machine.candidate if size else 0.0
        target_ms = machine.round_ms(size) - draft_ms
        draft_s = seen_s(draft_ms * (script.coldness if is_first_draft else 1.0))
        target_s = seen_s(target_ms * (1.0 if lengths else script.coldness))
        policy.learn_round(Round(size, draft_s, target_s, [(drafted, num_accepted)], seen_s(reading_ms)))
        total += reading_ms + draft_ms + target_ms
        place += num_accepted + 1
        lengths.append(size)
    return total, lengths


@dataclass(frozen=True)
class Result:
    """Regrets of a policy in one scenario on one machine, in percent.

    Attributes:
        scenario, machine: what was replayed.
        first: of first calls, on average.
        later: of the other calls, on average.
        worst: of one later call in twenty, at least.
        one_length: of later calls, relative to the best single length for all of them.
    """

    scenario: str
    machine: str
    first: float
    later: float
    worst: float
    one_length: float


def replay(make_policy: Callable[[], Any], runs: Sequence[Sequence[Script]], machine: Machine, seed: int = 0) -> Result:
    """Run a new policy along each sequence of calls, and compare it with fixed lengths."""
    first, later = list[float](), list[float]()
    total, fixed = 0.0, dict.fromkeys(LENGTHS, 0.0)
    for index, scripts in enumerate(runs):
        policy, draw = make_policy(), random.Random(f"{seed} {index} {machine.name}")
        for number, script in enumerate(scripts):
            milliseconds, _ = run_call(policy, script, machine, draw)
            by_length = {length: script.fixed_ms(machine, length) for length in LENGTHS}
            (later if number else first).append(100.0 * (milliseconds / min(by_length.values()) - 1.0))
            if number:
                total += milliseconds
                fixed = {length: fixed[length] + by_length[length] for length in LENGTHS}
    worst = sorted(later)[int(0.95 * len(later))]
    one_length = 100.0 * (total / min(fixed.values()) - 1.0)
    return Result(runs[0][0].name, machine.name, mean(first), mean(later), worst, one_length)


# ---------------------------------------------------------------------- synthetic texts


def synthetic(
    name: str,
    draw: random.Random,
    acceptances: Sequence[float],
    confidence: str,
    *,
    num_tokens: int | None = None,
    num_prompt_tokens: int | None = None,
    coldness: float = 1.0,
) -> Script:
    """Make up a text.

    Args:
        name: of the scenario.
        draw: where chance comes from.
        acceptances: of the parts of the text, of equal length.
        confidence: "calibrated" (varies, and is the true probability), "constant", or "sure" (high whatever happens).
        num_tokens: output tokens; None for a usual number.
        num_prompt_tokens: the same of the prompt.
        coldness: see `Script`.
    """
    num_tokens = num_tokens or draw.choice((40, 80, 160))
    confidences, are_right = [], []
    for place in range(num_tokens + MOST_CANDIDATES):
        level = acceptances[min(place * len(acceptances) // num_tokens, len(acceptances) - 1)]
        chance = level
        if confidence == "calibrated" and 0.0 < level < 1.0:
            chance = draw.betavariate(1.2 * level, 1.2 * (1.0 - level))
        confidences.append(draw.uniform(0.8, 0.99) if confidence == "sure" else chance)
        are_right.append(draw.random() < chance)
    positions = []
    for place in range(1, num_tokens):
        line = confidences[place : min(place + MOST_CANDIDATES, num_tokens)]
        wrong = (number for number in range(len(line)) if not are_right[place + number])
        positions.append(Position(line, next(wrong, len(line))))
    return Script(name, num_prompt_tokens or draw.choice((8, 30, 100)), positions, coldness)


def scenarios(num_calls: int, num_restarts: int) -> Iterator[list[list[Script]]]:
    """Yield the sequences of calls of each scenario."""

    def runs(
        name: str, confidence: str, levels: Callable[[int, random.Random], Sequence[float]], **options: Any
    ) -> Any:
        cold = options.pop("coldness", 3.0)
        made = []
        for restart in range(num_restarts):
            draw = random.Random(f"{name} {restart}")
            made.append(
                [
                    synthetic(name, draw, levels(call, draw), confidence, coldness=1.0 if call else cold, **options)
                    for call in range(num_calls)
                ]
            )
        return made

    for confidence in ("calibrated", "constant", "sure"):
        for level in LEVELS:
            yield runs(f"{confidence}, {level:.0%}", confidence, lambda *_, level=level: (level,))
        yield runs(f"{confidence}, any level per text", confidence, lambda _, draw: (draw.choice(LEVELS),))
    yield runs("90 % until the middle, then 10 %", "sure", lambda *_: (0.9, 0.1))
    yield runs("10 % until the middle, then 90 %", "sure", lambda *_: (0.1, 0.9))
    yield runs(
        "a very cold first call at 0 %, then 80 %", "calibrated", lambda call, _: (0.8 if call else 0.0,), coldness=8.0
    )
    yield runs("0 % in four calls, then 95 %", "sure", lambda call, _: (0.95 if call > 3 else 0.0,))
    yield runs(
        "a prompt of 2,900 tokens, 8 new ones", "calibrated", lambda *_: (0.8,), num_tokens=8, num_prompt_tokens=2900
    )


# ---------------------------------------------------------------------- recording


def record(pair: Pair, name: str, prompts: Iterable[str], num_tokens: int) -> Iterator[dict[str, Any]]:
    """Yield, for each prompt, what the draft proposes at every position of the target's text."""
    drafter = Pairing(pair.draft, pair.target_tokenizer, pair.draft_tokenizer).for_all
    if drafter is None:
        raise SystemExit(f"{name}: a tokenizer is missing.")
    recorder = Replay(drafter, models.head_size(pair.target))
    for number, prompt in enumerate(prompts):
        due = Text(str(number), tuple(encode_prompt(pair.target_tokenizer, prompt)))
        (text,) = BatchWriter(pair.target, num_tokens).write([due])
        rounds = recorder.rounds(
            text, Lookahead(fixed=MOST_CANDIDATES), lambda left: left or None, start=1, every_token=True
        )
        positions = [
            {
                "confidences": [round(proposal.confidence, 4) for proposal in done.candidates],
                "num_accepted": done.num_accepted,
                "draft_s": round(done.draft_s, 5),
                "num_passes": done.num_forwards,
            }
            for done in rounds
        ]
        yield {"name": name, "num_prompt_tokens": len(due.prompt_ids), "positions": positions}


def read_scripts(path: Path) -> list[list[Script]]:
    """Return the recorded texts of each pair in a file, as one sequence of calls each."""
    scripts = []
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        positions = [Position(one["confidences"], one["num_accepted"]) for one in fields["positions"]]
        scripts.append(Script(fields["name"], fields["num_prompt_tokens"], positions))
    return [list(group) for _, group in groupby(scripts, lambda script: script.name)]


# ---------------------------------------------------------------------- command line


def main() -> None:
    """Record or replay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("--pairs", nargs="+", default=["demo<-demo"], help="TARGET<-DRAFT: demo, py or folders")
    common.add_options(recording, prompts=8, tokens=96)
    replaying = commands.add_parser("replay")
    replaying.add_argument("files", nargs="*", type=Path, help="recorded texts, replayed in random order")
    replaying.add_argument("--policy", default="uag.lookahead:Lookahead", help="a class with Lookahead's methods")
    common.add_options(replaying, calls=8, restarts=4)
    arguments = common.parse(parser)
    if arguments.command == "record":
        with arguments.output.open("w") as file:
            for folders in map(_folders, arguments.pairs):
                for line in record(
                    folders.load(), folders.name, common.python_texts(arguments.prompts), arguments.tokens
                ):
                    print(json.dumps(line), file=file, flush=True)
        return
    module, _, name = arguments.policy.partition(":")
    results = list(_replay_all(getattr(importlib.import_module(module), name), arguments))
    Console(width=140).print(_table(results), *_summary(results), sep="\n")
    if arguments.output is not None:
        arguments.output.write_text("".join(json.dumps(asdict(result)) + "\n" for result in results))


def _folders(pair: str) -> common.Folders:
    known = common.demo_and_python([pair])
    target, _, draft = pair.partition("<-")
    return known[0] if known else common.Folders(f"{Path(target).name}<-{Path(draft).name}", target, draft)


def _replay_all(policy: Callable[[], Any], arguments: argparse.Namespace) -> Iterator[Result]:
    recorded = [scripts for path in arguments.files for scripts in read_scripts(path)]
    shuffled = [
        [random.Random(restart).sample(scripts, len(scripts)) for restart in range(arguments.restarts)]
        for scripts in recorded
    ]
    for runs in [*shuffled, *scenarios(arguments.calls, arguments.restarts)]:
        for machine in MACHINES:
            yield replay(policy, runs, machine)


def _table(results: Sequence[Result]) -> Table:
    table = Table(
        title="regret in percent: first call / later calls / worst of twenty / one length", title_justify="left"
    )
    table.add_column("scenario")
    for machine in MACHINES:
        table.add_column(machine.name, justify="right")
    for scenario, group in groupby(results, lambda result: result.scenario):
        cells = [f"{one.first:.0f} / {one.later:.1f} / {one.worst:.0f} / {one.one_length:.1f}" for one in group]
        table.add_row(scenario, *cells)
    return table


def _summary(results: Sequence[Result]) -> Iterator[str]:
    for machine in MACHINES:
        here = [result for result in results if result.machine == machine.name]
        worst = max(here, key=lambda result: result.later)
        yield (
            f"{machine.name}: first calls {mean(one.first for one in here):.1f} %, later calls "
            f"{mean(one.later for one in here):.1f} %, in the worst scenario {worst.later:.1f} % ({worst.scenario})"
        )


if __name__ == "__main__":
    main()
