"""Custom drafters: the output is the target's for any candidates, and `uag.testing.check_drafter` checks them."""

import random
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import uag
from tests.support.callers import Looks
from tests.support.calls import GREEDY, PROMPTS, compare, left_padded, pair
from tests.support.grids import ROWS_AND_MODES, covering
from uag.adapters import from_tokenizer
from uag.drafting import Ask, Drafter, ModelDrafter, PromptLookup, TextDrafter
from uag.errors import DrafterError, OptionError
from uag.lookahead import Lookahead
from uag.projection import Scoring, TokenizerPair
from uag.proposal import Proposal
from uag.testing import check_drafter


class Careless(Drafter):
    """Proposes a fixed number of candidates, ignoring the request; has only the methods of the documentation."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.asks: list[Ask] = []

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Any = None) -> None:
        self.num_rows = len(prompts)

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        self.asks.append(ask)
        return [[Proposal(i, 0.9) for i in range(self.size)] for _ in range(self.num_rows)]

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        pass

    def release(self) -> None:
        pass


@covering("size, num_rows", (0, 50), (1, 3), strength=1)
def test_too_many_candidates_are_cut_and_none_are_plain_decoding(size: int, num_rows: int) -> None:
    assistant = uag.Assistant(None, drafter=Careless(size), num_candidate_tokens=3)
    stats = compare(pair()[0], left_padded(PROMPTS[:num_rows]) | GREEDY, assistant)
    assert stats.num_candidate_tokens <= 3 * num_rows * stats.num_rounds
    assert stats.strategy == "custom"
    assert list(stats.candidates_by_source) == ["source"] * bool(size)
    assert bool(size) == bool(stats.num_candidate_tokens)


def test_a_row_is_asked_for_no_more_candidates_than_it_can_use() -> None:
    """One less than the tokens that are left, and none after its end."""
    target, given, drafter = pair()[0], left_padded(PROMPTS) | GREEDY | {"max_new_tokens": 4}, Careless(4)
    first_id = int(target.generate(**given)[0, given["input_ids"].shape[1]])
    given |= {"eos_token_id": first_id, "logits_processor": [Looks()]}
    compare(target, given, uag.Assistant(None, drafter=drafter, num_candidate_tokens=9))
    assert [list(ask.limits) for ask in drafter.asks] == [[0, 2, 2], [0, 1, 1], [0, 0, 0]]


def test_a_pause_is_one_for_those_who_do_not_look_at_it_too() -> None:
    """Candidates are never right, so drafting pauses; candidates proposed then are not verified."""
    target = pair()[0]
    inputs = left_padded(PROMPTS[:1])
    drafter = Careless(4)
    assistant = uag.Assistant(None, drafter=drafter)
    num_paused = 0
    for _ in range(8):
        drafter.asks.clear()
        assistant.generate(target, **inputs, **GREEDY)
        assert assistant.stats.num_candidate_tokens <= sum(min(4, ask.limit) for ask in drafter.asks)
        num_paused += sum(not ask.limit for ask in drafter.asks)
    assert num_paused > 20


class Costly(Careless):
    has_free = False


@pytest.mark.parametrize("memory", [False, True])
def test_drafter_without_free_candidates_is_not_asked_while_drafting_pauses(memory: bool) -> None:
    drafter = Costly(4)
    assistant = uag.Assistant(None, drafter=drafter, memory=memory)
    num_rounds = 0
    for prompt in PROMPTS * 2:
        assistant.generate(pair()[0], **left_padded([prompt]), **GREEDY)
        num_rounds += assistant.stats.num_rounds
    assert 0 < len(drafter.asks) < num_rounds  # how many depends on the times of passes
    assert all(ask.limit for ask in drafter.asks)


class Garbage(Careless):
    strategy = "garbage"

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(0)
        self.make = make

    def propose(self, ask: Ask) -> Any:
        return self.make()


LISTS, PROPOSALS = "Return one list of .* each row, empty", r"Return lists of uag\.proposal\.Proposal"
WRONG: list[Any] = [3, None, "ab", (3, 0.5), Proposal("3", 0.5), Proposal(3.0, 0.5)]  # type: ignore[arg-type]
WRONG += [Proposal(torch.tensor([3, 4]), 0.5)]  # type: ignore[arg-type]
SHARES: list[Any] = [None, "0.5", 1.5, -0.1, float("nan"), torch.tensor([0.5, 0.5]), 0.5j]
WRONG += [Proposal(3, share) for share in SHARES]
WRONG += [Proposal(3, 0.5, source=["text"])]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: None, f"None.* {LISTS}"),
        (lambda: ([Proposal(1, 0.5)] for _ in range(3)), f"<generator.* {LISTS}"),
        (lambda: torch.zeros(3, 2, dtype=torch.long), rf"tensor\(.* {LISTS}"),
        (lambda: [[]], rf"\[\[\]\] for 3 rows.* {LISTS}"),
        *((lambda wrong=wrong: [wrong] * 3, r"\[") for wrong in WRONG),
        *((lambda wrong=wrong: [[Proposal(3, 0.5), wrong]] * 3, rf"\[\[.*{PROPOSALS}") for wrong in WRONG),
    ],
)
@pytest.mark.parametrize("length", [2, None])
def test_garbage_is_an_error_that_names_the_drafter(make: Callable[[], Any], message: str, length: int | None) -> None:
    assistant = uag.Assistant(None, drafter=Garbage(make), num_candidate_tokens=length)
    with pytest.raises(OptionError, match=rf"(?s)Garbage\.propose returned {message}"):
        assistant.generate(pair()[0], **left_padded(PROMPTS), **GREEDY)


def test_the_name_of_a_drafters_candidates_is_a_text() -> None:
    drafter = Careless(4)
    drafter.source = ["text"]  # type: ignore[assignment]
    with pytest.raises(OptionError, match=r"Careless\.source=\['text'\] must be a text"):
        uag.Assistant(None, drafter=drafter)


@pytest.mark.parametrize("share", [Decimal("0.5"), Fraction(1, 2), np.float32(0.5), torch.tensor([0.5]), True, 0])
def test_a_confidence_may_be_any_number(share: Any) -> None:
    assistant = uag.Assistant(None, drafter=Garbage(lambda: [[Proposal(3, share)]] * 3))
    assistant.generate(pair()[0], **left_padded(PROMPTS), **GREEDY)
    assert assistant.stats.num_candidate_tokens


@pytest.mark.parametrize("wrong", [-1, 649, 2**70])
@pytest.mark.parametrize("is_free", [False, True])
def test_ids_that_the_target_lacks_end_a_rows_candidates(wrong: int, is_free: bool) -> None:
    target = pair()[0]
    assert target.get_output_embeddings().weight.shape[0] == 649
    offered = [Proposal(np.int64(3), np.float32(0.5), is_free), Proposal(wrong, 0.5), Proposal(4, 0.5)]  # type: ignore[arg-type]
    assistant = uag.Assistant(None, drafter=Garbage(lambda: [list(offered)]), num_candidate_tokens=4)
    stats = compare(target, left_padded(PROMPTS[:1]) | GREEDY, assistant)
    assert 0 < stats.num_candidate_tokens <= stats.num_rounds
    reason = f"'garbage' proposed the id {wrong}, which the target's head lacks; such candidates were dropped"
    assert stats.fallbacks == ([] if is_free else [reason])


@pytest.mark.parametrize("kind", [np.int64, np.int32, torch.tensor])
def test_ids_of_other_types_are_compared_as_numbers(kind: Callable[[int], Any]) -> None:
    """`in` a range walks it for numbers that are no int."""
    target = pair()[0]
    inputs = left_padded(PROMPTS[:1])
    output = target.generate(**inputs, **GREEDY)[0, inputs["input_ids"].shape[1] :].tolist()
    seen: list[int] = []

    class Accepts(Garbage):
        def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
            seen.extend(output_ids)

    drafter = Accepts(lambda: [[Proposal(kind(i), 0.9) for i in output[len(seen) : len(seen) + 3]]])
    ask = Ask([3], 3, Lookahead(3), lambda *_: Scoring(649), vocab_size=1 << 60)
    assert [[type(each.target_id) for each in row] for row in ask.put_to(drafter)] == [[int] * 3]
    stats = compare(target, inputs | GREEDY, uag.Assistant(None, drafter=drafter, num_candidate_tokens=3))
    assert stats.num_accepted_tokens == stats.num_candidate_tokens > 0


def test_a_custom_drafter_is_used_without_prompt_lookup() -> None:
    """It may be a `ModelDrafter`; prompt lookup is used beside a draft that is passed as a model."""
    target, _, draft, _ = pair()
    given = left_padded([PROMPTS[0] * 4]) | GREEDY
    alone = uag.Assistant(None, drafter=ModelDrafter(draft, None))
    assert "prompt" not in compare(target, given, alone).candidates_by_source


class Draws(Careless):
    def start(self, prompts: Sequence[Sequence[int]], source_ids: Any = None) -> None:
        super().start(prompts)
        torch.rand(3)

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        torch.rand(3)
        return super().propose(ask)

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        torch.rand(3)

    def release(self) -> None:
        torch.rand(3)


@ROWS_AND_MODES
def test_a_source_that_draws_leaves_the_callers_generator_alone(num_rows: int, options: dict[str, Any]) -> None:
    def draws(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + torch.rand(scores.shape)  # the caller's own code draws as in plain decoding

    given = left_padded(PROMPTS[:num_rows]) | options | {"logits_processor": [draws]}
    assistant = uag.Assistant(None, drafter=Draws(4), num_candidate_tokens=3)
    assert compare(pair()[0], given, assistant).num_candidate_tokens > 0


class Repeats(Drafter):
    """A correct drafter: proposes the ids after the last occurrence of a row's last id, or the row's first ids."""

    draws = has_free = False
    kind: Callable[[int], Any] = int

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Any = None) -> None:
        self.rows = [list(prompt) for prompt in prompts]

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        return [[Proposal(self.kind(i), 0.5) for i in self.after(row)[:limit]] for row, limit in enumerate(ask.limits)]

    def after(self, row: int) -> list[int]:
        *ids, last = self.rows[row]
        return self.rows[row][len(ids) - ids[::-1].index(last) :] if last in ids else ids

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        self.rows[row] += output_ids

    def release(self) -> None:
        self.rows = []


class Eager(Repeats):
    """Proposes more than it is asked for, and draws random numbers, as a drafter may."""

    draws = True

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        torch.rand(3)
        return [[Proposal(i, 0.5) for i in [*self.after(row), *range(9)]] for row in range(len(ask.limits))]


SHORT = [PROMPTS[0] * 2, PROMPTS[1] * 3, PROMPTS[2] * 2]


def check(drafter: Drafter, tokenizer: Any = None) -> list[str]:
    return check_drafter(drafter, pair()[0], tokenizer, SHORT)


@pytest.mark.parametrize("kind", [np.uint16, torch.tensor])
def test_a_correct_drafter_passes_with_ids_of_any_integer_type(kind: Callable[[int], Any]) -> None:
    drafter = Repeats()
    drafter.kind = kind
    (note,) = check(drafter)
    assert re.fullmatch(r"\d+ of [1-9]\d* candidates were accepted", note)


def test_the_projects_own_sources_pass() -> None:
    _, tokenizer, draft, draft_tokenizer = pair()
    check(PromptLookup())
    check(ModelDrafter(draft, TokenizerPair.of(from_tokenizer(tokenizer), from_tokenizer(draft_tokenizer))))
    check(TextDrafter(lambda text: text[:40]), tokenizer)
    assert "beyond the limits" in check(Eager())[1]


def test_by_default_a_drafter_is_checked_on_the_demo_pair() -> None:
    (note,) = check_drafter(Repeats())
    assert not note.startswith("0 of")
    with pytest.raises(OptionError, match="needs the target's tokenizer, or prompts"):
        check_drafter(Repeats(), pair()[0])


def _fault(**methods: Any) -> Callable[[], Drafter]:
    return lambda: type("Faulty", (Repeats,), methods)()


def _proposes(make: Callable[[Ask], Any]) -> Callable[[], Drafter]:
    return _fault(propose=lambda _, ask: make(ask))


def _calls(method: str, act: Callable[..., Any], *, draws: bool = False) -> Callable[[], Drafter]:
    """A drafter that does something before one of its methods; `act` gets the drafter and the method's arguments."""

    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        act(self, *args)
        return getattr(Repeats, method)(self, *args, **kwargs)

    return _fault(**{method: changed}, draws=draws)


def _keeps(self: Any, *args: Any) -> None:
    self.__dict__.setdefault("kept", []).append(args)


METHODS = ("start", "propose", "accept", "finish", "release")


class FirstRow(Repeats):
    def after(self, row: int) -> list[int]:
        return super().after(0)


class Remains(Repeats):
    """Keeps its rows after a call that failed, because only `finish` forgets them."""

    rows: list[list[int]]

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Any = None) -> None:
        self.rows = [*getattr(self, "rows", []), *(list(prompt) for prompt in prompts)]

    def finish(self, outputs: Sequence[Sequence[int]]) -> None:
        self.rows = []

    def release(self) -> None:
        pass


def _sure(share: Any) -> Any:
    return _proposes(lambda ask: [[Proposal(3, share)] for _ in ask.limits])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_proposes(lambda ask: [[]] * 7), r"Faulty.propose returns .*: return a list of proposals for each of 1"),
        (_proposes(lambda ask: [[3] for _ in ask.limits]), "returns 3 as a candidate"),
        (_proposes(lambda ask: [[Proposal(3.0, 0.5)] for _ in ask.limits]), "returns the id 3.0"),  # type: ignore[arg-type]
        (_proposes(lambda ask: [[Proposal(3, 1.5)] for _ in ask.limits]), "returns the confidence 1.5"),
        (_proposes(lambda ask: [[Proposal(3, float("nan"))] for _ in ask.limits]), "returns the confidence nan"),
        *((_sure(share), "returns the confidence") for share in SHARES),
        (_proposes(lambda ask: [None for _ in ask.limits]), "returns None for a row"),
        (_proposes(lambda ask: [{Proposal(3, 0.5)} for _ in ask.limits]), "returns {.* for a row"),
        (_proposes(lambda ask: [(Proposal(3, 0.5) for _ in "ab") for _ in ask.limits]), "returns <generator.* a row"),
        (_proposes(lambda ask: [[Proposal(3, 0.5, source=[])] for _ in ask.limits]), r"returns the source \[\]"),  # type: ignore[arg-type]
        (_proposes(lambda ask: [[Proposal(649, 0.5)] for _ in ask.limits]), "the id 649, which the target"),
        (_proposes(lambda ask: [[Proposal(3, 0.5, is_free=True)] for _ in ask.limits]), "`has_free` is False"),
        (
            _proposes(lambda ask: [[Proposal(3, 0.5), Proposal(4, 0.5, is_free=True)] for _ in ask.limits]),
            "returns free and other candidates",
        ),
        (_proposes(lambda ask: [[Proposal(int(torch.rand(()) * 9), 0.5)] for _ in ask.limits]), "although `draws`"),
        (_fault(start=lambda _, prompts, sources=None: [each.append(1) for each in prompts]), "start changes a prompt"),
        (_fault(accept=lambda self, row, num, ids: ids.clear()), "accept changes output ids"),
        (_fault(start=lambda self, prompts, source_ids=None: setattr(self, "rows", prompts), release=lambda self: None,
                accept=lambda *_: None), "keeps a prompt after `release`"),
        (_fault(propose=lambda self, ask: [[] for self.ask in [ask] for _ in ask.limits]), "keeps an `Ask`"),
        (_calls("accept", _keeps), "keeps output ids after `release`"),
        (_calls("finish", _keeps), "keeps an output after `release`"),
        (FirstRow, "of a batch, and"),
        (Remains, "after a call that failed"),
    ],
)  # fmt: skip
def test_each_fault_of_a_drafter_is_named(make: Callable[[], Drafter], message: str) -> None:
    with pytest.raises(DrafterError, match=message):
        check(make())


@covering("method, draws", METHODS, (False, True), strength=1)
def test_global_generators_are_left_alone(method: str, draws: bool) -> None:
    for seed in (0, 11):
        with pytest.raises(DrafterError, match=f"{method} seeds the default generator"):
            check(_calls(method, lambda *_, seed=seed: torch.manual_seed(seed), draws=draws)())
    for use in (lambda *_: random.seed(0), lambda *_: np.random.seed(0), lambda *_: random.random()):  # noqa: NPY002
        with pytest.raises(DrafterError, match="generator of `random` or NumPy"):
            check(_calls(method, use, draws=draws)())
    if not draws:
        with pytest.raises(DrafterError, match=f"{method} draws random numbers, although `draws` is False"):
            check(_calls(method, lambda *_: torch.rand(1))())


@pytest.mark.parametrize("drafter", [None, "x", PromptLookup])
def test_what_is_no_drafter_is_not_checked(drafter: Any) -> None:
    with pytest.raises(OptionError, match=r"^drafter=.* must be an object whose class inherits"):
        check_drafter(drafter)


@pytest.mark.parametrize("prompts", [[], [[5]], [[], []], ["a", "b"]])
def test_prompts_to_check_with_are_lists_of_ids(prompts: Any) -> None:
    with pytest.raises(OptionError, match="prompts must be two or more lists of target ids"):
        check_drafter(PromptLookup(), pair()[0], prompts=prompts)
