"""Waiting rows: tokens generated while nothing is drafted must reach the draft completely and in order."""

from functools import cache

import numpy as np
import pytest

from tests.support.tokenizers import small_tokenizer
from uag.adapters import from_tokenizer
from uag.drafting.models.cross_row import CrossRow
from uag.drafting.models.rows import SharedRow
from uag.projection import Node, Projection, Scoring, TokenizerPair, link

TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on."


@cache
def projection() -> Projection:
    target, draft = (from_tokenizer(small_tokenizer(name)) for name in ("byte_level", "byte_level_digits"))
    return Projection(TokenizerPair.of(target, draft))


def target_ids(text: str) -> list[int]:
    return list(small_tokenizer("byte_level")(text)["input_ids"])


def draft_ids(text: str) -> list[int]:
    return list(small_tokenizer("byte_level_digits")(text)["input_ids"])


def row_of(prompt: str, is_fed: bool = True, kept: tuple[int, ...] = ()) -> CrossRow:
    """A row after a prompt, over which a draft pass has run if `is_fed`."""
    row = CrossRow(projection(), target_ids(prompt), kept)
    if is_fed:
        row.path, row.forced = row.forced, []
    return row


def queued(row: CrossRow) -> list[int]:
    return [node.draft_id for node in row.forced]


@pytest.mark.parametrize("is_fed", [False, True])
def test_control_tokens_written_while_nothing_is_drafted_are_all_queued(is_fed: bool) -> None:
    row = row_of("The quick", is_fed)
    for part in (" brown", " fox<|im_end|>", "and<|im_start|>", "the"):
        row.accept(0, target_ids(part))
    assert queued(row) == draft_ids(("" if is_fed else "The quick") + " brown fox<|im_end|>and<|im_start|>")
    assert row.forced[0].parent is (row.path[-1] if is_fed else None)
    assert [node.depth for node in row.forced] == list(range(len(row.path), len(row.path) + len(row.forced)))


@pytest.mark.parametrize("num_kept", [3, 6, 1000])
def test_a_new_window_holds_the_latest_text_also_if_none_of_it_was_fed(num_kept: int) -> None:
    row = row_of(TEXT[:20], kept=(0,))
    row.accept(0, target_ids(TEXT[20:]))
    row.rewindow(num_kept)
    assert row.path == []
    written = b"".join(node.text for node in row.forced)
    assert TEXT.encode().endswith(written)
    assert row.forced[0].draft_id == 0  # the first token of every sequence stays
    assert len(row.forced) <= num_kept + 1
    assert row.forced[-1].end == len(TEXT)
    assert num_kept < 1000 or written.decode() == TEXT


def test_a_new_window_leaves_an_unfinished_character_pending() -> None:
    row = row_of("The")
    row.accept(0, target_ids(" caf"))
    row.text += "é".encode()[:1]
    row.rewindow(100)
    assert b"".join(node.text for node in row.forced) == b"The caf"
    assert row.num_to_feed() == len(row.forced) + 2


@pytest.mark.parametrize("is_noisy", [False, True])
@pytest.mark.parametrize("is_shared", [False, True])
def test_a_pass_that_overflowed_proposes_nothing(is_shared: bool, is_noisy: bool) -> None:
    size = len(small_tokenizer("byte_level"))
    row = SharedRow(target_ids("The quick"), ()) if is_shared else row_of("The quick", is_fed=False)
    noise = np.ones(size, dtype=np.float32) if is_noisy else None
    search = row.next_target(Scoring(size, noise=noise))
    asked = next(search)
    row.path += asked.nodes
    row.path[-1].probs = np.full(size + 500, np.nan, dtype=np.float32)
    with pytest.raises(StopIteration) as ended:
        search.send(None)
    assert ended.value.value is None


def test_output_before_the_first_pass_follows_the_prompt() -> None:
    row = row_of("The quick", is_fed=False)
    row.accept(0, target_ids(" brown fox"))
    row.accept(0, target_ids(" jumps"))
    assert bytes(row.text) == b"The quick brown fox jumps"
    assert queued(row) == draft_ids("The quick")


def test_pending_text_counts_as_work_to_come() -> None:
    row = row_of("The quick")
    row.accept(0, target_ids(" brown fox jumps over the lazy dog"))
    assert row.num_to_feed() >= len(draft_ids(" brown fox jumps over the lazy dog"))


def test_a_shared_row_takes_its_own_ids_back() -> None:
    row = SharedRow([1, 2, 3], ())
    row.path += link([Node(None, i, b"", 0) for i in (1, 2, 3)])
    for candidate in (4, 5, 6):
        row.commit(candidate)
    row.path += link([Node(None, i, b"", 0) for i in (4, 5)], row.path[-1])
    row.accept(1, [4, 9])
    assert row.ids == [1, 2, 3, 4, 9]
    assert [node.draft_id for node in row.path] == [1, 2, 3, 4]
    assert row.num_to_feed() == 1
