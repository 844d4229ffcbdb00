"""Conformance checks of drafters: what uag tests its own sources of candidates for."""

import copy
import gc
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from operator import index
from typing import Any

import torch

from uag.assistant import Assistant
from uag.drafting import Ask, Counts, Drafter, TextDrafter, adapter_of
from uag.errors import DrafterError, OptionError
from uag.loading import demo_folder, load_model, load_tokenizer
from uag.proposal import Proposal

_TEXTS = (
    "def read_lines(path):\n",
    "for name in names:\n    print(name)\nfor",
    "class Stack:\n    def push(self, item):\n",
)

_NUM_TOKENS, _NUM_CANDIDATES = 16, 4
"""Output tokens of a call, and candidates of a round. Increase to check more rounds; decrease to save time."""

_STEP_OF_ERROR = 6
"""Output tokens before the error of the call that fails: enough for some rounds."""

Lines = list[list[int]]


def check_drafter(
    drafter: Drafter, target: Any = None, tokenizer: Any = None, prompts: Sequence[Sequence[int]] | None = None
) -> list[str]:
    """Check that a drafter keeps the contract of `uag.drafting.Drafter`, in some short calls.

    Checked are: what it proposes, for one row and several, greedy and sampled; that the output and the random generator
    are plain decoding's; that rows are kept apart; that it works after a call that failed; that it changes neither its
    arguments nor settings of PyTorch; that no prompt, request or thread remains after a call; and that copies of it, as
    each thread needs one, work at the same time.

    Args:
        drafter: the drafter. It learns from these calls as from others.
        target: the target; None for the bundled demo pair's, which writes Python.
        tokenizer: the target's tokenizer; not needed if `prompts` are passed, except by a `TextDrafter`.
        prompts: target ids of two or more prompts; None for beginnings of Python functions.

    Returns:
        Notes for its author: how many candidates were accepted, and what could not be checked and why.

    Raises:
        DrafterError: it breaks the contract; the message says how.
        OptionError: neither prompts nor a tokenizer were passed with a target.

    Example:
        print(check_drafter(MyDrafter()))
    """
    if target is None:
        target, tokenizer = load_model(demo_folder("target")), load_tokenizer(demo_folder("target"))
    if prompts is None and tokenizer is None:
        raise OptionError(
            "check_drafter needs the target's tokenizer, or prompts: check_drafter(drafter, target, tok)."
        )
    prompts = [tokenizer(text)["input_ids"] for text in _TEXTS] if prompts is None else prompts
    if isinstance(drafter, TextDrafter):
        drafter = drafter.serving(adapter_of(tokenizer))
    calls = _Calls(target, [list(prompt) for prompt in prompts])
    drafter.release()  # also called if the call fails before `start`
    num_proposed = num_accepted = num_dropped = 0
    for num_rows, options in ((1, {}), (1, {"num_candidate_tokens": None}), (len(calls.prompts), {"do_sample": True})):
        watched = _Watched(drafter)
        stats = calls.run(watched, calls.prompts[:num_rows], **options)
        num_proposed += stats.num_candidate_tokens
        num_accepted += stats.num_accepted_tokens
        num_dropped += watched.num_dropped
    calls.run(_Watched(drafter), calls.prompts[:1], fails=True)
    calls.run(_Watched(drafter), calls.prompts[:1])
    notes = [f"{num_accepted} of {num_proposed} candidates were accepted"]
    if num_dropped:
        notes.append(f"{num_dropped} candidates beyond the limits of `ask` were dropped")
    return [*notes, *_check_copies(drafter, calls)]


def _check_copies(drafter: Drafter, calls: "_Calls") -> list[str]:
    """Compare what copies propose alone, in a batch, after a failed call, and at the same time."""
    name = type(drafter).__name__

    def proposals(
        copied: Drafter, prompts: Sequence[list[int]], barrier: threading.Barrier | None = None
    ) -> list[Lines]:
        watched = _Watched(copied, barrier)
        calls.run(watched, prompts)
        return watched.rounds

    try:
        copies = [copy.deepcopy(drafter) for _ in range(2 + len(calls.prompts))]
    except Exception as error:  # noqa: BLE001 - drafters may hold anything
        return [
            f"it cannot be copied ({error!r:.80}), so rows and threads were not compared; create one for each thread"
        ]
    alone = [proposals(copies[0], [prompt]) for prompt in calls.prompts]
    if alone != [proposals(copies[0], [prompt]) for prompt in calls.prompts]:
        return ["its proposals change from call to call, so those of rows and threads were not compared"]
    together = proposals(copies[1], calls.prompts[::-1])
    for row, (line, of_batch) in enumerate(zip(alone, together[0][::-1] if together else [], strict=False)):
        size = min(len(line[0][0]), len(of_batch)) if line else 0
        if line and line[0][0][:size] != of_batch[:size]:
            raise DrafterError(f"{name} proposes {of_batch} for row {row} of a batch, and {line[0][0]} for it alone.")
    calls.run(_Watched(copies[1]), calls.prompts[:1], fails=True)
    if proposals(copies[1], calls.prompts[:1]) != alone[0]:
        raise DrafterError(f"{name} proposes something else after a call that failed: `release` must forget all rows.")
    barrier, problem = threading.Barrier(len(calls.prompts)), "propose something else"
    with ThreadPoolExecutor(len(calls.prompts)) as pool:
        run = partial(proposals, barrier=barrier)
        try:
            at_once = list(pool.map(run, copies[2:], [[prompt] for prompt in calls.prompts]))
        except Exception as error:  # noqa: BLE001 - whatever the drafter raises
            at_once, problem = [], f"raise {error!r:.80}"
    if at_once != alone:
        raise DrafterError(f"Copies of {name} {problem} while other copies work: they share state.")
    return []


class _CallError(Exception):
    """Raised by the caller's code in the middle of a call."""


@dataclass
class _Calls:
    """Calls of a target with a drafter, each compared with plain decoding."""

    target: Any
    prompts: list[list[int]]
    _plain: dict[str, Any] = field(default_factory=dict)

    def run(self, watched: "_Watched", prompts: Sequence[list[int]], *, fails: bool = False, **options: Any) -> Any:
        """Run a call and return its statistics."""
        name = type(watched.drafter).__name__
        length = options.pop("num_candidate_tokens", _NUM_CANDIDATES)
        width = max(map(len, prompts))
        given = {
            "input_ids": torch.tensor([[0] * (width - len(ids)) + ids for ids in prompts], device=self.target.device),
            "attention_mask": torch.tensor(
                [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts], device=self.target.device
            ),
            **{"max_new_tokens": _NUM_TOKENS, "do_sample": False, "pad_token_id": 0, **options},
        }
        key = repr((prompts, options))
        if key not in self._plain:
            self._plain[key] = _drawn(self.target.generate, given)
        if fails:
            given["logits_processor"] = [partial(_fail, width + _STEP_OF_ERROR)]
        assistant = Assistant(None, drafter=watched, num_candidate_tokens=length)
        before = _settings()
        generate = partial(assistant.generate, self.target)
        try:
            # Calls that run at the same time share the default generator.
            ids, draws = _drawn(generate, given) if watched.is_alone else (generate(**given), self._plain[key][1])
            if not torch.equal(ids, self._plain[key][0]):
                raise DrafterError(f"With {name}, the output differs from plain decoding's.")
            if draws != self._plain[key][1]:
                raise DrafterError(f"{name} advances the default generator of random numbers.")
        except _CallError:
            pass
        watched.check_end(before)
        return assistant.stats


def _drawn(generate: Any, given: dict[str, Any]) -> tuple[torch.Tensor, list[float]]:
    """Return the ids of a call after a fixed seed, and the next random numbers."""
    with torch.random.fork_rng(devices=[] if given["input_ids"].device.type == "cpu" else None):
        torch.manual_seed(11)
        return generate(**given), torch.rand(4).tolist()


def _fail(length: int, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    if input_ids.shape[1] >= length:
        raise _CallError
    return scores


def _settings() -> dict[str, Any]:
    return {
        "the default dtype": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
        "the number of threads": torch.get_num_threads(),
    }


class _Watched(Drafter):
    """Passes a call on to a drafter, and checks each method's arguments and results.

    Attributes:
        is_alone: whether no other call runs at the same time.
        rounds: the ids that were proposed for each row, in each round.
        num_dropped: number of candidates beyond the limits.
    """

    def __init__(self, drafter: Drafter, barrier: threading.Barrier | None = None) -> None:
        self.drafter, self._barrier = drafter, barrier
        self.is_alone = barrier is None
        self.strategy, self.source = drafter.strategy, drafter.source
        self.has_free, self.draws = drafter.has_free, drafter.draws
        self.rounds: list[Lines] = []
        self.num_dropped = 0
        self._passed: list[tuple[str, weakref.ref[Any]]] = []
        self._threads = set(threading.enumerate())

    def _fail(self, what: str) -> None:
        raise DrafterError(f"{type(self.drafter).__name__}{what}")

    @property
    def counts(self) -> Counts:
        return self.drafter.counts

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Any = None) -> None:
        lent = [_Ids(prompt) for prompt in prompts]
        self._passed += [("a prompt", weakref.ref(prompt)) for prompt in lent]
        self.drafter.start(lent, source_ids)
        if lent != list(prompts):
            self._fail(".start changes the prompts; copy them.")
        if self._barrier is not None:
            self._barrier.wait(60)

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        self._passed.append(("an `Ask`", weakref.ref(ask)))
        state = torch.get_rng_state() if self.is_alone else None
        lines = self.drafter.propose(ask)
        if state is not None and not self.draws and not torch.equal(state, torch.get_rng_state()):
            self._fail(
                ".propose draws random numbers, although `draws` is False. Remove that, or draw from a generator."
            )
        if not isinstance(lines, Sequence) or len(lines) != len(ask.budgets):
            self._fail(
                f".propose returns {lines!r:.80}: return a list of proposals for each of {len(ask.budgets)} rows."
            )
        limits = zip(lines, ask.budgets, ask.limits, strict=True)
        self.rounds.append([self._checked(list(line), ask.vocab_size, *of_row) for line, *of_row in limits])
        return lines

    def _checked(self, line: list[Any], vocab_size: int, budget: int, limit: int) -> list[int]:
        for each in line:
            if not isinstance(each, Proposal):
                self._fail(
                    f".propose returns {each!r:.80} as a candidate: return uag.proposal.Proposal(id, confidence)."
                )
            try:
                is_known = 0 <= index(each.target_id) < vocab_size
            except TypeError:
                self._fail(f".propose returns the id {each.target_id!r}: ids are integers.")
            if not is_known:
                self._fail(
                    f".propose returns the id {each.target_id}, which the target's {vocab_size} ids do not include."
                )
            if not 0.0 <= each.confidence <= 1.0:
                self._fail(f".propose returns the confidence {each.confidence!r}: confidences are 0 to 1.")
        is_free = {each.is_free for each in line}
        if len(is_free) > 1:
            self._fail(".propose mixes free and other candidates for a row: the first one decides for all.")
        if True in is_free and not self.has_free:
            self._fail(".propose returns free candidates, although `has_free` is False.")
        self.num_dropped += max(len(line) - (budget if True in is_free else limit), 0)
        return [index(each.target_id) for each in line]

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        lent = list(output_ids)
        self.drafter.accept(row, num_accepted, lent)
        if lent != list(output_ids):
            self._fail(".accept changes the output ids; copy them.")

    def finish(self, outputs: Sequence[Sequence[int]]) -> None:
        self.drafter.finish(outputs)

    def release(self) -> None:
        self.drafter.release()

    def check_end(self, before: dict[str, Any]) -> None:
        """Check what is left after a call; `before` are the settings before it."""
        for name, value in _settings().items():
            if value != before[name]:
                self._fail(f" changes {name} from {before[name]} to {value}.")
        if any(passed() is not None for _, passed in self._passed):
            gc.collect()  # a circle of references is no fault
        kept = next((name for name, passed in self._passed if passed() is not None), "")
        if kept:
            self._fail(f" keeps {kept} after `release`, which must free the memory of a call.")
        if self.is_alone and (left := set(threading.enumerate()) - self._threads):
            self._fail(f" leaves threads behind after `release`: {', '.join(thread.name for thread in left)}.")


class _Ids(list[int]):
    """Ids that can be referenced weakly."""
