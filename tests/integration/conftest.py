"""What integration tests share: the installed door, a target for sampling, and warnings that come anew in each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import uag
from tests.support.calls import EOS_IDS
from tests.support.models import tiny_target


@pytest.fixture
def installed() -> Iterator[None]:
    """`uag.install()` for the length of a test."""
    uag.install()
    yield
    uag.uninstall()


@pytest.fixture(scope="module")
def target() -> Any:
    """A target that ends rows early; each module has one of its own, which it may change."""
    return tiny_target("llama", eos_id=EOS_IDS)[0]


@pytest.fixture(autouse=True)
def _fresh_warnings() -> None:
    """Warnings that are given once come anew."""
    from uag import stats

    stats._warned.clear()
