"""The second device that the tests run on, named by UAG_DEVICE; None without it."""

import os
from typing import Any

import torch

from tests.support import standin
from uag.hf.devices import default_generator

DEVICE: Any = os.environ.get("UAG_DEVICE")
if DEVICE == "standin":
    standin.register()


def random_state() -> list[list[int]]:
    generators = (default_generator(torch.device(kind)) for kind in ("cpu", DEVICE))
    return [generator.get_state().tolist() for generator in generators if generator is not None]
