"""The search, driven by hand: a draft that is a table, and one target token that can be worked out on paper."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tests.support.toys import Toy, ToyAdapter, spelled, started_row
from uag.projection import Scoring
from uag.proposal import Warpers


def test_the_most_probable_draft_token_may_lose_against_several() -> None:
    toy = spelled("a b c x", "a ab ac x", {"": {"ab": 0.3, "ac": 0.3, "x": 0.4}})
    row = toy.row()
    proposal = toy.propose(row)
    assert proposal is not None
    assert proposal.target_id == toy.target.id_of("a")
    assert proposal.confidence == pytest.approx(0.6, abs=1e-6)
    toy = spelled("a b c x", "a ab ac x", {"": {"ab": 0.55, "ac": 0.3, "x": 0.15}})
    row = toy.row()
    proposal = toy.propose(row)
    assert proposal is not None
    assert proposal.target_id == toy.target.id_of("a")
    assert proposal.confidence == pytest.approx(0.85, abs=1e-6)  # what agrees counts, though one alone outweighs


def test_an_open_continuation_is_split_by_one_more_pass() -> None:
    rows = {"": {"th": 0.8, "the": 0.2}, "th": {"e": 0.9, "x": 0.1}}
    toy = spelled("t h e x th the", "th e the x", rows)
    proposal = toy.propose(toy.row())
    assert proposal is not None
    assert proposal.target_id == toy.target.id_of("the")
    assert proposal.confidence >= 0.2 + 0.8 * 0.9 - 1e-6  # what was not looked at is taken to be like what was
    assert toy.model.num_forwards == 2
    toy = spelled("t h e x th the", "th e the x", rows | {"th": {"x": 0.9, "e": 0.1}})
    proposal = toy.propose(toy.row())
    assert proposal is not None
    assert proposal.target_id == toy.target.id_of("th")
    assert 0.8 * 0.9 <= proposal.confidence + 1e-6 <= 0.8 + 2e-6


@pytest.mark.parametrize(("open_mass", "num_forwards"), [(0.6, 1), (0.7, 2)])
def test_a_pass_is_spent_only_where_half_of_an_open_mass_could_win(open_mass: float, num_forwards: int) -> None:
    rows = {"": {"th": open_mass, "x": 1 - open_mass}, "th": {"e": 0.5, "x": 0.5}}
    toy = spelled("t h e x th the", "th e x", rows)
    assert toy.propose(toy.row()) is not None
    assert toy.model.num_forwards == num_forwards


@pytest.mark.parametrize("temperature", [0.3, 0.01])
def test_noise_decides_between_nearly_equal_tokens_at_any_temperature(temperature: float) -> None:
    # the target wrote "x" alone, so all three continue it
    toy = spelled("x a b c", "x xa xb xc", {"": {"xa": 0.334, "xb": 0.333, "xc": 0.333}, "x": {"$": 1.0}})
    noise = np.array([4.0, 4.0, 1.0, 0.25, 4.0], dtype=np.float32)
    scoring = Scoring(toy.target.vocab_size, Warpers(temperature), noise)
    proposal = toy.model.run(row := toy.row(b"x"), toy.projection.next_target(row, scoring))
    assert proposal is not None
    assert proposal.target_id == toy.target.id_of("c")


def test_the_end_of_the_draft_is_the_end_of_the_target() -> None:
    toy = spelled("a b ab", "a b", {"": {"$": 0.9, "a": 0.1}})
    proposal = toy.propose(toy.row())
    assert proposal is not None
    assert proposal.target_id == toy.target.eos_id
    assert proposal.confidence == pytest.approx(0.9, abs=1e-6)


def test_an_end_behind_open_text_decides_that_text() -> None:
    toy = spelled("a b ab", "a b", {"": {"a": 1.0}, "a": {"$": 0.8, "b": 0.2}})
    proposal = toy.propose(toy.row())
    assert proposal is not None
    assert proposal.target_id == toy.target.id_of("a")
    assert proposal.confidence >= 0.8 - 1e-6


def test_text_that_ends_inside_a_draft_token_is_healed() -> None:
    # the draft would never write "t" and then "he": asked behind "t", it knows nothing
    rows = {"": {"the": 0.9, "x": 0.1}, "t": {"x": 1.0}}
    toy = spelled("t h e he x", "t he the x", rows)
    row = toy.row(b"t")
    proposal = toy.propose(row)
    assert proposal is not None
    assert proposal.target_id == toy.target.id_of("he")
    assert proposal.confidence == pytest.approx(1.0, abs=1e-3)
    assert bytes(row.text) == b"t"
    toy = spelled("t h e he x", "t he the x", rows, heal=False)
    proposal = toy.propose(toy.row(b"t"))
    assert proposal is not None
    assert proposal.target_id == toy.target.id_of("x")


def test_a_draft_token_that_the_target_would_have_written_whole_does_not_count() -> None:
    # the target has "the": having written "t", it is not about to write "he"
    rows = {"": {"the": 0.9, "to": 0.1}, "t": {"x": 1.0}}
    toy = spelled("t h e o he the x", "t he the to x", rows)
    proposal = toy.propose(toy.row(b"t"))
    assert proposal is not None
    assert proposal.target_id == toy.target.id_of("o")
    assert proposal.confidence == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("whole", [True, False])
def test_an_unfinished_character_is_finished(whole: bool) -> None:
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


def test_text_that_the_target_cannot_begin_gives_no_proposal() -> None:
    toy = spelled("a", "a x", {"": {"x": 1.0}})
    assert toy.propose(toy.row()) is None


def test_nothing_is_proposed_without_a_pass_where_none_was_run() -> None:
    toy = spelled("a b", "a b", {"": {"a": 1.0}})
    row = toy.row()
    assert toy.model.run(row, toy.projection.next_target(row, toy.scoring(may_feed=False))) is None
    assert toy.model.num_forwards == 0
    assert toy.propose(row) is not None
    known = toy.model.run(row, toy.projection.next_target(row, toy.scoring(may_feed=False)))
    assert known is not None
    assert known.target_id == toy.target.id_of("a")
    assert toy.model.num_forwards == 1


def test_passes_off_the_path_are_bounded() -> None:
    # "a", "b" and "c" each need a pass, and two of them leave the path
    rows, behind = {"": {"a": 0.34, "b": 0.33, "c": 0.33}}, {"x": 0.34, "y": 0.33, "z": 0.33}
    target = "a b c x y z ax ay az bx by bz cx cy cz"
    counts = []
    for max_branches in (0, 1, 2, 3):
        toy = spelled(target, "a b c x y z", rows, behind, max_branches)
        assert toy.propose(toy.row()) is not None
        counts.append(toy.model.num_forwards)
    assert counts == [2, 3, 4, 4]


def test_a_prompt_is_fed_as_it_is() -> None:
    toy = spelled("a b ab", "a b", {"a|b": {"a": 1.0}})
    row = started_row(toy.draft, [toy.draft.id_of("a"), toy.draft.id_of("b")])
    proposal = toy.propose(row)
    assert proposal is not None
    assert [node.draft_id for node in row.path[:3]] == [toy.draft.eos_id, 0, 1]
    assert proposal.target_id == toy.target.id_of("a")


def test_what_the_draft_has_read_is_not_read_again() -> None:
    toy = spelled("a b x", "a b x", {}, {"x": 1.0})
    row = toy.row()
    toy.propose(row)
    assert toy.model.num_tokens == 1
    for number, text in enumerate([b"a", b"b", b"b", b"a", b"b"], start=2):
        row.accept(0, [toy.target.id_of(text)])
        for _ in range(2):
            assert toy.propose(row) is not None
        assert toy.model.num_tokens == number
