"""Where there are no kernels, one sentence says why, and calls run with PyTorch's operations."""

import ctypes
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any
from unittest.mock import Mock

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
        ("they were not compiled at installation, which needs ziglang", "win32", None),
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


@pytest.mark.parametrize("processor", ["amd64", "arm64"])
def test_on_windows_zig_compiles_the_kernels_for_amd64(
    processor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    built = []

    def spawn(self: object, command: list[str]) -> None:
        built.append(command)
        Path(command[-1]).write_bytes(b"a library")

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(sysconfig, "get_platform", lambda: f"win-{processor}")
    monkeypatch.setattr("setuptools.Command.spawn", spawn)
    folders = [f"--{name}={tmp_path / name}" for name in ("build-lib", "build-temp")]
    monkeypatch.setattr(sys, "argv", ["setup.py", "build_ext", *folders])
    runpy.run_path(str(ROOT / "setup.py"))
    if processor == "amd64":
        assert built[0][1:4] == ["-m", "ziglang", "cc"]
        assert "-ffp-contract=off" in built[0]
        assert [path.name[:6] for path in (tmp_path / "build-lib" / "uag" / "kernels").iterdir()] == ["_rows."]
    else:
        assert not built
        assert "uag's kernels are not compiled for this processor on Windows" in caplog.text


def test_on_windows_the_kernels_run_in_the_threads_of_intels_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    function = ctypes.CFUNCTYPE(None)(lambda: None)
    opened, names, used = [], [], Mock()

    class Openmp:
        def __init__(self, path: str) -> None:
            opened.append(Path(path).name)

        def __getattr__(self, name: str) -> Any:
            names.append(name)
            return function

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "CDLL", Openmp)
    library._use_threads(used)
    assert opened == ["libiomp5md.dll"]
    counts = ["omp_get_thread_num", "omp_get_num_threads"]
    assert names == [*counts, "_vcomp_barrier", "_vcomp_fork", "_vcomp_set_num_threads"]
    assert [call[0] for call in used.method_calls] == ["rows_use", "rows_use_vcomp"]
