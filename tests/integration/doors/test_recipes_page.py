"""Runs each recipe of docs/recipes.md as written, on small models, with stand-ins for vLLM and Ray."""

import json
import pkgutil
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import uag
from tests.conftest import ROOT
from tests.support.gguf_files import write_llama
from tests.support.served import ENVIRONMENT, UAG, chat_target
from uag.kernels import kernel
from uag.loading import demo_folder, load_model, load_tokenizer
from uag.vllm import Proposer, Settings

PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
SECTIONS = dict(section.split("\n", 1) for section in PAGE.split("\n## ")[1:])
TITLES = [
    *("A slow 7B on a laptop", "A batch of documents", "A chat server", "Edits of a file", "JSON"),
    *("A draft from LM Studio's folder", "vLLM", "Ray"),
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return chat_target(tmp_path_factory.mktemp("recipes") / "target", num_hidden_layers=4)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft in every round, although these targets are too fast for a draft to pay."""
    monkeypatch.setattr(uag, "Assistant", partial(uag.Assistant, num_candidate_tokens=4))


def block(title: str, target: str, language: str = "python") -> str:
    """Return the only block of a recipe in a language, with the demo pair's folders instead of the models' names."""
    (code,) = re.findall(rf"^```{language}\n(.*?)^```$", SECTIONS[title], flags=re.MULTILINE | re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    names = r"(Qwen|HuggingFaceTB)/[\w.-]+"
    return re.sub(names, lambda name: target if "-7B" in name[0] else demo_folder("draft"), code)


def run(title: str, target: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(block(title, target), title, "exec"), names)
    return names


def output_of(names: dict[str, Any]) -> list[int]:
    ids: list[int] = names["output"][0, names["inputs"]["input_ids"].shape[1] :].tolist()
    return ids


def test_every_recipe_is_tried() -> None:
    assert [*SECTIONS] == TITLES


@pytest.mark.usefixtures("always")
@pytest.mark.skipif(not kernel.LEVEL, reason="the kernels were not compiled here")
def test_a_laptop(target: str) -> None:
    names = run("A slow 7B on a laptop", target)
    stats = names["assistant"].stats
    assert (stats.strategy, stats.fallbacks) == ("own copy", [])
    assert stats.accepted_by_source["copy"] > 0
    assert names["model"].dtype == torch.bfloat16


@pytest.mark.usefixtures("always")
def test_documents(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("documents")
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.txt").write_text(f"class Reader{number}:\n", encoding="utf-8")
    names = run("A batch of documents", target)
    totals = names["assistant"].totals
    assert (totals.num_calls, totals.num_fallbacks) == (2, 0)
    assert totals.num_accepted_tokens > 0
    tokenizer, model = names["tokenizer"], names["pair"].target
    inputs = tokenizer("Summarize this text:\nclass Reader4:\n\n", return_tensors="pt")  # the last one is alone
    plain = model.generate(**inputs, max_new_tokens=200)[:, inputs["input_ids"].shape[1] :]
    assert repr(tokenizer.batch_decode(plain, skip_special_tokens=True)) in capsys.readouterr().out


def test_edits(target: str) -> None:
    Path("settings.py").write_text("PORT = 80\n\n\ndef address(host):\n    return host, PORT\n", encoding="utf-8")
    names = run("Edits of a file", target)
    stats = names["assistant"].stats
    assert stats.candidates_by_source["prediction"] > 0
    assert stats.fallbacks == []
    plain = names["model"].generate(**names["inputs"], max_new_tokens=1024)
    assert names["output"].equal(plain)


def test_json(target: str) -> None:
    pytest.importorskip("llguidance")
    names = run("JSON", target)
    answer = json.loads(names["tokenizer"].decode(output_of(names), skip_special_tokens=True))
    assert [*answer] == ["city", "unit"]
    assert answer["unit"] in ("celsius", "fahrenheit")
    assert names["assistant"].stats.accepted_by_source["constraint"] > 10


@pytest.mark.usefixtures("always")
@pytest.mark.skipif(not kernel.LEVEL, reason="the kernels were not compiled here")
def test_lm_studio(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    folder = tmp_path / ".lmstudio" / "models" / "publisher" / "SmolLM2-135M-Instruct-GGUF"
    folder.mkdir(parents=True)
    draft = demo_folder("draft")
    write_llama(folder / "SmolLM2-135M-Instruct-Q8_0.gguf", load_model(draft), load_tokenizer(draft))
    names = run("A draft from LM Studio's folder", target)
    stats = names["assistant"].stats
    assert stats.accepted_by_source["draft model"] > 0
    assert stats.fallbacks == []
    assert names["output"].equal(names["model"].generate(**names["inputs"], max_new_tokens=64))


def test_a_chat_server(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("openai", "uvicorn"):
        pytest.importorskip(package)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    program, *arguments = shlex.split(block("A chat server", target, "sh"), comments=True)
    assert program == "uag"
    assert "8000" in arguments
    command = [*UAG, *(port if argument == "8000" else argument for argument in arguments)]
    server = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    try:
        while True:
            assert server.poll() is None
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health")
                break
            except OSError:
                time.sleep(0.1)
        exec(compile(block("A chat server", target).replace("8000", port), "client", "exec"), {})
    finally:
        server.kill()
        server.wait()
    model, tokenizer = AutoModelForCausalLM.from_pretrained(target), load_tokenizer(target)
    inputs = tokenizer("What is a tokenizer?\n", return_tensors="pt")
    shown = capsys.readouterr().out
    plain = model.generate(**inputs, max_new_tokens=len(shown))
    text = tokenizer.decode(plain[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert shown
    assert text.startswith(shown)


def test_vllm(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's arguments are read as `uag.vllm` reads them."""
    seen: dict[str, Any] = {}

    class Engine:
        def __init__(self, model: str, **options: Any) -> None:
            seen.update(options, model=model)

        def generate(self, prompts: list[str], _: Any) -> list[Any]:
            answer = ModuleType("answer")
            answer.outputs = [ModuleType("output")]  # type: ignore[attr-defined]
            answer.outputs[0].text = prompts[0]
            return [answer]

    engine = ModuleType("vllm")
    engine.LLM, engine.SamplingParams = Engine, dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", engine)
    run("vLLM", target)
    assert seen["model"] == target
    assert Settings.read(seen["additional_config"]).draft == demo_folder("draft")
    speculative = seen["speculative_config"]
    assert pkgutil.resolve_name(speculative["model"].replace("Proposer", "proposer.Proposer")) is Proposer
    assert speculative.keys() == {"method", "model", "num_speculative_tokens"}


def test_ray(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker as the recipe makes it generates for the rows."""
    rows: list[dict[str, Any]] = [{"id": number, "prompt": f"class Reader{number}:"} for number in range(2)]
    columns: list[dict[str, Any]] = []

    class Dataset:
        def repartition(self, *, target_num_rows_per_block: int) -> "Dataset":
            assert target_num_rows_per_block > 0
            return self

        def map_batches(self, worker: Any, *, fn_constructor_kwargs: dict[str, Any], **_: Any) -> "Dataset":
            columns.extend(worker(**fn_constructor_kwargs).generate(rows))
            return self

        def write_parquet(self, path: str) -> None:
            Path(path).touch()

    ray = ModuleType("ray")
    ray.data = ModuleType("ray.data")  # type: ignore[attr-defined]
    ray.data.read_json = lambda _: Dataset()
    ray.data.ActorPoolStrategy = lambda size: size
    monkeypatch.setitem(sys.modules, "ray", ray)
    run("Ray", target)
    model, tokenizer = load_model(target), load_tokenizer(target)
    for row, made in zip(rows, columns, strict=True):
        inputs = tokenizer(row["prompt"] + "\n", return_tensors="pt")
        plain = model.generate(**inputs, max_new_tokens=200)[0, inputs["input_ids"].shape[1] :]
        assert made["generation_error"] is None
        assert made["generated_ids"] == plain.tolist()
