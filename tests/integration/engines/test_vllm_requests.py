"""Requests that start, move, pause and end: each is drafted as if it were alone."""

import random
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from tests.support.engine import Engine
from tests.support.trained import PAIRS, prompt, trained
from uag.adapters import from_tokenizer
from uag.projection import TokenizerPair
from uag.proposal import Proposal
from uag.vllm import Settings
from uag.vllm.drafter import RequestDrafter

DEMO = ("demo-target", "demo-draft")
TWINS = ("demo-draft", "demo-draft")
"""A draft that shares the target's tokenizer. It did not write the texts, so its candidates are often rejected."""

NUM_NEW = 12


@cache
def texts(pair: tuple[str, str]) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    name = pair[0]
    shared = prompt(name, 60)
    prompts = [shared, shared + prompt(name, 20, 90)[1:], shared[:40] + prompt(name, 9, 130)[1:], *(
        prompt(name, length, 31 * length) for length in (3, 18, 50, 90)
    )]  # fmt: skip
    if pair == TWINS:
        rows = [ids + prompt(name, NUM_NEW, 400 + 60 * place) for place, ids in enumerate(prompts)]
    else:
        model = trained(name)[0]
        rows = []
        for ids in prompts:
            output = model.generate(torch.tensor([ids]), max_new_tokens=NUM_NEW, do_sample=False, eos_token_id=None)
            rows.append(output[0].tolist())
    return tuple(map(tuple, rows)), tuple(map(len, prompts))


@cache
def tokenizers(pair: tuple[str, str]) -> TokenizerPair:
    return TokenizerPair.of(*(from_tokenizer(trained(name)[1]) for name in pair))


def drafter(pair: tuple[str, str], **options: Any) -> RequestDrafter:
    settings: dict[str, Any] = {"min_confidence": 0.0, "max_cached_tokens": Settings.max_cached_tokens} | options
    size, draft = trained(pair[0])[0].config.vocab_size, trained(pair[1])[0]
    return RequestDrafter(draft, tokenizers(pair), vocab_size=size, **settings)


class Checked:
    """A drafter that is called as vLLM would, and an undisturbed reference drafter for each request."""

    def __init__(self, pair: tuple[str, str], engine: Engine, limit: int = 5, **options: Any) -> None:
        self.drafter = drafter(pair, **options)
        self.alone: dict[int, RequestDrafter] = {}
        self.pair, self.engine, self.limit = pair, engine, limit
        self.running: list[int] = []
        self.num_asked = self.num_different = 0

    def propose(self, sampled: Any, sizes: Any, ids: Any) -> list[list[int]]:
        contexts = [ids[row, : sizes[row]] for row in range(len(sampled))]
        limits = [self.limit if new else 0 for new in sampled]
        proposals = self.drafter.propose(contexts, limits)
        for request, context, limit, found in zip(self.running, contexts, limits, proposals, strict=True):
            if limit:
                if request not in self.alone:
                    self.alone[request] = drafter(self.pair)
                self.num_asked += 1
                self.num_different += ids_of(found) != ids_of(self.alone[request].propose([context], [limit])[0])
        return [ids_of(row) for row in proposals]


def ids_of(proposals: list[Proposal]) -> list[int]:
    return [proposal.target_id for proposal in proposals]


def churn(checked: Checked, seed: int, pause: float = 0.3) -> None:
    """Run all requests to completion in random order, with pauses, and with prompts that are read in several steps."""
    rng, engine = random.Random(seed), checked.engine
    unread = {request: rng.randint(0, 3) for request in engine.unfinished()}
    while engine.unfinished():
        running = [request for request in engine.unfinished() if rng.random() > pause]
        rng.shuffle(running)
        partial = {request for request in running if unread[request] > 0}
        for request in partial:
            unread[request] -= 1
        checked.running = running
        engine.step(checked, running, partial)
        assert_true_to_text(checked.drafter, engine)
        if rng.random() < 0.4 or not engine.unfinished():  # a pass over all texts
            assert_true_cache(checked.drafter)


def assert_true_to_text(served: RequestDrafter, engine: Engine) -> None:
    """Assert that a row contains its request's output and the candidates proposed for it."""
    for request in served.requests.values():
        row: Any = request.row
        proposed = [proposal.target_id for proposal in request.proposals]
        if hasattr(row, "ids"):
            assert row.ids == request.ids.tolist() + proposed
        else:
            table = row.projection.maps.target_bytes
            whole = b"".join(table[i] or b"" for i in request.ids.tolist() + proposed)
            assert bytes(row.text) == whole


@torch.inference_mode()
def assert_true_cache(served: RequestDrafter) -> None:
    """Assert that each kept distribution equals the draft's for the row's tokens, run alone from the start."""
    draft, paths = served.model, [row.path for row in served.model.rows]
    assert all(len(slots) >= len(path) for slots, path in zip(draft.books[0].slots, paths, strict=True))
    if not any(paths):
        return
    ids = pad_sequence([torch.tensor([node.draft_id for node in path]) for path in paths], batch_first=True)
    logits = draft.model(ids.long()).logits[:, :, : draft._num_ids].float()
    for path, row in zip(paths, logits, strict=True):
        known = [(place, node.probs) for place, node in enumerate(path) if node.probs is not None]
        for place, kept in known[-3:]:
            np.testing.assert_allclose(kept, torch.softmax(row[place], -1).numpy(), atol=2e-5)


@pytest.mark.parametrize(
    ("pair", "pause"), [(TWINS, 0.3), (PAIRS[1], 0.3), (DEMO, 0.0)], ids=["twins", "stories", "without pauses"]
)
def test_each_request_is_drafted_as_if_it_were_alone(pair: tuple[str, str], pause: float) -> None:
    checked = Checked(pair, Engine(*texts(pair)))
    churn(checked, 2, pause)
    stats = checked.drafter.stats
    assert checked.num_asked > 20
    # A batch rounds differently from a single row, which can flip a tie; nothing else may differ.
    assert checked.num_different <= 0.02 * checked.num_asked
    assert 0 < stats.num_accepted_tokens < stats.num_candidate_tokens
    assert (stats.num_begun > 7) == (pause > 0)  # requests that move keep their rows


def test_requests_with_the_same_text_each_have_a_row() -> None:
    (_, text, *_), (_, length, *_) = texts(DEMO)
    engine = Engine([text, text, text], [length] * 3)
    checked = Checked(DEMO, engine)
    for _ in range(4):
        checked.running = engine.unfinished()
        engine.step(checked, checked.running)
        assert len(checked.drafter.requests) == len(checked.running)
        assert_true_cache(checked.drafter)
    assert checked.drafter.stats.num_begun == 3
    assert engine.num_accepted > 0


def step(served: RequestDrafter, engine: Engine, running: list[int], limit: int) -> None:
    contexts = [np.array(engine.context(request), dtype=np.int32) for request in running]
    for request, found in zip(running, served.propose(contexts, [limit] * len(running)), strict=True):
        engine.write(request, ids_of(found))


def test_the_cache_keeps_within_its_bound() -> None:
    engine = Engine(*texts(DEMO))
    served, rng = drafter(DEMO, max_cached_tokens=300), random.Random(1)
    while engine.unfinished():
        step(served, engine, [request for request in engine.unfinished() if rng.random() > 0.5], 3)
        if not served.model.rows:
            continue
        assert max(len(row.path) for row in served.model.rows) * len(served.model.rows) <= 300
    assert served.stats.num_left_out > 0


def test_a_request_longer_than_the_bound_is_left_out_and_the_others_are_not() -> None:
    served = drafter(DEMO, max_cached_tokens=150)
    contexts = [np.array(prompt("demo-target", length)) for length in (30, 300, 40)]
    found = served.propose(contexts, [4, 4, 4])
    assert [bool(row) for row in found] == [True, False, True]


def test_the_draft_starts_anew_where_its_positions_end() -> None:
    served = drafter(DEMO)
    served.model.max_positions = 96
    engine = Engine(*texts(DEMO))
    while engine.unfinished():
        step(served, engine, engine.unfinished(), 5)
        assert all(len(row.path) <= 96 for row in served.model.rows)
        assert_true_cache(served)
    assert served.stats.num_accepted_tokens > 0


def test_confidence_sets_the_length() -> None:
    contexts = [np.array(context[:-NUM_NEW]) for context in texts(DEMO)[0]]
    lengths = [
        sum(map(len, drafter(DEMO, min_confidence=least).propose(contexts, [8] * len(contexts))))
        for least in (0.0, 0.3, 0.9)
    ]
    assert lengths[0] == 8 * len(contexts)
    assert lengths[0] > lengths[1] > lengths[2] >= len(contexts)


def test_reset_forgets_every_request() -> None:
    served = drafter(DEMO)
    context = np.array(prompt("demo-target", 40))
    first = served.propose([context], [5])
    served.reset()
    assert not served.model.rows
    assert ids_of(served.propose([context], [5])[0]) == ids_of(first[0])
    assert served.stats.num_begun == 2
