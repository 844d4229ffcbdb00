"""The contract with transformers: every name that uag uses exists, in the oldest and the newest supported release."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import transformers
from transformers import GenerationMixin
from transformers.generation import candidate_generator

import uag
from uag.errors import CompatibilityError
from uag.hf import required_names


def test_this_release_has_all_that_uag_needs() -> None:
    required_names.check()


def test_this_release_is_a_supported_one() -> None:
    assert (
        required_names.release(required_names.OLDEST)
        <= required_names.release(transformers.__version__)
        <= required_names.release(required_names.NEWEST)
    )


@pytest.mark.parametrize("version", ["5.25.0", "5.25.0.dev0", "6.0.0"])
def test_a_newer_release_is_allowed_with_one_warning(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(required_names, "VERSION", version)
    required_names._warn_once.cache_clear()
    with pytest.warns(UserWarning, match=f"uag: transformers {version} is newer than the releases"):
        uag.Assistant(None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        uag.Assistant(None)
        uag.install()
    uag.uninstall()


@pytest.mark.parametrize("name", required_names.NAMES[GenerationMixin])
def test_a_missing_method_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delattr(GenerationMixin, name)
    message = rf"lacks GenerationMixin\.{name}, which uag needs. uag supports 5\.16"
    with pytest.raises(CompatibilityError, match=message):
        required_names.check()


@pytest.mark.parametrize("door", [uag.install, lambda: uag.Assistant(None)], ids=["install", "Assistant"])
def test_a_missing_function_is_named_at_every_door(door: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(candidate_generator, "_prepare_attention_mask")
    with pytest.raises(CompatibilityError, match=r"lacks [\w.]+\._prepare_attention_mask"):
        door()
    assert not hasattr(GenerationMixin.generate, "__uag_original__")


def test_the_candidate_generator_is_asked_for_with_the_parameters_that_the_mixin_takes() -> None:
    from uag.candidates import CandidateGeneratorMixin

    theirs = inspect.signature(GenerationMixin._get_candidate_generator).parameters
    assert theirs.keys() == inspect.signature(CandidateGeneratorMixin._get_candidate_generator).parameters.keys()


def test_what_a_callable_is_given() -> None:
    """The arguments that `Assistant.__call__` and the door accept by position or name."""
    theirs = list(inspect.signature(GenerationMixin._sample).parameters)
    ours = list(inspect.signature(uag.Assistant.__call__).parameters)
    assert ours[1:6] == ["model", *theirs[1:5]]
