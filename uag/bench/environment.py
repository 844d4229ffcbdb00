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

_AS_COMMIT = ("--always", "--exclude=*", "--abbrev=12", "--dirty=+")


@functools.cache
def describe_environment() -> dict[str, Any]:
    """Return `commit` (None outside a git checkout of uag), `versions` and `hardware`, ready for JSON."""
    names = ("torch", "transformers", "tokenizers", "numpy")
    cpu_info = Path("/proc/cpuinfo")
    text = cpu_info.read_text(encoding="utf-8", errors="replace") if cpu_info.is_file() else ""
    processor = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    device = accelerator()
    hardware = {
        "processor": processor[1] if processor else platform.processor() or platform.machine(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "num_cores": os.cpu_count(),
        "num_threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else device and device.type,
    }
    versions = {"uag": __version__, "python": platform.python_version()}
    return {
        "commit": _commit(),
        "versions": versions | {name: metadata.version(name) for name in names},
        "hardware": hardware,
    }


def _commit() -> str | None:
    """Return the commit of the checkout that this file belongs to, with a `+` for uncommitted changes."""
    file, commit = Path(__file__), None
    command = ["git", "-C", str(file.parent)]
    try:
        for arguments in (["ls-files", "--error-unmatch", file.name], ["describe", *_AS_COMMIT]):
            commit = subprocess.check_output([*command, *arguments], stderr=subprocess.DEVNULL, text=True).strip()
    except (OSError, subprocess.CalledProcessError):  # uag is installed, not checked out
        return None
    return commit
