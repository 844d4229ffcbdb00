"""Devices of this process, where no test asked for a second one."""

import importlib

import pytest
import torch

from tests.support import device, standin
from uag.hf.devices import accelerator, default_generator, synchronize


@pytest.mark.skipif(device.DEVICE is not None, reason="a second device was asked for")
def test_importing_the_stand_in_registers_no_device() -> None:
    before = accelerator()
    importlib.reload(standin)
    assert not hasattr(torch, "standin")
    assert accelerator() == before


def test_cpu_has_the_default_generator_and_a_device_without_a_module_in_pytorch_has_none() -> None:
    assert default_generator(torch.device("cpu")) is torch.default_generator
    assert default_generator(torch.device("vulkan")) is None
    synchronize(torch.device("cpu"))  # nothing to wait for
