"""How a draft learns: options, what cannot learn, and checkpoints that are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.models import tiny_llama, tiny_model
from uag.distill.training import Training, check_trainable
from uag.distill.watch import last_checkpoint, unfinished_checkpoints
from uag.errors import OptionError


@pytest.mark.parametrize(
    "options", [{"batch_size": 0}, {"num_epochs": 0}, {"lora_rank": -1}, {"max_length": 4}, {"num_evaluations": 0}]
)
def test_numbers_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="epochs must be more than 0"):
        Training(**options)


def test_a_larger_draft_learns_more_slowly() -> None:
    rates = [Training().rate(size) for size in (1_000_000, 100_000_000, 10_000_000_000)]
    assert rates[0] > rates[1] > rates[2]
    assert rates[1] == pytest.approx(3e-4)
    assert Training(learning_rate=0.5).rate(100) == 0.5


def test_a_float_draft_learns() -> None:
    check_trainable(tiny_llama(50), "draft", lora_rank=0)


def test_a_quantized_draft_needs_an_adapter() -> None:
    draft = tiny_llama(50)
    layer = draft.model.layers[0].mlp.up_proj
    layer.weight = torch.nn.Parameter(layer.weight.detach().to(torch.int8), requires_grad=False)
    with pytest.raises(
        OptionError, match=r"'draft' are quantized and take no gradients: train an adapter .*--lora-rank"
    ):
        check_trainable(draft, "draft", lora_rank=0)
    check_trainable(draft, "draft", lora_rank=8)


def test_an_encoder_decoder_is_no_draft_to_distill() -> None:
    draft = tiny_model("t5", 50, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    with pytest.raises(OptionError, match="is an encoder-decoder"):
        check_trainable(draft, "draft", lora_rank=0)


def test_only_whole_checkpoints_are_gone_on_with(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path) is None
    for step in (9, 10, 11):
        (tmp_path / f"checkpoint-{step}").mkdir()
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}" / "whole").touch()
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    assert unfinished_checkpoints(tmp_path) == [tmp_path / "checkpoint-11"]
