"""A folder with only a LoRA adapter: the commands and the vLLM proposer load its base model and the adapter."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.engine import DRAFT, TARGET, config, demo_engine
from uag.loading import load_model, load_pair, load_tokenizer
from uag.vllm import Proposer

peft = pytest.importorskip("peft", reason="pip install peft")

from tests.support import wrappers  # noqa: E402 - it needs peft


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adapter")
    adapted = wrappers.lora(load_model(DRAFT), 0.02)
    adapted.peft_config["default"].base_model_name_or_path = DRAFT
    adapted.save_pretrained(path)
    assert not (path / "config.json").exists()
    return path


def test_the_base_model_is_loaded_with_the_adapter(folder: Path) -> None:
    pair = load_pair(TARGET, str(folder))
    ids = torch.tensor([[5, 9, 14]])
    adapted, bare = wrappers.lora(load_model(DRAFT), 0.02), load_model(DRAFT)
    with torch.no_grad():
        found = pair.draft(ids).logits
        torch.testing.assert_close(found, adapted(input_ids=ids).logits)
        assert (found - bare(ids).logits).abs().max() > 0.1
    assert pair.draft_tokenizer.get_vocab() == load_tokenizer(DRAFT).get_vocab()


def test_inside_vllm(folder: Path) -> None:
    served, running = Proposer(config(TARGET, str(folder), min_confidence=0.0)), demo_engine()
    served.load_model(None)
    while running.unfinished():
        running.step(served, running.unfinished())
    assert served.stats.failures == {}
    assert served.stats.num_accepted_tokens > 0
    drafter: Any = served._drafter
    assert any("lora_A" in name for name, _ in drafter.model.model.named_parameters())
