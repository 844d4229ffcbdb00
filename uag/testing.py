"""Conformance checks of drafters: what uag tests its own sources of candidates for."""

import gc
import pickle
import random
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import index
from typing import Any

import numpy as np
import torch

from uag.assistant import Assistant
from uag.drafting import Ask, Counts, Drafter, TextDrafter, adapter_of, require_drafter
from uag.errors import DrafterError, OptionError
from uag.loading import demo_folder, load_model, load_tokenizer, pad_left
from uag.proposal import Proposal
from uag.stats import Stats

_TEXTS = (
    "def read_lines(path):\n",
    "for name in names:\n    print(name)\nfor",
    "class Stack:\n    def push(self, item):\n",
)

_NUM_TOKENS, _NUM_CANDIDATES = 10, 4  # output tokens of a call, and candidates of a round
_SEED = 4_294_967_311  # the default generator's, which no drafter sets itself
_STEP_OF_ERROR = 5  # output tokens before the error of the call that fails: enough for some rounds

Lines = list[list[int]]


def check_drafter(
    drafter: Drafter, target: Any = None, tokenizer: Any = None, prompts: Sequence[Sequence[int]] | None = None
) -> list[str]:
    """Check that a drafter keeps the contract of `uag.drafting.Drafter`, in some short calls.

    Checked are: what it proposes, for one row and several, greedy and sampled; that the output and the generators of
    random numbers are plain decoding's; that rows are kept apart; that it works after a call that failed; that it does
    not change its arguments; and that it keeps no prompt, output or request after a call.

    Args:
        drafter: the drafter. It learns from these calls as from others.
        target: the target; None for the small model of the bundled demo pair, which writes Python.
        tokenizer: the target's tokenizer; not needed if `prompts` are passed, except by a `TextDrafter`.
        prompts: target ids of two or more prompts; None for beginnings of Python functions.

    Returns:
        Notes for its author: how many candidates were accepted, and what could not be checked and why.

    Raises:
        DrafterError: it breaks the contract; the message says how.
        OptionError: it is no drafter, neither prompts nor a tokenizer were passed with a target, or no two prompts.

    Example:
        print(check_drafter(MyDrafter()))
    """
    require_drafter(drafter)
    if target is None:
        target, tokenizer = load_model(demo_folder("draft")), load_tokenizer(demo_folder("draft"))
    rows = _rows(prompts, tokenizer)
    if isinstance(drafter, TextDrafter):
        drafter = drafter.serving(adapter_of(tokenizer))
    run, name = _Calls(target).run, type(drafter).__name__
    drafter.release()  # also called if the call fails before `start`
    calls = [
        run(drafter, rows[:1]),
        run(drafter, rows[:1], num_candidate_tokens=None),
        run(drafter, rows, do_sample=True),
    ]
    num_accepted = sum(call.stats.num_accepted_tokens for call in calls)
    notes = [f"{num_accepted} of {sum(call.stats.num_candidate_tokens for call in calls)} candidates were accepted"]
    if num_dropped := sum(call.num_dropped for call in calls):
        notes.append(f"{num_dropped} candidates beyond the limits of `ask` were dropped")
    alone = [run(drafter, [row]).rounds for row in rows]
    run(drafter, rows[:1], fails=True)
    again = [run(drafter, [row]).rounds for row in rows]
    if again[0] != alone[0] and again[1:] == alone[1:]:
        raise DrafterError(f"{name} proposes something else after a call that failed: `release` must forget all rows.")
    if again != alone:
        return [*notes, "its proposals change from call to call, so those of rows were not compared"]
    together = run(drafter, rows[::-1]).rounds
    for row, (line, of_batch) in enumerate(zip(alone, together[0][::-1] if together else [], strict=False)):
        size = min(len(line[0][0]), len(of_batch)) if line else 0
        if line and line[0][0][:size] != of_batch[:size]:
            raise DrafterError(f"{name} proposes {of_batch} for row {row} of a batch, and {line[0][0]} for it alone.")
    return notes


def _rows(prompts: Any, tokenizer: Any) -> Lines:
    if prompts is None and tokenizer is None:
        raise OptionError(
            "check_drafter needs the target's tokenizer, or prompts: check_drafter(drafter, target, tok)."
        )
    rows = [tokenizer(text)["input_ids"] for text in _TEXTS] if prompts is None else prompts
    if len(rows) < 2 or not all(len(row) and not isinstance(row, str) for row in rows):
        raise OptionError("prompts must be two or more lists of target ids, such as [[5, 3], [2]].")
    return [list(row) for row in rows]


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
        *,
        num_candidate_tokens: int | None = _NUM_CANDIDATES,
        fails: bool = False,
        do_sample: bool = False,
    ) -> "_Watched":
        name, watched = type(drafter).__name__, _Watched(drafter)
        given: dict[str, Any] = {**pad_left(prompts, 0, self._target.device), "do_sample": do_sample}
        given |= {"max_new_tokens": _NUM_TOKENS, "pad_token_id": 0}
        if (key := repr((prompts, do_sample))) not in self._plain:
            self._plain[key] = _drawn(self._target.generate, given)
        plain_ids, plain_draws = self._plain[key]
        if fails:
            given["logits_processor"] = [partial(_fail, given["input_ids"].shape[1] + _STEP_OF_ERROR)]
        assistant = Assistant(None, drafter=watched, num_candidate_tokens=num_candidate_tokens)
        with _others_alone(name), suppress(_CallError):
            ids, draws = _drawn(partial(assistant.generate, self._target), given)
            if not torch.equal(ids, plain_ids):
                raise DrafterError(f"With {name}, the output differs from plain decoding's.")
            if draws != plain_draws:
                raise DrafterError(f"{name} advances the default generator of random numbers.")
        watched.check_end()
        watched.stats = assistant.stats
        return watched


def _drawn(generate: Any, given: dict[str, Any]) -> tuple[torch.Tensor, list[float]]:
    """Return the ids of a call after a fixed seed, and the next random numbers."""
    with torch.random.fork_rng(devices=[] if given["input_ids"].device.type == "cpu" else None):
        torch.manual_seed(_SEED)
        return generate(**given), torch.rand(4).tolist()


def _fail(length: int, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    if input_ids.shape[1] >= length:
        raise _CallError
    return scores


@contextmanager
def _others_alone(name: str) -> Iterator[None]:
    """Check that a drafter leaves the global generators of Python and NumPy alone."""
    saved = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        random.random(), np.random.random()  # noqa: NPY002 - no seed leads to this state
        before = random.getstate(), pickle.dumps(np.random.get_state())  # noqa: NPY002
        yield
        if (random.getstate(), pickle.dumps(np.random.get_state())) != before:  # noqa: NPY002
            raise DrafterError(f"{name} seeds or advances the generator of `random` or NumPy. Use one of its own.")
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])  # noqa: NPY002


class _Watched(Drafter):
    """Passes a call on to a drafter, and checks each method's arguments and results."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.strategy, self.source = drafter.strategy, drafter.source
        self.has_free, self.draws = drafter.has_free, drafter.draws
        self.rounds: list[Lines] = []
        self.num_dropped = 0
        self.stats = Stats()
        self._passed: list[tuple[str, weakref.ref[Any]]] = []

    def _fail(self, what: str) -> None:
        raise DrafterError(f"{type(self.drafter).__name__}{what}")

    @property
    def counts(self) -> Counts:
        return self.drafter.counts

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Any = None) -> None:
        with self._watch("start", "a prompt", prompts) as lent:
            self.drafter.start(lent, source_ids)

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        self._passed.append(("an `Ask`", weakref.ref(ask)))
        with self._watch("propose"):
            lines: Any = self.drafter.propose(ask)
        num_rows = len(ask.budgets)
        if not isinstance(lines, Sequence) or len(lines) != num_rows:
            self._fail(f".propose returns {lines!r:.80}: return a list of proposals for each of {num_rows} rows.")
        for line in lines:
            if not isinstance(line, list | tuple):
                self._fail(f".propose returns {line!r:.80} for a row: return a list of proposals.")
        for fault in (fault for line in lines for fault in self._faults(line, ask.vocab_size)):
            self._fail(f".propose returns {fault}")
        for line, budget, limit in zip(lines, ask.budgets, ask.limits, strict=True):
            self.num_dropped += max(len(line) - (budget if line and line[0].is_free else limit), 0)
        self.rounds.append([[index(each.target_id) for each in line] for line in lines])
        return list(lines)

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
            if not _is_share(each.confidence):
                yield f"the confidence {each.confidence!r}: confidences are 0 to 1."
            if not isinstance(each.source, str):
                yield f"the source {each.source!r}: sources are texts."
        if len(is_free := {each.is_free for each in line}) > 1:
            yield "free and other candidates for a row: the first one decides for all."
        if True in is_free and not self.has_free:
            yield "free candidates, although `has_free` is False."

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        with self._watch("accept", "output ids", [output_ids]) as (lent,):
            self.drafter.accept(row, num_accepted, lent)

    def finish(self, outputs: Sequence[Sequence[int]]) -> None:
        with self._watch("finish", "an output", outputs) as lent:
            self.drafter.finish(lent)

    def release(self) -> None:
        with self._watch("release"):
            self.drafter.release()

    @contextmanager
    def _watch(self, method: str, what: str = "", given: Sequence[Sequence[int]] = ()) -> Iterator[list[list[int]]]:
        """Lend a method copies of ids, and check that it neither changes them nor uses the default generator."""
        lent: list[list[int]] = [_Ids(ids) for ids in given]
        self._passed += [(what, weakref.ref(ids)) for ids in lent]
        seed, state = torch.initial_seed(), torch.get_rng_state()
        yield lent
        if lent != [list(ids) for ids in given]:
            self._fail(f".{method} changes {what}; copy it.")
        if torch.initial_seed() != seed:
            self._fail(f".{method} seeds the default generator. Use a generator of its own.")
        if not (self.draws or torch.equal(state, torch.get_rng_state())):
            self._fail(f".{method} draws random numbers, although `draws` is False. Remove that, or use a generator.")

    def check_end(self) -> None:
        if any(passed() is not None for _, passed in self._passed):
            gc.collect()  # a circle of references is no fault
        if kept := [name for name, passed in self._passed if passed() is not None]:
            self._fail(f" keeps {kept[0]} after `release`, which must free the memory of a call.")


def _is_share(value: Any) -> bool:
    try:
        return bool(0.0 <= value <= 1.0)
    except (TypeError, RuntimeError):  # no number, or several
        return False


class _Ids(list[int]):
    """Ids that can be referenced weakly."""
