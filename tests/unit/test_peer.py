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
ALONE = "tests.models.tiny.test_modeling_tiny.TinyTest::test_of_an_own_generate_assisted"


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


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(RUN), str(folder), str(folder / "records"), *options]
    settings = os.environ | {"PYTHON": sys.executable}
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def result(folder: Path) -> subprocess.CompletedProcess[str]:
    return run(folder)


def test_what_uag_alone_fails_is_named_with_its_error(folder: Path, result: subprocess.CompletedProcess[str]) -> None:
    for found in (result, run(folder, "--again")):
        assert found.returncode == 1, found.stdout + found.stderr
        error = "AssertionError: generate is not transformers' own"
        assert f"FAILS ONLY UNDER UAG: {ALONE}\n    {error}" in found.stdout
        assert found.stdout.endswith("1 tests fail only under uag\n")


def test_outcomes_and_files_that_do_not_import_are_counted(result: subprocess.CompletedProcess[str]) -> None:
    assert "plainly: {'failed': 3, 'passed': 2}" in result.stdout
    assert "under uag: {'failed': 4, 'passed': 1}" in result.stdout
    assert "uag in the tests that pass: {'drafted': 1}" in result.stdout


def test_both_runs_see_the_same_numbers(folder: Path, result: subprocess.CompletedProcess[str]) -> None:
    first, *others = (folder / "weights.txt").read_text().splitlines()
    assert set(others) == {first}


@pytest.mark.parametrize("outcome", ["failed", "passed"])
def test_what_fails_plainly_too_is_not_uag_alone(outcome: str) -> None:
    plain = {"a": (outcome, ""), "b": ("passed", ""), "c": ("skipped", "")}
    ours = {"a": ("failed", ""), "c": ("failed", "")}
    expected = ["b", "c"] if outcome == "failed" else ["a", "b", "c"]  # b: the run under uag was aborted before it
    assert compare.failing_only_with_uag(plain, ours) == expected
