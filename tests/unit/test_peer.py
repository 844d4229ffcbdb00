"""tests/peer on a fake checkout: it runs the right tests twice and compares the two runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.peer import compare

pytestmark = pytest.mark.slow

RUN = Path(compare.__file__).with_name("run")
COMMON = """
class GenerationTesterMixin:
    def test_of_an_own_generate_assisted(self):
        from transformers import GenerationMixin
        assert not hasattr(GenerationMixin.generate, "__uag_original__"), "generate is not transformers' own"

    def test_drawing(self):
        raise AssertionError("not about assistants")


class Heir(GenerationTesterMixin):
    pass
"""
MODEL = """
import unittest

from ...made_up_common import Heir

class TinyTest(Heir, unittest.TestCase):
    pass
"""
GENERATION = """
import random
import time

import torch
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

def test_passes():
    config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                         num_attention_heads=2, num_key_value_heads=2, eos_token_id=None, pad_token_id=0)
    target = LlamaForCausalLM(config).eval()
    target.generation_config.update(num_assistant_tokens=2, num_assistant_tokens_schedule="constant")
    ids = torch.randint(1, 32, (1, 4))
    with open("weights.txt", "a") as file:
        print(target.lm_head.weight.sum().item(), random.random(), file=file)
    plain = target.generate(ids, max_new_tokens=8, do_sample=False)
    assert plain.equal(target.generate(ids, max_new_tokens=8, do_sample=False, assistant_model=target))

def test_asks_the_hub():
    AutoConfig.from_pretrained("nobody/has-this-model")
"""
ALONE = "tests/models/tiny/test_modeling_tiny.py::TinyTest::test_of_an_own_generate_assisted"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with one test of each outcome, and an unrelated file that cannot be imported."""
    root = tmp_path_factory.mktemp("checkout")
    files = {
        "tests/made_up_common.py": COMMON,
        "tests/generation/test_made_up.py": GENERATION,
        "tests/models/tiny/test_modeling_tiny.py": MODEL,
        "tests/models/other/test_modeling_other.py": "raise RuntimeError",
        "tests/generation/test_absent.py": "import a_library_that_is_not_here",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for parent in list(path.relative_to(root).parents)[:-1]:
            (root / parent / "__init__.py").touch()
    return root


@pytest.fixture(scope="module")
def result(folder: Path) -> subprocess.CompletedProcess[str]:
    """The result of running the script on the checkout."""
    command = [str(RUN), str(folder), "--records", str(folder / "records")]
    settings = os.environ | {"PYTHON": sys.executable}
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=300)


def test_a_test_that_uag_alone_fails_is_named_with_its_error(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 1, result.stdout + result.stderr
    assert result.stdout.count("FAILS ONLY UNDER UAG") == 1
    error = "AssertionError: generate is not transformers' own"
    assert f"FAILS ONLY UNDER UAG: {ALONE} (failed)\n    {error}" in result.stdout
    assert "    uag was not called\n" in result.stdout
    assert result.stdout.endswith("1 tests fail only under uag\n")


def test_tests_that_need_the_hub_and_files_that_do_not_import_are_counted(
    result: subprocess.CompletedProcess[str],
) -> None:
    assert "plainly: 2 passed, 0 failed, 1 need the hub, 0 skipped, 1 files not imported" in result.stdout
    assert "under uag: 1 passed, 1 failed, 1 need the hub, 0 skipped, 1 files not imported" in result.stdout


def test_both_runs_see_the_same_numbers_and_what_was_drafted_is_on_record(
    folder: Path, result: subprocess.CompletedProcess[str]
) -> None:
    plainly, ours, *_ = (folder / "weights.txt").read_text().splitlines()  # another test runs uag's arm again
    assert plainly == ours
    assert "    1 drafted" in result.stdout
    record = compare.read_records(folder / "records" / "uag.jsonl")["tests/generation/test_made_up.py::test_passes"]
    assert record["figures"]["candidates"] >= record["figures"]["accepted"] > 0
    assert record["figures"]["output"] == 8


def test_with_the_plain_run_at_hand_uag_runs_again(
    folder: Path, result: subprocess.CompletedProcess[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert compare.main([str(folder), "--records", str(folder / "records"), "--again"]) == 1
    shown = capfd.readouterr().out
    assert shown.count("\n== ") == 2, "under uag, and the outcome"
    assert f"FAILS ONLY UNDER UAG: {ALONE}" in shown


@pytest.mark.parametrize("outcome", ["failed", "hub"])
def test_what_fails_plainly_too_is_not_uag_alone(outcome: str) -> None:
    plain = {"a": {"outcome": outcome}, "b": {"outcome": "passed"}, "c": {"outcome": "skipped"}}
    ours = {"a": {"outcome": "failed"}, "c": {"outcome": "failed"}}
    assert compare.failing_only_with_uag(plain, ours) == ["b", "c"], "b: the run under uag was aborted before it"


def test_a_folder_without_such_tests_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main([str(tmp_path)]) == 2
    assert "neither tests/generation nor subclasses of GenerationTesterMixin" in capsys.readouterr().err
