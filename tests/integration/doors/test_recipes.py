"""Runs the Python examples of docs/integrations.md as written, each after those it continues."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import uag
from tests.conftest import ROOT
from uag import installing

TEXT = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
SECTIONS = dict(section.split("\n", 1) for section in re.split(r"^#{1,3} ", TEXT, flags=re.MULTILINE)[1:])
PACKAGES = {"LangChain": "langchain_huggingface", "smolagents": "smolagents", "TRL": "trl"}
BEFORE = {"LangChain": ["Pipelines"], "smolagents": ["A chat with streaming"]}


pytestmark = pytest.mark.usefixtures("detached")


def code_of(title: str) -> str:
    (code,) = re.findall(r"^```python\n(.*?)^```$", SECTIONS[title], flags=re.MULTILINE | re.DOTALL)
    return str(code)


@pytest.mark.parametrize("title", ["Pipelines", "A chat with streaming", "LangChain", "smolagents", "TRL"])
def test_assisted(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if title in PACKAGES:
        pytest.importorskip(PACKAGES[title])
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "recipe"}
    for part in ("Code that calls generate", *BEFORE.get(title, ())):
        exec(compile(code_of(part), part, "exec"), names)
    model = names["model"]
    num_calls = installing._attachments[model][0].totals.num_calls
    weight = model.get_input_embeddings().weight.detach().clone()
    exec(compile(code_of(title), title, "exec"), names)
    model = names["agent_model"].model if title == "smolagents" else model
    totals = installing._attachments[model][0].totals
    assert totals.num_calls > (0 if title == "smolagents" else num_calls)  # smolagents loads its own model
    assert totals.num_candidate_tokens > 0
    if title != "TRL":
        assert totals.num_fallbacks == 0
    else:  # the next call uses the weights of the last training step
        assert "lockstep" in uag.last_stats(model).fallbacks[0]
        assert not torch.equal(model.get_input_embeddings().weight, weight)
        inputs = names["tokenizer"]("def f(x):\n", return_tensors="pt")
        model.eval()
        assisted = model.generate(**inputs, max_new_tokens=16, do_sample=False)
        uag.detach(model)
        assert model.generate(**inputs, max_new_tokens=16, do_sample=False).tolist() == assisted.tolist()
