"""The search compared with a reference that enumerates every continuation of the draft."""

import random
from collections import defaultdict
from collections.abc import Mapping

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.toys import Distribution, Toy
from tests.unit.adapters.strategies import SETTINGS
from uag.drafting.models.cross_row import CrossRow
from uag.projection.pair import NO_TOKEN
from uag.projection.scoring import _OPEN_SHARE


def continuations(  # noqa: C901 - one branch for each way in which a token can meet the pending text
    toy: Toy, context: tuple[int, ...], pending: bytes, last: bytes
) -> tuple[dict[int, float], dict[int, float]]:
    """Enumerate all draft continuations.

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
        for draft_id, prob in toy.distribution(context).items():
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
    """Whether the target, if `following` comes next, would have generated another token than `last`."""
    return bool(last) and first_of(toy, last + following) not in (NO_TOKEN, toy.target.ids[last])


LETTERS = [b"a", b"b", b"c"]
pieces = st.lists(st.text("abc", min_size=2, max_size=3).map(str.encode), max_size=6, unique=True)


def seeded(size: int, seed: int, sharpness: int) -> Distribution:
    """A draft with a different distribution after every context."""

    def distribution(context: tuple[int, ...]) -> Mapping[int, float]:
        draw = random.Random(repr((seed, context)))
        weights = [draw.random() ** sharpness for _ in range(size)]
        return {draft_id: weight / sum(weights) for draft_id, weight in enumerate(weights)}

    return distribution


def check_silent(toy: Toy, row: CrossRow) -> None:
    """Assert that a search that may not feed the draft requests no pass."""
    num_forwards = toy.num_forwards
    toy.propose(row, may_feed=False)
    assert toy.num_forwards == num_forwards


def check_step(toy: Toy, row: CrossRow, where: str) -> None:
    """Search once, and compare with the enumeration of all continuations from the start node."""
    check_silent(toy, row)
    toy.run(row, toy.projection.settle_pending(row))
    num_forwards = toy.num_forwards
    toy.run(row, toy.projection.settle_pending(row))
    assert toy.num_forwards == num_forwards, "what was settled is settled again"
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
    assert 0.0 < proposal.confidence <= 1.0
    # An open continuation is expected to give its best token half of its mass, so no single continuation of another
    # token has more than twice the whole mass of the one that was chosen.
    assert total[proposal.target_id] >= _OPEN_SHARE * max(heaviest.values()) - 1e-5, where
    check_silent(toy, row)


@SETTINGS
@given(
    target=pieces,
    draft=pieces,
    seed=st.integers(0, 10**6),
    sharpness=st.sampled_from([1, 3, 8]),
    text=st.text("abc", max_size=7).map(str.encode),
)
def test_the_decision_agrees_with_all_continuations(
    target: list[bytes], draft: list[bytes], seed: int, sharpness: int, text: bytes
) -> None:
    toy = Toy([*LETTERS, *target], [*LETTERS, *draft], seeded(len(draft) + 4, seed, sharpness))
    assume(not toy.maps.is_identity)  # then ids are used unchanged, without projection
    row = CrossRow(toy.projection, [], (toy.draft.eos_id,))
    check_step(toy, row, "at the start")
    for target_id in toy.target.encode_continuation(text):
        row.accept(0, [target_id])
        check_step(toy, row, f"behind {bytes(row.text)!r}")


@SETTINGS
@given(draft=pieces, seed=st.integers(0, 10**6), sharpness=st.sampled_from([1, 3, 8]))
def test_the_sum_is_exact_if_every_first_token_is_closed(draft: list[bytes], seed: int, sharpness: int) -> None:
    toy = Toy(LETTERS, [*LETTERS, *draft], seeded(len(draft) + 4, seed, sharpness))
    total, _ = continuations(toy, (toy.draft.eos_id,), b"", b"")
    proposal = toy.propose(toy.row())
    assert proposal is not None
    assert total[proposal.target_id] == pytest.approx(max(total.values()), abs=1e-6)
    assert proposal.confidence == pytest.approx(max(total.values()), abs=1e-5)
    assert toy.num_forwards == 1


@SETTINGS
@given(
    target=pieces,
    draft=pieces,
    seed=st.integers(0, 10**6),
    max_branches=st.integers(0, 2),
    rounds=st.lists(st.tuples(st.integers(0, 4), st.lists(st.integers(0, 20), min_size=1, max_size=3)), max_size=5),
)
def test_the_path_always_covers_the_targets_text(
    target: list[bytes], draft: list[bytes], seed: int, max_branches: int, rounds: list[tuple[int, list[int]]]
) -> None:
    """Draft candidates, accept some, continue with the target's tokens: no bytes are lost."""
    toy = Toy([*LETTERS, *target], [*LETTERS, *draft], seeded(len(draft) + 4, seed, 3), max_branches)
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
