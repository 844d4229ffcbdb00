"""Ranks in step: what rank 0 tells arrives whole, be it long, empty, a truth value or a tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from uag.decoding import Ranks

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="torch without gloo: ranks on a CPU cannot talk",
)


def test_a_long_message_and_empty_lines_arrive(tmp_path: Path) -> None:
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        group = torch.distributed.group.WORLD
        told = Ranks([group, group])
        assert told.decides
        messages: list[list[list[int]]] = [[], [[]], [[1, -1], [], [3]]]
        for lines in [*messages, [list(range(254))], [list(range(255))], [list(range(1000)), [7]]]:
            assert told.broadcast(lines) == lines
        assert told.broadcast(True)
        assert not told.broadcast(False)
        assert told.broadcast_tensor(torch.tensor([True, False])).tolist() == [True, False]
    finally:
        torch.distributed.destroy_process_group()
