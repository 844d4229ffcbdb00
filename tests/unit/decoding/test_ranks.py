"""Ranks broadcast messages of any length, booleans and tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from uag.decoding import Ranks

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="torch without gloo",
)


def test_long_and_empty_messages(tmp_path: Path) -> None:
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        ranks = Ranks(torch.distributed.group.WORLD)
        assert ranks.decides
        messages: list[list[list[int]]] = [[], [[]], [[1, -1], [], [3]]]
        for lines in [*messages, [list(range(254))], [list(range(255))], [list(range(1000)), [7]]]:
            assert ranks.broadcast(lines) == lines
        assert ranks.broadcast(True)
        assert not ranks.broadcast(False)
        assert ranks.broadcast_tensor(torch.tensor([True, False])).tolist() == [True, False]
    finally:
        torch.distributed.destroy_process_group()
