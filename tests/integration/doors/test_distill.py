"""examples/distill.py on the demo target and a new draft: the target accepts more of its candidates than before."""

import re
import runpy
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.conftest import ROOT
from tests.support.calls import pair
from uag.bench import heldout_prompts
from uag.loading import demo_folder

pytest.importorskip("accelerate")

EXAMPLE = str(ROOT / "examples" / "distill.py")
IGNORED = -100


def test_a_distilled_draft_is_accepted_more_often_and_ready_to_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draft, output, prompts = tmp_path / "draft", tmp_path / "output", tmp_path / "prompts.txt"
    tokenizer = AutoTokenizer.from_pretrained(demo_folder("draft"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        bos_token_id=1, eos_token_id=1, max_position_embeddings=512, dtype="bfloat16",
    )  # fmt: skip
    LlamaForCausalLM(config).bfloat16().save_pretrained(draft)
    tokenizer.save_pretrained(draft)
    texts = sorted((prompt.text.split("\n")[0] for prompt in heldout_prompts()), key=len)[-10:]
    prompts.write_text("\n".join(texts), encoding="utf-8")
    flags = "--tokens 16 --temperatures 0 1 --epochs 6 --batch-size 5"
    command = ["distill.py", demo_folder("target"), *map(str, (draft, prompts, output)), *flags.split()]
    monkeypatch.setattr("sys.argv", command)
    runpy.run_path(EXAMPLE, run_name="__main__")
    shown = capsys.readouterr().out
    figures = re.search(r"after 1 held-out prompts: ([\d.]+)% of the candidates before, ([\d.]+)% after", shown)
    assert figures is not None
    assert float(figures[1]) < float(figures[2]) < 100
    model = AutoModelForCausalLM.from_pretrained(output)
    assert model.dtype == torch.bfloat16  # as before
    assert model.config.use_cache
    assert AutoTokenizer.from_pretrained(output).get_vocab() == tokenizer.get_vocab()


def test_rows_are_draft_ids_with_a_loss_after_the_prompt() -> None:
    _, tokenizer, draft, draft_tokenizer = pair()
    prompt, output = (tokenizer(text)["input_ids"] for text in ("one two three four", " five six seven one two"))
    encode_rows = runpy.run_path(EXAMPLE)["encode_rows"]
    (row,) = encode_rows([(prompt, output), (prompt, [])], draft, draft_tokenizer, tokenizer)
    assert draft_tokenizer.decode(row["input_ids"]) == tokenizer.decode([*prompt, *output])
    start = row["labels"].count(IGNORED)
    assert 0 < start < len(row["input_ids"])
    assert tokenizer.decode(prompt).startswith(draft_tokenizer.decode(row["input_ids"][:start]))
    assert row["labels"][start:] == row["input_ids"][start:]
