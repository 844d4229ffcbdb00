"""The kernels as setuptools builds them: the flags of the environment do not change what they compute."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from uag.kernels import kernel

pytestmark = pytest.mark.skipif(not kernel.LEVEL, reason="the kernels were not compiled here")

BUILT = os.environ.get("UAG_BUILT", "")
RESULTS = """
import sys
from importlib.util import module_from_spec, spec_from_file_location

import torch

spec = spec_from_file_location("kernel", sys.argv[1])
kernel = module_from_spec(spec)
spec.loader.exec_module(kernel)
assert kernel.LEVEL
x = torch.tensor([[float("nan"), float("inf"), -float("inf"), 1e-40, 3.0, -0.7]])
for kind in kernel.GATES:
    print(kind, kernel.gate(x, kind).view(torch.int32).tolist())
drawn = torch.randn(3, 768, generator=torch.Generator().manual_seed(0))
print(kernel.linear(drawn, drawn[:2].contiguous()).view(torch.int32).tolist())
print(torch.tensor([1e-40]).mul(1.0).tolist())
"""


def results(module: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", RESULTS, str(module)], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.skipif(not BUILT, reason="no other build: set UAG_BUILT to its folder of kernels, as .ci/wheel does")
def test_a_build_with_fast_math_in_cflags_computes_the_same_bits() -> None:
    built = Path(BUILT) / "kernel.py"
    assert list(built.parent.glob("_rows*.so"))
    assert results(built) == results(Path(kernel.__file__))
