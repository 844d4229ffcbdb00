"""The projection, driven by hand: a draft that is a table, and a reference that goes through every continuation."""

from __future__ import annotations

import codecs
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.tokenizers import small_tokenizer
from tests.support.toys import Distribution, TableDraft, ToyAdapter, started_row
from tests.unit.adapters.strategies import SETTINGS
from uag.adapters import from_tokenizer
from uag.drafting.cross_row import CrossRow
from uag.projection import DraftRow, Projection, Scoring, TokenizerPair, num_unfinished
from uag.projection.reader import TargetReader
from uag.projection.scoring import _OPEN_SHARE
from uag.projection.search import BestFirst
from uag.projection.vocabulary import NO_TOKEN, build_vocabulary_map
from uag.proposal import Proposal

MANY = 10_000


class Toy:
    """A pair of toy tokenizers and a draft table."""

    def __init__(
        self,
        target: Sequence[bytes],
        draft: Sequence[bytes],
        distribution: Distribution,
        max_branches: int = MANY,
        heal: bool = True,
    ) -> None:
        self.target, self.draft = ToyAdapter(target), ToyAdapter(draft)
        self.maps = build_vocabulary_map(self.target, self.draft)
        self.model = TableDraft(self.draft.vocab_size, distribution)
        pair = TokenizerPair(self.target, self.draft, self.maps)
        self.projection = Projection(pair, max_branches=max_branches, heal=heal)

    def scoring(self, may_feed: bool = True) -> Scoring:
        return Scoring(self.target.vocab_size, may_feed=may_feed)

    def propose(self, row: DraftRow) -> Proposal | None:
        return self.model.run(row, self.projection.next_target(row, self.scoring()))

    def row(self, *target_texts: bytes) -> CrossRow:
        """A row behind BOS to which the target wrote some tokens, one by one, after the draft was asked each time."""
        row = CrossRow(self.projection, [], (self.draft.eos_id,))
        for text in target_texts:
            self.propose(row)
            row.accept(0, [self.target.id_of(text)])
        return row


def table(draft: ToyAdapter, rows: Mapping[str, Mapping[str, float]], default: Mapping[str, float]) -> Distribution:
    """Spell a draft by text: text so far -> next piece ("$" for EOS) -> probability. EOS in the context is begin."""

    def ids(row: Mapping[str, float]) -> dict[int, float]:
        return {draft.eos_id if piece == "$" else draft.id_of(piece): prob for piece, prob in row.items()}

    def distribution(context: tuple[int, ...]) -> Mapping[int, float]:
        text = "|".join("" if i == draft.eos_id else draft.pieces[i].decode("latin-1") for i in context)
        return ids(rows.get(text.removeprefix("|"), default))

    return distribution


def spelled(
    target: str,
    draft: str,
    rows: Mapping[str, Mapping[str, float]],
    default: Mapping[str, float] | None = None,
    max_branches: int = MANY,
    heal: bool = True,
) -> Toy:
    pieces = [piece.encode() for piece in draft.split()]
    return Toy(
        [piece.encode() for piece in target.split()],
        pieces,
        table(ToyAdapter(pieces), rows, default or {"$": 1.0}),
        max_branches,
        heal,
    )


# By hand ------------------------------------------------------------------------------------------------------------


def test_paths_of_one_token_and_of_many_add_up() -> None:
    toy = spelled("t h e th the x", "th e the x", {"": {"the": 0.35, "th": 0.25, "x": 0.4}, "th": {"e": 1.0}})
    row = toy.row()
    proposal = toy.propose(row)
    # "x" (0.4) is decided first; the open "th" (0.25) could not outweigh it alone, so no pass is spent on it
    assert proposal is not None
    assert proposal.target_id == toy.target.id_of("x")
    assert proposal.confidence == pytest.approx(0.4, abs=1e-6)
    toy = spelled("t h e th the x", "th e the x", {"": {"the": 0.35, "th": 0.35, "x": 0.3}, "th": {"e": 1.0}})
    proposal = toy.propose(toy.row())
    assert proposal is not None
    assert proposal.target_id == toy.target.id_of("the")


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


# Against every continuation -----------------------------------------------------------------------------------------


def continuations(  # noqa: C901 - one branch for each way in which a token can meet the pending text
    toy: Toy, context: tuple[int, ...], pending: bytes, last: bytes
) -> tuple[dict[int, float], dict[int, float]]:
    """Go through all draft continuations.

    Returns:
        For each target token its mass, and the mass of its heaviest single continuation.
    """
    total: dict[int, float] = defaultdict(float)
    heaviest: dict[int, float] = defaultdict(float)

    def add(target_id: int, mass: float) -> None:
        if target_id != NO_TOKEN:
            total[target_id] += mass
            heaviest[target_id] = max(heaviest[target_id], mass)

    def walk(context: tuple[int, ...], pending: bytes, over: bytes, mass: float) -> None:
        for draft_id, prob in toy.model.distribution(context).items():
            text = toy.draft.token_bytes[draft_id]
            if text is None:
                if not pending:
                    add(first_of(toy, over) if over else toy.target.eos_id, mass * prob)
            elif len(text) <= len(pending):
                if pending.startswith(text):
                    walk((*context, draft_id), pending[len(text) :], b"", mass * prob)
            elif text.startswith(pending):
                new = over + text[len(pending) :]
                if pending and would_not_stop(toy, last, new):
                    continue
                if goes_on(toy, new):
                    walk((*context, draft_id), b"", new, mass * prob)
                else:
                    add(first_of(toy, new), mass * prob)

    walk(context, pending, b"", 1.0)
    return total, heaviest


def first_of(toy: Toy, text: bytes) -> int:
    """The first target token of a text, if it begins the text."""
    ids = toy.target.encode_continuation(text)
    return ids[0] if ids and text.startswith(toy.target.token_bytes[ids[0]] or b"?") else NO_TOKEN


def goes_on(toy: Toy, text: bytes) -> bool:
    """Whether some target token begins with a text and is longer."""
    return any(token and token.startswith(text) and token != text for token in toy.target.token_bytes)


def would_not_stop(toy: Toy, last: bytes, following: bytes) -> bool:
    """Whether the target, about to write `following`, would have written another token than `last`."""
    return bool(last) and first_of(toy, last + following) not in (NO_TOKEN, toy.target.ids[last])


pieces = st.lists(st.text("abc", min_size=2, max_size=3).map(str.encode), max_size=6, unique=True)


def seeded(size: int, seed: int, sharpness: int) -> Distribution:
    """A draft with a law of its own behind every context."""

    def distribution(context: tuple[int, ...]) -> Mapping[int, float]:
        draw = random.Random(repr((seed, context)))
        weights = [draw.random() ** sharpness for _ in range(size)]
        return {draft_id: weight / sum(weights) for draft_id, weight in enumerate(weights)}

    return distribution


def check_step(toy: Toy, row: CrossRow, where: str) -> None:
    """Ask once, and compare with going through every continuation from the node that the search starts at."""
    silent = toy.projection.next_target(row, toy.scoring(may_feed=False))
    with pytest.raises(StopIteration):
        next(silent)
    toy.model.run(row, toy.projection.settle_pending(row))
    num_forwards = toy.model.num_forwards
    toy.model.run(row, toy.projection.settle_pending(row))
    assert toy.model.num_forwards == num_forwards, "what was settled is settled again"
    root = toy.projection._root(row)
    context = tuple(node.draft_id for node in row.path[: root.depth + 1])
    text = bytes(row.text)
    total, heaviest = continuations(toy, context, text[root.end :], row.last_target_text)
    proposal = toy.propose(row)
    assert bytes(row.text) == text
    covered = b"".join(node.text for node in row.path)
    assert covered.startswith(text) or text.startswith(covered)
    assert all(node.depth == depth for depth, node in enumerate(row.path))
    if proposal is None:
        assert not total or root.end < len(text), where
        return
    if proposal.target_id not in total and root.end < len(text):
        return  # no continuation kept the boundary: the pending text was covered first
    assert 0.0 < proposal.confidence <= 1.0
    # An open continuation is expected to give its best token half of its mass, so no single continuation of another
    # token has more than twice the whole mass of the one that was chosen.
    assert total[proposal.target_id] >= _OPEN_SHARE * max(heaviest.values()) - 1e-5, where
    silent = toy.projection.next_target(row, toy.scoring(may_feed=False))
    with pytest.raises(StopIteration):
        next(silent)


@SETTINGS
@given(
    target=pieces,
    draft=pieces,
    seed=st.integers(0, 10**6),
    sharpness=st.sampled_from([1, 3, 8]),
    text=st.text("abc", max_size=7).map(str.encode),
)
def test_the_decision_is_that_of_all_continuations(
    target: list[bytes], draft: list[bytes], seed: int, sharpness: int, text: bytes
) -> None:
    letters = [b"a", b"b", b"c"]
    toy = Toy([*letters, *target], [*letters, *draft], seeded(len(draft) + 4, seed, sharpness))
    assume(not toy.maps.is_identity)  # then ids are taken over, and nothing is projected
    row = CrossRow(toy.projection, [], (toy.draft.eos_id,))
    check_step(toy, row, "at the start")
    for target_id in toy.target.encode_continuation(text):
        row.accept(0, [target_id])
        check_step(toy, row, f"behind {bytes(row.text)!r}")


@SETTINGS
@given(draft=pieces, seed=st.integers(0, 10**6), sharpness=st.sampled_from([1, 3, 8]))
def test_where_every_first_token_is_closed_the_sum_is_exact(draft: list[bytes], seed: int, sharpness: int) -> None:
    letters = [b"a", b"b", b"c"]
    toy = Toy(letters, [*letters, *draft], seeded(len(draft) + 4, seed, sharpness))
    total, _ = continuations(toy, (toy.draft.eos_id,), b"", b"")
    proposal = toy.propose(toy.row())
    assert proposal is not None
    assert total[proposal.target_id] == pytest.approx(max(total.values()), abs=1e-6)
    assert proposal.confidence == pytest.approx(max(total.values()), abs=1e-5)
    assert toy.model.num_forwards == 1


@SETTINGS
@given(
    target=pieces,
    draft=pieces,
    seed=st.integers(0, 10**6),
    sharpness=st.sampled_from([3, 8, 20]),
    text=st.text("abc", max_size=5).map(str.encode),
)
def test_what_outweighs_everything_is_what_a_whole_search_finds(
    target: list[bytes], draft: list[bytes], seed: int, sharpness: int, text: bytes
) -> None:
    letters = [b"a", b"b", b"c"]
    found = []
    for is_simple in (True, False):
        toy = Toy([*letters, *target], [*letters, *draft], seeded(len(draft) + 4, seed, sharpness))
        assume(not toy.maps.is_identity)
        row = CrossRow(toy.projection, [], (toy.draft.eos_id,))
        row.accept(0, toy.target.encode_continuation(text))
        toy.model.run(row, toy.projection.settle_pending(row))
        search = BestFirst(toy.projection.reader, row, toy.scoring(), MANY)
        assert search.is_simple
        search.is_simple = is_simple
        proposal = toy.model.run(row, search.run(row.path[row.tail()]))
        found.append((proposal and proposal.target_id, toy.model.num_forwards))
    assert found[0] == found[1]


@SETTINGS
@given(
    target=pieces,
    draft=pieces,
    seed=st.integers(0, 10**6),
    max_branches=st.integers(0, 2),
    heal=st.booleans(),
    rounds=st.lists(st.tuples(st.integers(0, 4), st.lists(st.integers(0, 20), min_size=1, max_size=3)), max_size=5),
)
def test_the_draft_always_stands_in_the_targets_text(
    target: list[bytes],
    draft: list[bytes],
    seed: int,
    max_branches: int,
    heal: bool,
    rounds: list[tuple[int, list[int]]],
) -> None:
    """Draft some candidates, have some accepted, go on with what the target wrote: bytes never get lost."""
    letters = [b"a", b"b", b"c"]
    toy = Toy([*letters, *target], [*letters, *draft], seeded(len(draft) + 4, seed, 3), max_branches, heal)
    assume(not toy.maps.is_identity)
    row = CrossRow(toy.projection, [], (toy.draft.eos_id,))
    written = b""
    for num_kept, more in rounds:
        candidates: list[int] = []
        while len(candidates) < 3:
            proposal = toy.propose(row)
            if proposal is None:
                break
            candidates.append(proposal.target_id)
            if not row.commit(proposal.target_id):
                break
        kept = [i for i in candidates[:num_kept] if i != toy.target.eos_id]
        output = [*kept, *(i % (toy.target.vocab_size - 1) for i in more)]
        row.accept(len(kept), output)
        written += toy.target.join(output) or b""
        assert bytes(row.text) == written
        assert toy.propose(row) is None or row.path
        covered = b"".join(node.text for node in row.path)
        assert covered.startswith(written) or written.startswith(covered)
        tail = row.path[row.tail()]
        assert tail.end <= len(written)
        assert tail.probs is not None


# Unfinished characters ----------------------------------------------------------------------------------------------


@SETTINGS
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=6), cut=st.integers(0, 24))
def test_unfinished_bytes_are_those_that_a_decoder_holds_back(text: str, cut: int) -> None:
    data = text.encode()[:cut]
    decoder = codecs.getincrementaldecoder("utf-8")()
    decoder.decode(data)
    assert num_unfinished(data) == num_unfinished(bytearray(data)) == len(decoder.getstate()[0])


@pytest.mark.parametrize(("data", "number"), [(b"\x80", 0), (b"a\x80\x80\x80", 0), (b"\xff", 1), (b"", 0)])
def test_bytes_that_are_no_text_hold_nothing_back_for_long(data: bytes, number: int) -> None:
    assert num_unfinished(data) == number


def test_white_space_alone_does_not_say_where_the_target_ends_a_token() -> None:
    """GPT-2's pattern leaves the last space to the word that follows: before a word, two spaces are two tokens."""
    target, draft = (from_tokenizer(small_tokenizer(name)) for name in ("byte_level", "byte_level_digits"))
    reader = TargetReader(TokenizerPair.of(target, draft))
    assert target.token_bytes[reader.settle(b"  ")] == b"  "
    assert reader.keeps_boundary(b" ", b" return")
    assert reader.keeps_boundary(b" ", b" ")
