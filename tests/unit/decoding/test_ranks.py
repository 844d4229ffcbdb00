"""Two ranks in processes of their own: rank 0's values reach the other rank, whose own values are ignored."""

import multiprocessing
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.callers import OracleDrafter
from uag.decoding import Ranks

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="needs fork, and torch with gloo",
)
VALUES: list[Any] = [[], [[]], [[1, -1], [], [3]], [list(range(1000)), [7]], True, False]


def run_rank(rank: int, store: str, results: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    ranks, own = Ranks(torch.distributed.group.WORLD), OracleDrafter([], 9)
    received = [ranks.broadcast(value if rank == 0 else None) for value in VALUES]
    flags = ranks.broadcast_tensor(torch.tensor([rank == 0, False]))
    results.put((rank, ranks.decides, received, flags.tolist(), ranks.drafter(own) is own))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_values_of_rank_0_replace_those_of_rank_1(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    store = f"file://{tmp_path / 'store'}"
    processes = [context.Process(target=run_rank, args=(rank, store, results)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    found = sorted(results.get() for _ in range(2))
    assert found == [(rank, rank == 0, VALUES, [True, False], rank == 0) for rank in range(2)]
