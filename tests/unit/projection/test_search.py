"""The search on table-based drafts, for which the target token can be computed by hand."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.support.toys import Toy, ToyAdapter, spelled
from uag.proposal import Warpers

OPEN_ROWS = {"": {"th": 0.8, "the": 0.2}, "th": {"e": 0.9, "x": 0.1}}


@pytest.mark.parametrize(
    ("target", "draft", "rows", "committed", "expected", "confidence", "num_forwards"),
    [
        # several draft tokens that form one target token outweigh the most probable one
        ("a b c x", "a ab ac x", {"": {"ab": 0.3, "ac": 0.3, "x": 0.4}}, "", "a", 0.6, 1),
        ("a b c x", "a ab ac x", {"": {"ab": 0.55, "ac": 0.3, "x": 0.15}}, "", "a", 0.85, 1),
        # one more pass splits an open continuation; what cannot win is not read
        ("t h e x th the", "th e the x", OPEN_ROWS, "", "the", 0.92, 2),
        ("t h e x th the", "th e the x", OPEN_ROWS | {"th": {"x": 0.9, "e": 0.1}}, "", "th", 0.72, 2),
        # a pass is spent only if half of the open mass could win
        ("t h e x th the", "th e x", {"": {"th": 0.6, "x": 0.4}, "th": {"e": 0.5, "x": 0.5}}, "", "x", 0.4, 1),
        ("t h e x th the", "th e x", {"": {"th": 0.7, "x": 0.3}, "th": {"e": 0.5, "x": 0.5}}, "", "the", 0.35, 2),
        # the end of the draft is the end of the target, and it decides open text in front of it
        ("a b ab", "a b", {"": {"$": 0.9, "a": 0.1}}, "", None, 0.9, 1),
        ("a b ab", "a b", {"": {"a": 1.0}, "a": {"$": 0.8, "b": 0.2}}, "", "a", 0.8, 2),
        # boundary healing: the draft would never generate "t" and then "he"
        ("t h e he x", "t he the x", {"": {"the": 0.9, "x": 0.1}, "t": {"x": 1.0}}, "t", "he", 1.0, 1),
        # after "t", the target does not continue with "he": it would have generated "the"
        ("t h e o he the x", "t he the to x", {"": {"the": 0.9, "to": 0.1}, "t": {"x": 1.0}}, "t", "o", 1.0, 1),
    ],
)
def test_decisions_on_paper(
    target: str, draft: str, rows: Any, committed: str, expected: str | None, confidence: float, num_forwards: int
) -> None:
    toy = spelled(target, draft, rows)
    row = toy.row(*([committed.encode()] if committed else []))
    proposal = toy.propose(row)
    assert proposal is not None
    assert proposal.target_id == (toy.target.eos_id if expected is None else toy.target.id_of(expected))
    assert proposal.confidence == pytest.approx(confidence, abs=1e-3)
    assert toy.num_forwards == num_forwards
    assert bytes(row.text) == committed.encode()


def test_text_that_the_target_cannot_begin_yields_no_proposal() -> None:
    toy = spelled("a", "a x", {"": {"x": 1.0}})
    assert toy.propose(toy.row()) is None


@pytest.mark.parametrize("temperature", [0.3, 0.01])
def test_noise_decides_between_nearly_equal_tokens_at_any_temperature(temperature: float) -> None:
    # the target generated only "x", so all three continue it
    toy = spelled("x a b c", "x xa xb xc", {"": {"xa": 0.334, "xb": 0.333, "xc": 0.333}, "x": {"$": 1.0}})
    noise = np.array([4.0, 4.0, 1.0, 0.25, 4.0], dtype=np.float32)
    proposal = toy.propose(toy.row(b"x"), warpers=Warpers(temperature), noise=noise)
    assert proposal is not None
    assert proposal.target_id == toy.target.id_of("c")


@pytest.mark.parametrize("whole", [True, False])
def test_an_unfinished_character_is_completed(whole: bool) -> None:
    first, second = "é".encode()[:1], "é".encode()[1:]
    draft = [b"a", "é".encode()] if whole else [b"a", first, second]
    start = ToyAdapter(draft).eos_id

    def distribution(context: tuple[int, ...]) -> Mapping[int, float]:
        return {1: 0.6, 0: 0.4} if context == (start,) else {len(draft) - 1: 0.9, 0: 0.1}

    toy = Toy([first, second, b"a"], draft, distribution)
    row = toy.row(first)
    proposal = toy.propose(row)
    assert proposal is not None
    assert proposal.target_id == toy.target.id_of(second)
    row.accept(0, [proposal.target_id])
    assert bytes(row.text) == "é".encode()
    assert toy.propose(row) is not None
    assert b"".join(node.text for node in row.path[: row.tail() + 1]) == "é".encode()


def test_without_passes_only_known_distributions_propose() -> None:
    toy = spelled("a b", "a b", {"": {"a": 1.0}})
    row = toy.row()
    assert toy.propose(row, may_feed=False) is None
    assert toy.num_forwards == 0
    assert toy.propose(row) is not None
    known = toy.propose(row, may_feed=False)
    assert known is not None
    assert known.target_id == toy.target.id_of("a")
    assert toy.num_forwards == 1


def test_text_that_the_draft_cannot_write_needs_no_pass() -> None:
    toy = spelled("a x", "a", {"": {"a": 1.0}})
    row = toy.row(b"x")
    for _ in range(2):
        assert toy.propose(row) is not None
    assert (toy.num_forwards, toy.num_tokens) == (1, 1)


def test_passes_that_leave_the_path_are_bounded() -> None:
    # "a", "b" and "c" each need a pass, and two of them leave the path
    rows, behind = {"": {"a": 0.34, "b": 0.33, "c": 0.33}}, {"x": 0.34, "y": 0.33, "z": 0.33}
    target = "a b c x y z ax ay az bx by bz cx cy cz"
    counts = []
    for max_branches in (0, 1, 2, 3):
        toy = spelled(target, "a b c x y z", rows, behind, max_branches=max_branches)
        assert toy.propose(toy.row()) is not None
        counts.append(toy.num_forwards)
    assert counts == [2, 3, 4, 4]


def test_the_draft_reads_no_token_twice() -> None:
    toy = spelled("a b x", "a b x", {}, {"x": 0.8, "a": 0.1, "b": 0.1})
    row = toy.row()
    toy.propose(row)
    assert toy.num_tokens == 1
    for number, text in enumerate([b"a", b"b", b"b", b"a", b"b"], start=2):
        row.accept(0, [toy.target.id_of(text)])
        for _ in range(2):
            assert toy.propose(row) is not None
        assert toy.num_tokens == number
