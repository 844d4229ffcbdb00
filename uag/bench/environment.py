"""The environment of a measurement: commit, versions, hardware."""

import functools
import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from uag._version import __version__
from uag.hf.devices import accelerator

PACKAGES = ("torch", "transformers", "tokenizers", "numpy")


@functools.cache
def describe_environment() -> dict[str, Any]:
    """Return `commit` (None outside a git checkout of uag), `versions` and `hardware`, ready for JSON."""
    versions = {"uag": __version__, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in PACKAGES}
    hardware = {
        "processor": _processor_name(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "num_cores": os.cpu_count(),
        "num_threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else _accelerator(),
    }
    return {"commit": _commit(), "versions": versions, "hardware": hardware}


def _accelerator() -> str | None:
    kind = accelerator()
    return None if kind is None else kind.type


def _commit() -> str | None:
    """Return the commit of the checkout that this package is imported from, with a `+` for uncommitted changes."""
    try:
        _git("ls-files", "--error-unmatch", Path(__file__).name)  # fails if uag is installed, not checked out
        return _git("describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _processor_name() -> str:
    cpu_info = Path("/proc/cpuinfo")
    text = cpu_info.read_text(encoding="utf-8", errors="replace") if cpu_info.is_file() else ""
    model_name = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return model_name[1] if model_name else platform.processor() or platform.machine()
