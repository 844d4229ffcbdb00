"""Draft passes of several rows: each token's distribution is the same as alone."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.grids import covering
from tests.support.models import tiny_target
from tests.support.rollbacks import check_rollbacks
from uag.drafting import DraftModel
from uag.drafting.models.static_draft import StaticDraft
from uag.projection import Feed, Node, link

NAMES = ["llama", "qwen2", "qwen3", "phi", "gpt_neox", "gpt2", "gemma3", "mistral"]


def uncompiled(model: Any) -> StaticDraft:
    draft = StaticDraft(model, is_compiled=True)
    draft._compiled = None
    return draft


@covering("name, num_rows, kind", NAMES, (1, 3), (DraftModel, uncompiled))
def test_every_token_sees_its_ancestors_only(
    kind: Callable[[Any], DraftModel], name: str, num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uag.drafting.models.static_draft._SMALLEST", 16)  # so that the cache has to grow
    model, _ = tiny_target(name)
    draft = kind(model)
    for _ in range(2):  # the second call of a compiled draft finds the cache of the first
        check_rollbacks(draft, model, 9, 2e-5, num_rows)
        draft.release()


def test_a_pass_beyond_the_last_position_does_not_fit() -> None:
    draft = DraftModel(tiny_target("llama")[0])
    draft.max_positions = 8
    nodes = link([Node(None, 20 + i, b"", 0) for i in range(9)])
    assert draft.fits(Feed(0, nodes[:8]))
    assert not draft.fits(Feed(0, nodes))
