"""Where there are no kernels, one sentence says why, and calls run with PyTorch's operations."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
import torch

from tests.conftest import ROOT
from uag.kernels import kernel, library

needs_avx2 = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="there are no kernels for this processor"
)

CALL = """
import torch, uag
from uag.kernels import kernel
from uag.loading import demo_folder
pair = uag.load_pair(demo_folder("draft"), demo_folder("draft"))
ids = pair.target_tokenizer("def main(arguments):", return_tensors="pt")["input_ids"]
expected = pair.target.generate(ids, max_new_tokens=12, do_sample=False).tolist()
assistant = uag.Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer, num_candidate_tokens=4)
assert assistant.generate(pair.target, ids, max_new_tokens=12, do_sample=False).tolist() == expected
assert assistant.stats.num_accepted_tokens
print(kernel.describe())
print(assistant.stats.draft_dependence)
"""


@needs_avx2
def test_a_call_without_compiled_kernels_says_so_in_its_statistics(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "uag", tmp_path / "uag", ignore=shutil.ignore_patterns("_rows.*.so", "*.pyd"))
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "UAG_KERNELS": ""}
    done = subprocess.run(
        [sys.executable, "-c", CALL], capture_output=True, text=True, env=environment, cwd=tmp_path, check=True
    )
    assert done.stdout.splitlines() == [
        "PyTorch's operations, without uag's kernels: they were not compiled at installation, which needs GCC or Clang",
        "the target runs without uag's kernels: they were not compiled at installation, which needs GCC or Clang",
    ]


@needs_avx2
@pytest.mark.parametrize(
    ("reason", "system", "content"),
    [
        ("they were not compiled at installation, which needs GCC or Clang", "linux", None),
        ("they are not compiled on Windows", "win32", None),
        ("they cannot be loaded (", "linux", b"no library"),
        ("they were compiled from another version of uag", "linux", Path(tokenizers.tokenizers.__file__)),
    ],
)  # fmt: skip
def test_the_reason_names_what_is_missing(
    reason: str, system: str, content: Path | bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "_rows.abi3.so"
    if isinstance(content, Path):
        path.symlink_to(content)
    elif content:
        path.write_bytes(content)
    monkeypatch.delenv("UAG_KERNELS", raising=False)
    monkeypatch.setattr(sys, "platform", system)
    loaded, level, name, why = library.load(tmp_path)
    assert (loaded, level, name) == (None, 0, "")
    assert why.startswith(reason)
    monkeypatch.setenv("UAG_KERNELS", "off")
    assert library.load(tmp_path) == (None, 0, "", "UAG_KERNELS is off")


@pytest.mark.skipif(not kernel.LEVEL, reason="the kernels were not compiled here")
def test_a_pytorch_without_openmp_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__file__", tokenizers.__file__)
    assert library.load(Path(kernel.__file__).parent)[3] == "PyTorch was built without OpenMP"


def test_on_windows_an_installation_says_that_there_are_no_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "platform", "win32")
    folders = [f"--{name}={tmp_path}" for name in ("build-lib", "build-temp")]
    monkeypatch.setattr(sys, "argv", ["setup.py", "build_ext", *folders])
    runpy.run_path(str(ROOT / "setup.py"))
    assert "uag's kernels are not compiled on Windows" in caplog.text
    assert not list(tmp_path.rglob("_rows*"))
