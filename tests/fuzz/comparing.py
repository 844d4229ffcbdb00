"""Run one case plainly and twice with uag, and compare everything that a caller sees."""

from __future__ import annotations

import copy
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import LogitsProcessorList

import uag
from tests.fuzz.around import around, held, is_cast
from tests.fuzz.case import Case, DifferenceError
from tests.fuzz.options import REFUSED, arguments, prompts
from tests.fuzz.rounding import is_rounding
from tests.fuzz.sources import DRAFTS, door_of, draft_of, use
from tests.fuzz.targets import assist, built, changed
from tests.support.differences import differences
from tests.support.forked import forked
from uag.bench.equality import first_difference
from uag.errors import UagError
from uag.hf.cache import growing

growing._SMALL = 0  # tiny caches grow in place, too, as in other tests

TOLERANCE = 2e-3
"""Largest difference of scores and states, relative to the largest value among them (at least 1)."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case."""

    kind: str
    reasons: tuple[str, ...] = ()


@dataclass
class Seen:
    """Everything a caller sees of a call: result or exception, the generator's state, its own objects, changes."""

    result: Any
    state: torch.Tensor
    kwargs: dict[str, Any]
    changed: set[str]

    @property
    def has_raised(self) -> bool:
        return isinstance(self.result, Exception)

    @property
    def ids(self) -> Any:
        return getattr(self.result, "sequences", self.result)


def compare(case: Case) -> Outcome:
    """Run a case.

    Raises:
        DifferenceError: uag does otherwise than plain decoding.
    """
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base, tokenizer = built(case.target)
        if case.source in DRAFTS:
            draft_of(case.target, case.source)  # some are copies of the target, so make them before it is changed
        if case.is_fresh:
            base = copy.deepcopy(base)
        elif case.change or case.extras or case.around:
            with suppress(Exception):  # as plain decoding may, which is compared below
                use(base)
        plain = _see(case, base, lambda model, **kwargs: model.generate(**kwargs))
        with changed(base, case.change) as model:
            width = 0 if "embeds" in case.extras else prompts(case, model, tokenizer)["input_ids"].shape[1]
            width = 1 if model.config.is_encoder_decoder else width
            rows = [] if plain.has_raised else plain.ids[:, width:].tolist()
            outputs = [[i for i in row if i >= 0] for row in rows]  # beams pad with -1
            generate, stats_of, generator = door_of(case, model, tokenizer, outputs)
        outcome = Outcome("raised")
        for number in (1, 2):
            found = _see(case, base, generate, generator)
            try:
                is_rounded = _check(case, base, plain, found, width)
            except DifferenceError as difference:
                difference.add_note(f"call {number}")
                raise
            if not found.has_raised:
                outcome = _outcome(stats_of(model), is_rounded)
        if outcome.kind in ("assisted", "rounding") and generator is None:
            _check_bits(case, base, tokenizer, found, stats_of(model))
        if "fork" in case.extras:
            _check_child(case, base, plain, width, generate, generator)
        return outcome


def _check_child(case: Case, base: Any, plain: Seen, width: int, generate: Any, generator: Any) -> None:
    """Repeat a case in a child that is forked while another thread is in the same call."""

    def child() -> str:
        if _moved(before, _fingerprint(base)) - plain.changed:  # plain decoding's passes change rotary factors, too
            return "model: the other thread's call left it changed"
        try:
            _check(case, base, plain, _see(case, base, generate, generator), width)
        except DifferenceError as difference:
            return str(difference)
        return ""

    before = _fingerprint(base)
    alone = case.change or case.door == "install"  # which change what threads share
    call = partial(_see, case, base, generate, generator)
    with nullcontext() if alone else held(case, call):
        report = forked(child)
    if report:
        raise DifferenceError("in a forked child", report)


def _check_bits(case: Case, base: Any, tokenizer: Any, found: Seen, stats: uag.Stats) -> None:
    """Compare ids, scores and logits with those of uag without a draft, bit for bit, where both promise them."""
    if not stats.is_draft_independent:
        if "draft_independent" in case.settings and case.door != "install":
            raise DifferenceError("draft_independent", stats.draft_dependence)
        return
    reference = uag.Assistant(None, None, tokenizer, trust_changes=True)
    expected = _see(case, base, reference.generate)
    if expected.has_raised or not reference.stats.is_draft_independent or "own_kernels" in case.options:
        return
    for name in ("ids", "scores", "logits"):
        one, other = (seen.ids if name == "ids" else getattr(seen.result, name, None) for seen in (found, expected))
        pairs: list[Any] = [(one, other)] if name == "ids" else list(zip(one or (), other or (), strict=True))
        if not all(_equal(*pair) for pair in pairs):
            raise DifferenceError("bits", f"{name} depend on the draft")


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _see(case: Case, base: Any, generate: Callable[..., Any], generator: torch.Generator | None = None) -> Seen:
    kwargs: dict[str, Any] = {}
    with changed(base, case.change) as model:
        torch.manual_seed(case.seed)
        if generator is not None:
            generator.manual_seed(case.seed)
        before, default = _fingerprint(model), torch.get_rng_state()
        try:
            kwargs = arguments(case, model, built(case.target)[1])
            torch.manual_seed(case.seed)
            with _in_use(model) if "threads" in case.extras else nullcontext(), around(case):
                result = generate(model, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever transformers raises
            result = error
        after = _fingerprint(model)
    moved = _moved(before, after)
    if generator is not None and not torch.equal(default, torch.get_rng_state()):
        moved.add("the default generator")
    state = torch.get_rng_state() if generator is None else generator.get_state()
    return Seen(result, state, kwargs, moved)


@contextmanager
def _in_use(model: Any) -> Iterator[None]:
    """Let another thread assist the same model meanwhile."""
    is_over, errors = threading.Event(), []

    def work() -> None:
        try:
            while not is_over.is_set():
                assist(model)
        except Exception as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    if errors:
        raise errors[0]


def _outcome(stats: uag.Stats, is_rounded: bool) -> Outcome:
    if failures := [reason for reason in stats.fallbacks if "stopped drafting" in reason]:
        raise DifferenceError("the draft fails", failures[0])
    if is_rounded:
        return Outcome("rounding")
    if stats.num_accepted_tokens:
        return Outcome("assisted", tuple(stats.fallbacks))
    return Outcome("plain" if stats.fallbacks else "nothing accepted", tuple(stats.fallbacks))


def _check(case: Case, base: Any, plain: Seen, found: Seen, width: int) -> bool:
    """Compare two calls; return whether they differ by the target's own rounding."""
    if found.changed - plain.changed and case.change != "offloaded":  # accelerate moves its weights
        raise DifferenceError("model", f"left changed: {sorted(found.changed - plain.changed)[:8]}")
    if plain.has_raised or found.has_raised:
        _check_errors(case, plain, found)
        return False
    if len(plain.ids) == len(found.ids):
        difference = first_difference(plain.ids[:, width:], found.ids[:, width:])
        if difference is not None and _is_rounding(case, base, plain, difference):
            return True
        if difference is not None:
            detail = f"row {difference.row}, output {difference.step}: {difference.arm_id}, plain {difference.plain_id}"
            raise DifferenceError("ids", detail)
    is_rounded = is_cast(case) or "cache rounding" in case.extras  # which may round a tie in another way
    mask, tolerance = _mask(plain, width), float("inf") if is_rounded else TOLERANCE
    if case.target.startswith("HrmText"):  # it recurs so often that plain decoding itself is off by 0.012
        tolerance *= 20
    for name, one, other in (("result", plain.result, found.result), ("arguments", plain.kwargs, found.kwargs)):
        for path, detail in differences(one, other, mask, tolerance):
            raise DifferenceError(f"{name}{path}".rstrip("0123456789[]"), f"{name}{path}: {detail}")
    if not torch.equal(plain.state, found.state):
        raise DifferenceError("generator", "the random generator's final state")
    return False


def _mask(plain: Seen, width: int) -> torch.Tensor | None:
    mask = plain.kwargs.get("attention_mask")
    if mask is None and plain.ids.shape[1] > width:  # transformers reads it off the padding
        mask = (plain.ids[:, :width] != 0).long()
    return None if mask is None or mask.all() or width != mask.shape[1] else mask


def _check_errors(case: Case, plain: Seen, found: Seen) -> None:
    """If plain decoding raises, uag must raise the same or its own error; else it may raise only in refused modes."""
    if not found.has_raised:
        raise DifferenceError("raises nothing", f"plainly: {plain.result!r:.300}")
    may_refuse = plain.has_raised or any(name in case.options for name in REFUSED)
    may_refuse |= case.source == "copy" and "cannot draft for itself" in str(found.result)
    if not (isinstance(found.result, UagError) and may_refuse) and type(found.result) is not type(plain.result):
        raise DifferenceError(
            f"raises {_place(found.result)}", _told(found.result) + f"\nplainly: {plain.result!r:.300}"
        )


class _Itself:
    """An object that equals only itself, and lives as long: an id may be that of a later object."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value

    __hash__ = object.__hash__


def _fingerprint(model: Any) -> dict[str, Any]:
    """Return everything that a call must not change: attributes, hooks, modules, parameters, modes, configurations."""
    found: dict[str, Any] = {"config": repr(model.config.to_dict()), "options": repr(model.generation_config.to_dict())}
    for path, part in model.named_modules():
        for name, value in vars(part).items():
            if name in ("expert_capacity", "rope_deltas"):
                continue  # passes of NLLB and GLM-4.6V note something there
            if isinstance(value, dict):
                found[f"{path}.{name}"] = [(key, _Itself(each)) for key, each in value.items()]
            else:
                is_plain = isinstance(value, (int, float, str, type(None)))
                found[f"{path}.{name}"] = value if is_plain else _Itself(value)
    weights = {name: value for name, value in model.named_parameters() if not value.is_meta}
    return found | {f"{name} sum": value.double().sum().item() for name, value in weights.items()}


def _moved(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def _is_rounding(case: Case, model: Any, plain: Seen, difference: Any) -> bool:
    """Whether the target itself selects both ids, one in a one-token pass and one in a block, closer than 1e-4."""
    if model.config.is_encoder_decoder or "embeds" in case.extras or case.change:
        return False
    inputs = prompts(case, model, built(case.target)[1])
    width, num_rows = inputs["input_ids"].shape[1], plain.ids.shape[0]
    inputs = {n: value.repeat_interleave(num_rows // len(value), dim=0) for n, value in inputs.items()}
    given: dict[str, Any] = arguments(case, model, built(case.target)[1])
    given.pop("stop_strings", None)  # with `custom_generate`, they cannot find their tokenizer
    processors: LogitsProcessorList = model.generate(
        **given, custom_generate=lambda *_, logits_processor, **__: logits_processor
    )
    if is_cast(case) and processors:  # whose filters and own passes turn rounding into anything
        return True
    with around(case):
        seed = case.seed if case.options.get("do_sample") else None
        return is_rounding(model, inputs, plain.ids[:, width:], difference, seed=seed, process=processors)


def _place(error: Exception) -> str:
    """Name an exception and the innermost function of uag that it went through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f"{Path(uag.__file__).parent}" in f.filename]
    where = f" in {Path(frames[-1].filename).name} {frames[-1].name}" if frames else ""
    return f"{type(error).__name__}{where}"


def _told(error: Exception) -> str:
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return f"{error!r:.300}\n" + "".join(lines[-4:])[-900:]
