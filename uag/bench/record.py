"""The record of one arm on one batch of prompts, and the environment in which it was measured."""

import functools
import os
import platform
import re
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from uag._version import __version__
from uag.hf.devices import accelerator
from uag.kernels import kernel
from uag.loading import Pair


@dataclass(frozen=True)
class Record:
    """One arm on one batch of prompts; tokens and passes are counted over one call.

    `seconds` is the median of `trial_seconds`. `note` says why the output may differ from plain decoding's,
    `difference` where one does, `dependence` where it differs from uag's without a draft, and `refusal` why there are
    no figures.
    """

    arm: str
    prompt_ids: tuple[str, ...]
    batch_size: int
    temperature: float
    num_prompt_tokens: int
    draft: str = ""
    max_new_tokens: int = 0
    num_output_tokens: int = 0
    seconds: float | None = None
    trial_seconds: tuple[float, ...] = ()
    num_rounds: int = 0
    num_candidate_tokens: int = 0
    num_accepted_tokens: int = 0
    num_target_forwards: int = 0
    note: str = ""
    difference: str | None = None
    dependence: str | None = None
    refusal: str | None = None
    stats: dict[str, Any] | None = None

    def to_dict(self, pair: Pair) -> dict[str, Any]:
        """Return the record with the target, the dtype and the environment, ready for one line of JSON."""
        dtype = str(pair.target.dtype).removeprefix("torch.")
        return asdict(self) | {"target": pair.target_name, "dtype": dtype} | describe_environment()


@functools.cache
def describe_environment() -> dict[str, Any]:
    """Return `versions` and `hardware`, ready for JSON."""
    cpu_info = Path("/proc/cpuinfo")
    text = cpu_info.read_text(encoding="utf-8", errors="replace") if cpu_info.is_file() else ""
    processor = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    device = accelerator()
    hardware = {
        "processor": processor[1] if processor else platform.processor() or platform.machine(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "kernels": kernel.LEVEL,
        "num_cores": os.cpu_count(),
        "num_threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else device and device.type,
    }
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "tokenizers", "numpy")}
    return {"versions": {"uag": __version__, "python": platform.python_version()} | versions, "hardware": hardware}


def environment_line(dtype: object) -> str:
    """Return dtype, kernels, hardware and versions in one line."""
    environment = describe_environment()
    versions, hardware = environment["versions"], environment["hardware"]
    return (
        f"{str(dtype).removeprefix('torch.')}; {kernel.describe()}; {hardware['processor']}, "
        f"{hardware['instruction_set']}, {hardware['num_cores']} cores, {hardware['num_threads']} threads, "
        f"{hardware['accelerator'] or 'no accelerator'}; {', '.join(map(' '.join, versions.items()))}"
    )
