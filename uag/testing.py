"""Conformance checks of drafters: what uag tests its own sources of candidates for."""

import copy
import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import index
from typing import Any

import torch

from uag.assistant import Assistant
from uag.drafting import Ask, Counts, Drafter, TextDrafter, adapter_of
from uag.errors import DrafterError, OptionError
from uag.loading import demo_folder, load_model, load_tokenizer, pad_left
from uag.proposal import Proposal
from uag.stats import Stats

_TEXTS = (
    "def read_lines(path):\n",
    "for name in names:\n    print(name)\nfor",
    "class Stack:\n    def push(self, item):\n",
)

_NUM_TOKENS, _NUM_CANDIDATES = 10, 4
"""Output tokens of a call, and candidates of a round. Increase to check more rounds; decrease to save time."""

_STEP_OF_ERROR = 5
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
        target: the target; None for the small model of the bundled demo pair, which writes Python.
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
        target, tokenizer = load_model(demo_folder("draft")), load_tokenizer(demo_folder("draft"))
    if prompts is None:
        if tokenizer is None:
            raise OptionError(
                "check_drafter needs the target's tokenizer, or prompts: check_drafter(drafter, target, tok)."
            )
        prompts = [tokenizer(text)["input_ids"] for text in _TEXTS]
    if isinstance(drafter, TextDrafter):
        drafter = drafter.serving(adapter_of(tokenizer))
    run, rows = _Calls(target).run, [list(prompt) for prompt in prompts]
    drafter.release()  # also called if the call fails before `start`
    calls = [
        run(drafter, rows[:1]),
        run(drafter, rows[:1], num_candidate_tokens=None),
        run(drafter, rows, do_sample=True),
    ]
    run(drafter, rows[:1], fails=True)
    run(drafter, rows[:1])
    num_accepted = sum(call.stats.num_accepted_tokens for call in calls)
    notes = [f"{num_accepted} of {sum(call.stats.num_candidate_tokens for call in calls)} candidates were accepted"]
    if num_dropped := sum(call.num_dropped for call in calls):
        notes.append(f"{num_dropped} candidates beyond the limits of `ask` were dropped")
    return [*notes, *_check_copies(drafter, run, rows)]


def _check_copies(drafter: Drafter, run: "Callable[..., _Watched]", rows: Lines) -> list[str]:
    """Compare what copies propose alone, in a batch, after a failed call, and at the same time."""
    name = type(drafter).__name__
    try:
        copies = [copy.deepcopy(drafter) for _ in range(2 + len(rows))]
    except Exception as error:  # noqa: BLE001 - drafters may hold anything
        return [
            f"it cannot be copied ({error!r:.80}), so rows and threads were not compared; create one for each thread"
        ]
    alone = [run(copies[0], [row]).rounds for row in rows]
    if alone != [run(copies[0], [row]).rounds for row in rows]:
        return ["its proposals change from call to call, so those of rows and threads were not compared"]
    together = run(copies[1], rows[::-1]).rounds
    for row, (line, of_batch) in enumerate(zip(alone, together[0][::-1] if together else [], strict=False)):
        size = min(len(line[0][0]), len(of_batch)) if line else 0
        if line and line[0][0][:size] != of_batch[:size]:
            raise DrafterError(f"{name} proposes {of_batch} for row {row} of a batch, and {line[0][0]} for it alone.")
    run(copies[1], rows[:1], fails=True)
    if run(copies[1], rows[:1]).rounds != alone[0]:
        raise DrafterError(f"{name} proposes something else after a call that failed: `release` must forget all rows.")
    at_once = partial(run, barrier=threading.Barrier(len(rows)))
    with ThreadPoolExecutor(len(rows)) as pool:
        try:
            is_same = [call.rounds for call in pool.map(at_once, copies[2:], [[row] for row in rows])] == alone
            problem = "" if is_same else "propose something else"
        except Exception as error:  # noqa: BLE001 - whatever the drafter raises
            problem = f"raise {error!r:.80}"
    if problem:
        raise DrafterError(f"Copies of {name} {problem} while other copies work: they share state.")
    return []


class _CallError(Exception):
    """Raised by the caller's code in the middle of a call."""


class _Calls:
    """Calls of a target with a drafter, each compared with plain decoding."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._plain: dict[str, tuple[torch.Tensor, list[float]]] = {}

    def run(
        self,
        drafter: Drafter,
        prompts: Lines,
        barrier: threading.Barrier | None = None,
        *,
        num_candidate_tokens: int | None = _NUM_CANDIDATES,
        fails: bool = False,
        do_sample: bool = False,
    ) -> "_Watched":
        name, watched = type(drafter).__name__, _Watched(drafter, barrier)
        given: dict[str, Any] = {**pad_left(prompts, 0, self._target.device), "do_sample": do_sample}
        given |= {"max_new_tokens": _NUM_TOKENS, "pad_token_id": 0}
        if (key := repr((prompts, do_sample))) not in self._plain:
            self._plain[key] = _drawn(self._target.generate, given)
        plain_ids, plain_draws = self._plain[key]
        if fails:
            given["logits_processor"] = [partial(_fail, given["input_ids"].shape[1] + _STEP_OF_ERROR)]
        assistant = Assistant(None, drafter=watched, num_candidate_tokens=num_candidate_tokens)
        before, generate = _settings(), partial(assistant.generate, self._target)
        try:
            # Calls that run at the same time share the default generator.
            ids, draws = (generate(**given), plain_draws) if barrier else _drawn(generate, given)
            if not torch.equal(ids, plain_ids):
                raise DrafterError(f"With {name}, the output differs from plain decoding's.")
            if draws != plain_draws:
                raise DrafterError(f"{name} advances the default generator of random numbers.")
        except _CallError:
            pass
        watched.check_end(before)
        watched.stats = assistant.stats
        return watched


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
        rounds: the ids that were proposed for each row, in each round.
        num_dropped: number of candidates beyond the limits.
        stats: the statistics of the call, once it has ended.
    """

    def __init__(self, drafter: Drafter, barrier: threading.Barrier | None) -> None:
        self.drafter, self._barrier = drafter, barrier  # other calls run at the same time if there is a barrier
        self.strategy, self.source = drafter.strategy, drafter.source
        self.has_free, self.draws = drafter.has_free, drafter.draws
        self.finish, self.release = drafter.finish, drafter.release  # type: ignore[method-assign]
        self.rounds: list[Lines] = []
        self.num_dropped = 0
        self.stats = Stats()
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
        state = torch.get_rng_state()
        lines = self.drafter.propose(ask)
        if not (self._barrier or self.draws or torch.equal(state, torch.get_rng_state())):
            self._fail(".propose draws random numbers, although `draws` is False. Remove that, or use a generator.")
        num_rows = len(ask.budgets)
        if not isinstance(lines, Sequence) or len(lines) != num_rows:
            self._fail(f".propose returns {lines!r:.80}: return a list of proposals for each of {num_rows} rows.")
        for fault in (fault for line in lines for fault in self._faults(line, ask.vocab_size)):
            self._fail(f".propose returns {fault}")
        for line, budget, limit in zip(lines, ask.budgets, ask.limits, strict=True):
            self.num_dropped += max(len(line) - (budget if line and line[0].is_free else limit), 0)
        self.rounds.append([[index(each.target_id) for each in line] for line in lines])
        return lines

    def _faults(self, line: Sequence[Any], vocab_size: int) -> Iterator[str]:
        for each in line:
            if not isinstance(each, Proposal):
                yield f"{each!r:.80} as a candidate: return uag.proposal.Proposal(id, confidence)."
            try:
                is_known = 0 <= index(each.target_id) < vocab_size
            except TypeError:
                yield f"the id {each.target_id!r}: ids are integers."
            if not is_known:
                yield f"the id {each.target_id}, which the target's {vocab_size} ids do not include."
            if not 0.0 <= each.confidence <= 1.0:
                yield f"the confidence {each.confidence!r}: confidences are 0 to 1."
        if len(is_free := {each.is_free for each in line}) > 1:
            yield "free and other candidates for a row: the first one decides for all."
        if True in is_free and not self.has_free:
            yield "free candidates, although `has_free` is False."

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        lent = list(output_ids)
        self.drafter.accept(row, num_accepted, lent)
        if lent != list(output_ids):
            self._fail(".accept changes the output ids; copy them.")

    def check_end(self, before: dict[str, Any]) -> None:
        """Check what is left after a call; `before` are the settings before it."""
        for name, value in _settings().items():
            if value != before[name]:
                self._fail(f" changes {name} from {before[name]} to {value}.")
        if any(passed() is not None for _, passed in self._passed):
            gc.collect()  # a circle of references is no fault
        if kept := [name for name, passed in self._passed if passed() is not None]:
            self._fail(f" keeps {kept[0]} after `release`, which must free the memory of a call.")
        if not self._barrier and (left := set(threading.enumerate()) - self._threads):
            self._fail(f" leaves threads behind after `release`: {', '.join(thread.name for thread in left)}.")


class _Ids(list[int]):
    """Ids that can be referenced weakly."""
