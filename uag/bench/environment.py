"""What a figure was measured with: commit, versions, hardware."""

import functools
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from uag._version import __version__

PACKAGES = ("torch", "transformers", "tokenizers", "numpy")


@functools.cache
def describe_environment() -> dict[str, Any]:
    """Return `commit` (None outside a git checkout of uag), `versions` and `hardware`, ready for JSON."""
    versions = {"uag": __version__, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in PACKAGES}
    hardware = {
        "processor": _processor_name(),
        "num_cores": os.cpu_count(),
        "num_threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    return {"commit": _commit(), "versions": versions, "hardware": hardware}


def _commit() -> str | None:
    """Return the commit of the checkout that this package is imported from, `+` appended where it was changed."""
    folder = Path(__file__).parent
    try:
        _git(folder, "ls-files", "--error-unmatch", Path(__file__).name)
        commit = _git(folder, "rev-parse", "--short=12", "HEAD")
        is_changed = bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+" if is_changed else "")


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _processor_name() -> str:
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.is_file():
        for line in cpu_info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
