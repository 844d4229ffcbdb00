"""Figures are taken up only where the weights are the same."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import torch

from uag.bench.identity import ids_digest, weights_digest


def model(seed: int, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(300, 7), torch.nn.Linear(7, 1)).to(dtype)


def test_weights_are_told_apart() -> None:
    digests = {weights_digest(model(seed, dtype)) for seed in (0, 1) for dtype in (torch.float32, torch.bfloat16)}
    assert len(digests) == 4
    assert weights_digest(model(0)) == weights_digest(model(0))
    trained = model(0)
    torch.optim.SGD(trained.parameters(), lr=1e-3).zero_grad()
    trained(torch.ones(300)).sum().backward()
    torch.optim.SGD(trained.parameters(), lr=1e-3).step()
    assert weights_digest(trained) != weights_digest(model(0))
    assert weights_digest(model(0).to("meta"))


def test_a_file_is_told_by_its_size_and_time(tmp_path: Path) -> None:
    file = tmp_path / "draft.gguf"
    file.write_bytes(b"one")
    before = weights_digest(SimpleNamespace(name=str(file)))
    assert before == weights_digest(SimpleNamespace(name=str(file)))
    os.utime(file, ns=(1, 1))
    assert weights_digest(SimpleNamespace(name=str(file))) != before


def test_prompts_are_told_apart_by_ids_and_mask() -> None:
    ids, mask = torch.tensor([[1, 2]]), torch.tensor([[1, 1]])
    digests = {
        ids_digest({"input_ids": i, "attention_mask": m}) for i, m in ((ids, mask), (ids, mask * 0), (ids + 1, mask))
    }
    assert len(digests) == 3
