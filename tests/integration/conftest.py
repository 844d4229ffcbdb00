"""Shared fixtures: `uag.install()`, a target for sampling, and fresh warnings in each test."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import uag
from tests.conftest import detach_all
from tests.support.calls import EOS_IDS
from tests.support.models import tiny_target
from uag.decoding import ways


@pytest.fixture
def installed() -> Iterator[None]:
    uag.install()
    yield
    uag.uninstall()


@pytest.fixture
def layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no target whose passes run in one call of the kernels."""
    monkeypatch.setattr(ways, "decoder_of", lambda *_: "")


@pytest.fixture
def detached() -> Iterator[None]:
    yield
    detach_all()


@pytest.fixture
def few_compilations() -> Iterator[None]:
    """Compile each function for only two shapes, because tracing takes most of a test's time."""
    limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
    before = getattr(torch._dynamo.config, limit)
    setattr(torch._dynamo.config, limit, 2)
    yield
    setattr(torch._dynamo.config, limit, before)
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def target() -> Any:
    """A target that ends rows early; each module has its own, which it may change."""
    return tiny_target("llama", eos_id=EOS_IDS)[0]


@pytest.fixture(autouse=True)
def _fresh_warnings() -> None:
    from uag import stats

    stats._warned.clear()
