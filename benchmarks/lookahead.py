"""How well the lookahead chooses the number of candidates: real or synthetic rounds, replayed at known costs.

    python benchmarks/lookahead.py record [--output texts.jsonl] [--pairs "demo<-demo" ...] [--prompts 8] [--tokens 96]
    python benchmarks/lookahead.py replay [FILE ...] [--calls 8] [--restarts 4] [--output FILE]

`record` writes, for every position of a target's text, what the draft would have proposed there: each candidate's
confidence, and how many the target would have accepted. `replay` runs the lookahead along such texts and along
synthetic ones, on machines whose costs are given. What it sees of them is noisy: 3 % jitter, a tenth of the
measurements three times as long, first passes cold. Faults are those of `faults.py`: stalls, and stretches of slow
passes.

A call's regret is the extra time, in percent, relative to the best fixed number of candidates (0 to 15) for this
very text. Below zero, the lookahead is faster than any of them. Times include the target's reading of the prompt and
leave out the noise. Each cell of the table has the mean of first calls, then that of later calls.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import common
import numpy as np
from replay import Replay, Text, write

from uag.drafting.pairing import Pairing
from uag.hf import models
from uag.loading import Pair, encode_prompt
from uag.lookahead import Lookahead, Round
from uag.proposal import Proposal

LENGTHS = (0, 1, 2, 3, 5, 8, 11, 15)
MOST_CANDIDATES = 16
LEVELS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95)
TOKENS, STEPS = (1, 2, 4, 8, 12, 16, 20), (1.0, 1.05, 1.2, 1.7, 2.2, 3.0, 3.8)
"""What a target pass over so many tokens costs, in plain passes, where products get slower in steps."""


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
        wide: what each candidate after the fifth adds to `token`.
        guess: how many times as long as it takes the draft is expected to read a prompt, before it was measured.
        has_steps: whether a target pass costs what `STEPS` says instead.
        slower: how many times as long a draft pass takes as its model's size promises.
    """

    name: str
    plain: float
    block: float
    token: float
    start: float
    candidate: float
    reading: float
    wide: float = 0.0
    guess: float = 1.0
    has_steps: bool = False
    slower: float = 1.0

    @property
    def target_reading(self) -> float:
        """Milliseconds of the target's reading of one prompt token: in proportion to those of a pass, times `guess`."""
        return self.guess * self.reading * self.plain / self.candidate

    @property
    def size_ratio(self) -> float:
        """The draft's size relative to the target's."""
        return self.candidate / self.plain / self.slower

    def round_ms(self, num_candidates: int) -> float:
        """Return the milliseconds of a round."""
        if not num_candidates:
            return self.plain
        drafting = self.start + num_candidates * self.candidate
        if self.has_steps:
            return self.plain * float(np.interp(num_candidates + 1, TOKENS, STEPS)) + drafting
        return self.block + num_candidates * self.token + drafting + max(num_candidates - 5, 0) * self.wide


MACHINES = (
    Machine("CPU, draft 1/3", 60.0, 68.0, 4.0, 4.0, 20.0, 4.0),
    Machine("CPU, draft 1/12", 200.0, 220.0, 12.0, 6.0, 16.0, 6.0),
    Machine("GPU, draft 1/12", 12.0, 12.0, 0.0, 1.0, 1.0, 0.02),
    Machine("CPU, draft 2/3", 60.0, 75.0, 6.0, 4.0, 40.0, 10.0),
    Machine("CPU, flat to six rows", 60.0, 61.5, 1.5, 2.0, 12.0, 3.0, 3.0),
    Machine("target reads 5x faster", 60.0, 64.0, 4.0, 4.0, 10.0, 4.0, guess=0.2),
    Machine("target reads 5x slower", 60.0, 64.0, 4.0, 4.0, 10.0, 4.0, guess=5.0),
    Machine("draft 5x slower than its size", 60.0, 64.0, 4.0, 4.0, 50.0, 4.0, slower=5.0),
    Machine("steps, draft 1/20", 60.0, 60.0, 0.0, 0.0, 3.0, 0.6, has_steps=True),
    Machine("steps, draft 3/10", 60.0, 60.0, 0.0, 0.0, 18.0, 3.6, has_steps=True),
)
COLUMNS = {"scenario": "{scenario}"}
COLUMNS |= {one.name: f"{{{one.name}[first]:.0f}} / {{{one.name}[later]:.1f}}" for one in MACHINES}


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
    """One text to draft along.

    Attributes:
        name: of the pair or scenario.
        num_prompt_tokens: of the prompt.
        positions: from the second output token on; the first is the prompt pass's.
        coldness: how many times as long the first draft pass and the first target passes take.
        faults: passes that something else slows down: (first, number, how many times as long, additional milliseconds).
    """

    name: str
    num_prompt_tokens: int
    positions: Sequence[Position]
    coldness: float = 1.0
    faults: Sequence[tuple[int, int, float, float]] = ()

    def fixed_ms(self, machine: Machine, length: int) -> float:
        """Return the milliseconds of decoding with a fixed number of candidates."""
        place, total = 0, self.num_prompt_tokens * (machine.target_reading + (machine.reading if length else 0.0))
        while place < len(self.positions):
            confidences, num_accepted = self.positions[place]
            size = min(length, len(confidences))
            total += machine.round_ms(size)
            place += min(num_accepted, size) + 1
        return total


# ---------------------------------------------------------------------- the lookahead along scripts


def call_ms(lookahead: Lookahead, script: Script, machine: Machine, draw: random.Random) -> float:
    """Let a lookahead decide a call, and return the call's expected milliseconds."""
    num_passes = count()

    def seen_s(milliseconds: float) -> float:
        slow, stall_ms = 3.0 if draw.random() < 0.1 else 1.0, 0.0
        if milliseconds:
            number = next(num_passes)
            faults = [fault for fault in script.faults if fault[0] <= number < fault[0] + fault[1]]
            slow *= max([1.0, *(times for _, _, times, _ in faults)])
            stall_ms = sum(fault_ms for *_, fault_ms in faults)
        return (milliseconds * slow * draw.lognormvariate(0.0, 0.03) + stall_ms) / 1e3

    num_tokens = script.num_prompt_tokens
    lookahead.begin(1, "greedy", num_tokens, len(script.positions) + 1, machine.size_ratio)
    total = num_tokens * machine.target_reading
    lookahead.learn_prefill(seen_s(total))
    place, num_rounds, has_drafted = 0, 0, False
    while place < len(script.positions):
        confidences, num_acceptable = script.positions[place]
        drafted = list[Proposal]()
        limit = min(lookahead.plan(1), len(confidences))
        while len(drafted) < limit:
            drafted.append(Proposal(0, confidences[len(drafted)]))
            if not lookahead.go_on(0, drafted):
                break
        size, num_accepted = len(drafted), min(num_acceptable, len(drafted))
        is_first_draft = size > 0 and not has_drafted
        reading_ms = num_tokens * machine.reading if is_first_draft else 0.0
        draft_ms = machine.start + size * machine.candidate if size else 0.0
        target_ms = machine.round_ms(size) - draft_ms
        draft_s = seen_s(draft_ms * (script.coldness if is_first_draft else 1.0))
        target_s = seen_s(target_ms * (1.0 if num_rounds else script.coldness))
        lookahead.learn_round(Round(size, draft_s, target_s, [(drafted, num_accepted)], seen_s(reading_ms)))
        total += reading_ms + draft_ms + target_ms
        place += num_accepted + 1
        num_rounds, has_drafted = num_rounds + 1, has_drafted or size > 0
    return total


def mean_regrets(runs: Sequence[Sequence[Script]], machine: Machine) -> dict[str, float]:
    """Return the mean regrets of first and later calls, in percent; each sequence of calls has a new lookahead."""
    regrets: dict[str, list[float]] = {"first": [], "later": []}
    for index, scripts in enumerate(runs):
        lookahead, draw = Lookahead(), random.Random(f"0 {index} {machine.name}")
        for number, script in enumerate(scripts):
            best_ms = min(script.fixed_ms(machine, length) for length in LENGTHS)
            regret = 100.0 * (call_ms(lookahead, script, machine, draw) / best_ms - 1.0)
            regrets["later" if number else "first"].append(regret)
    return {calls: mean(values) for calls, values in regrets.items()}


# ---------------------------------------------------------------------- synthetic texts


class Scenario(NamedTuple):
    """Texts made up by chance.

    Attributes:
        name: for the table.
        confidence: "calibrated" (varies, and is the true probability), "constant", or "sure" (high whatever happens).
        acceptances: returns the acceptances of a call's parts, which have equal lengths.
        coldness: of the first call; see `Script`.
        num_tokens: output tokens; None for a usual number.
        num_prompt_tokens: the same of the prompt.
        num_faults: faults of each call, at random places: stalls of 0.05 to 5 seconds, and stretches in which passes
            take 3 to 30 times as long.
        num_first: calls with faults; None for all of them.
    """

    name: str
    confidence: str
    acceptances: Callable[[int, random.Random], Sequence[float]]
    coldness: float = 3.0
    num_tokens: int | None = None
    num_prompt_tokens: int | None = None
    num_faults: int = 0
    num_first: int | None = None

    def runs(self, num_calls: int, num_restarts: int) -> list[list[Script]]:
        """Return a sequence of calls for each restart."""
        draws = [random.Random(f"{self.name} {restart}") for restart in range(num_restarts)]
        return [[self._script(call, draw) for call in range(num_calls)] for draw in draws]

    def _script(self, call: int, draw: random.Random) -> Script:
        acceptances = self.acceptances(call, draw)
        num_tokens = self.num_tokens or draw.choice((40, 80, 160))
        confidences, are_right = [], []
        for place in range(num_tokens + MOST_CANDIDATES):
            level = acceptances[min(place * len(acceptances) // num_tokens, len(acceptances) - 1)]
            chance = level
            if self.confidence == "calibrated" and 0.0 < level < 1.0:
                chance = draw.betavariate(1.2 * level, 1.2 * (1.0 - level))
            confidences.append(draw.uniform(0.8, 0.99) if self.confidence == "sure" else chance)
            are_right.append(draw.random() < chance)
        positions = []
        for place in range(1, num_tokens):
            line = confidences[place : min(place + MOST_CANDIDATES, num_tokens)]
            wrong = (number for number in range(len(line)) if not are_right[place + number])
            positions.append(Position(line, next(wrong, len(line))))
        num_prompt_tokens = self.num_prompt_tokens or draw.choice((8, 30, 100))
        has_faults = self.num_first is None or call < self.num_first
        faults = [_fault(draw) for _ in range(self.num_faults if has_faults else 0)]
        return Script(self.name, num_prompt_tokens, positions, 1.0 if call else self.coldness, faults)


def _fault(draw: random.Random) -> tuple[int, int, float, float]:
    """Return a stall or a stretch of slow passes, which `faults.py` injects into real calls."""
    first = draw.randrange(draw.choice((5, 60)))
    if draw.random() < 0.5:
        return first, 1, 1.0, 1e3 * draw.uniform(0.05, 5.0)
    return first, draw.choice((1, 4, 20, 80)), draw.uniform(3.0, 30.0), 0.0


def scenarios() -> Iterator[Scenario]:
    """Yield the synthetic scenarios."""
    for kind in ("calibrated", "constant", "sure"):
        for level in LEVELS:
            yield Scenario(f"{kind}, {level:.0%}", kind, lambda *_, level=level: (level,))
        yield Scenario(f"{kind}, any level per text", kind, lambda _, draw: (draw.choice(LEVELS),))
        for level in (0.55, 0.97):
            yield Scenario(f"{kind}, {level:.0%}, 64 tokens", kind, lambda *_, level=level: (level,), num_tokens=64)
    yield Scenario("90 % until the middle, then 10 %", "sure", lambda *_: (0.9, 0.1))
    yield Scenario("10 % until the middle, then 90 %", "sure", lambda *_: (0.1, 0.9))
    cold = "a very cold first call at 0 %, then 80 %"
    yield Scenario(cold, "calibrated", lambda call, _: (0.8 if call else 0.0,), coldness=8.0)
    yield Scenario("0 % in four calls, then 95 %", "sure", lambda call, _: (0.95 if call > 3 else 0.0,))
    for num_prompt_tokens, num_tokens in ((400, None), (2900, 8), (2900, 200), (2900, 2000)):
        name = f"a prompt of {num_prompt_tokens:,} tokens, {f'{num_tokens:,}' if num_tokens else '40 to 160'} new ones"
        sizes = {"num_prompt_tokens": num_prompt_tokens, "num_tokens": num_tokens}
        yield Scenario(name, "calibrated", lambda *_: (0.8,), **sizes)
    for num_faults in (1, 3):
        for level in (0.0, 0.8):
            for num_first in (None, 3):
                calls = f"in the first {num_first} calls" if num_first else "in each call"
                name = f"{level:.0%}, faults {calls}: {num_faults}"
                faults = {"num_faults": num_faults, "num_first": num_first}
                yield Scenario(name, "calibrated", lambda *_, level=level: (level,), **faults)


# ---------------------------------------------------------------------- recording


def record(pair: Pair, name: str, prompts: Iterable[str], num_tokens: int) -> Iterator[dict[str, Any]]:
    """Yield, for each prompt, what the draft proposes at every position of the target's text."""
    drafter = Pairing(pair.draft, pair.target_tokenizer, pair.draft_tokenizer).for_all
    if drafter is None:
        raise SystemExit(f"{name}: a tokenizer is missing.")
    recorder = Replay(drafter, models.head_size(pair.target))
    for number, prompt in enumerate(prompts):
        due = Text(str(number), tuple(encode_prompt(pair.target_tokenizer, prompt)))
        (text,) = write(pair.target, [due], num_tokens)
        rounds = recorder.rounds(
            text, Lookahead(fixed=MOST_CANDIDATES), lambda left: left or None, start=1, every_token=True
        )
        positions = []
        for done in rounds:
            confidences = [round(proposal.confidence, 4) for proposal in done.candidates]
            positions.append({"confidences": confidences, "num_accepted": done.num_accepted})
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
    recording.set_defaults(output=Path("texts.jsonl"))
    replaying = commands.add_parser("replay")
    replaying.add_argument("files", nargs="*", type=Path, help="recorded texts, replayed in random order")
    common.add_options(replaying, calls=8, restarts=4)
    arguments = common.parse(parser)
    if arguments.command == "replay":
        common.show(arguments, "regret in percent: first call / later calls", COLUMNS, _replay(arguments), notes=_means)
        return
    with arguments.output.open("w") as file:
        for folders in map(common.folders_of, arguments.pairs):
            texts = common.python_texts(arguments.prompts)
            for line in record(folders.load(), folders.name, texts, arguments.tokens):
                print(json.dumps(line), file=file, flush=True)


def _replay(arguments: argparse.Namespace) -> Iterator[common.Row]:
    recorded = [scripts for path in arguments.files for scripts in read_scripts(path)]
    shuffled = [
        [random.Random(restart).sample(scripts, len(scripts)) for restart in range(arguments.restarts)]
        for scripts in recorded
    ]
    made = [scenario.runs(arguments.calls, arguments.restarts) for scenario in scenarios()]
    for runs in [*shuffled, *made]:
        regrets = {machine.name: mean_regrets(runs, machine) for machine in MACHINES}
        yield {"scenario": runs[0][0].name, "dtype": "replayed"} | regrets


def _means(rows: Sequence[common.Row]) -> Iterator[str]:
    for machine in MACHINES:
        first, later = (mean(row[machine.name][calls] for row in rows) for calls in ("first", "later"))
        worst = max(rows, key=lambda row: row[machine.name]["later"])
        yield (
            f"{machine.name}: first calls {first:.1f} %, later calls {later:.1f} %, "
            f"in the worst scenario {worst[machine.name]['later']:.1f} % ({worst['scenario']})"
        )


if __name__ == "__main__":
    main()
