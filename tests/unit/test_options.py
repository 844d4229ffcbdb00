"""Options travel whole: as an object or by name, through every entry point, and to the flags of the command line."""

import inspect
from dataclasses import fields, replace

import pytest

import uag
from tests.support.calls import pair
from uag import installing
from uag.cli import common, generate, measuring, serve
from uag.errors import OptionError
from uag.options import BenchOptions, Options


def test_an_assistant_takes_an_object_names_or_both() -> None:
    _, tokenizer, draft, draft_tokenizer = pair()
    shared = uag.Options(min_confidence=0.25, draft_independent=True)
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, options=shared, min_confidence=0.5)
    assert assistant.options == Options(min_confidence=0.5, draft_independent=True)
    assert assistant.lookahead.min_confidence == 0.5
    assistant.options.trust_changes = True
    assert not shared.trust_changes  # the caller's object is copied


def test_install_hands_every_option_to_its_assistants() -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    tokenizers = {"tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
    given = dict(tokenizer("one two three", return_tensors="pt")) | {"max_new_tokens": 4, "do_sample": False}
    expected = target.generate(**given).tolist()
    try:
        for options in ({"memory": True, "num_candidate_tokens": 2}, {"min_confidence": 0.75}):
            uag.install(**options)
            assert target.generate(**given, assistant_model=draft, **tokenizers).tolist() == expected
        _, (assistant,) = installing._assistants[draft][target]
        assert assistant.memory is not None
        assert (assistant.lookahead.fixed, assistant.lookahead.min_confidence) == (2, 0.75)
        with pytest.raises(OptionError, match="own_kernels=3 must be True or False"):
            uag.install(own_kernels=3)
    finally:
        uag.uninstall()
    assert installing._options == Options()


def test_flags_have_the_defaults_of_their_options() -> None:
    defaults = {field.name: field.default for field in fields(BenchOptions)}
    assert common._FLAGS.keys() <= defaults.keys()
    for command, kind, changed in (
        (measuring.bench, BenchOptions, {}),
        (measuring.doctor, BenchOptions, {"num_trials": 1}),
        (generate.generate, Options, {}),
        (serve.serve, Options, {}),
    ):
        flags = {
            name: parameter.default
            for name, parameter in inspect.signature(command).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }
        expected = {field.name for field in fields(kind)} & common._FLAGS.keys()
        assert flags == {name: defaults[name] for name in expected} | changed


def test_options_of_a_benchmark_are_those_of_its_assistants() -> None:
    options = BenchOptions(draft_independent=True, batch_size=2)
    assert uag.Assistant(None, options=options).options.draft_independent
    with pytest.raises(OptionError, match="draft_independent=True promises"):
        replace(options, sampling="rejection")
