"""The public names, options, and that importing the package loads nothing heavy."""

import ast
import inspect
import os
import subprocess
import sys
import types
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import uag
from tests.support.calls import pair
from uag import installing
from uag.bench import BenchOptions
from uag.cli import generate, measuring, serve
from uag.drafting import PromptLookup
from uag.errors import OptionError
from uag.options import Options

PUBLIC = ["Assistant", "CandidateGenerator", "GgufDraft", "Memory", "Options", "Stats", "__version__", "attach"]
PUBLIC += ["detach", "install", "last_stats", "load_pair", "uninstall"]
HEAVY = "sorted({'numpy', 'regex', 'sentencepiece', 'tokenizers', 'torch', 'transformers'} & set(sys.modules))"


def test_the_public_names_are_these() -> None:
    assert sorted(uag.__all__) == PUBLIC
    assert set(PUBLIC) <= set(dir(uag))
    assert dir(uag) == sorted(set(dir(uag)))
    assert [name for name in PUBLIC if getattr(uag, name, None) is None] == []


def test_type_checkers_see_the_same_names_as_users() -> None:
    tree = ast.parse(Path(uag.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    seen = {alias.name: node.module for node in imports for alias in node.names if str(node.module).startswith("uag.")}
    assert seen.pop("__version__") == "uag._version"
    assert seen == uag._MODULES


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="module 'uag' has no attribute 'nothing'"):
        uag.nothing  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from uag import nothing")


def test_asking_for_the_version_imports_nothing_heavy() -> None:
    code = f"""
import sys
import uag
from uag.cli import main
try:
    main(["--version"])
except SystemExit as end:
    assert not end.code
print({HEAVY})
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "COVERAGE"))}
    command = [sys.executable, "-c", code]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=300)
    version, heavy = finished.stdout.splitlines()
    assert version == f"uag {uag.__version__}"
    assert heavy == "[]"


def test_an_assistant_takes_an_object_names_or_both() -> None:
    _, tokenizer, draft, draft_tokenizer = pair()
    shared = uag.Options(min_confidence=0.25, draft_independent=True)
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, options=shared, min_confidence=0.5)
    assert assistant.options == Options(min_confidence=0.5, draft_independent=True)
    assert assistant.lookahead.min_confidence == 0.5
    assistant.options.trust_changes = True
    assert not shared.trust_changes  # the caller's object is copied


def test_an_unknown_option_names_the_function_that_got_it() -> None:
    with pytest.raises(
        TypeError, match=r"Assistant\(\) got an unexpected keyword argument 'nonsense'; options are comp"
    ):
        uag.Assistant(None, nonsense=3)
    with pytest.raises(TypeError, match=r"install\(\) got an unexpected keyword argument 'nonsense'"):
        uag.install(nonsense=3)
    with pytest.raises(TypeError, match=r"attach\(\) got an unexpected keyword argument 'nonsense'"):
        uag.attach(pair()[0], None, nonsense=3)
    assert installing._options == Options()


NO_DRAFTERS = [PromptLookup, 3, print, "copy", types.SimpleNamespace(propose=print)]


@pytest.mark.parametrize("options", [{"drafter": each} for each in NO_DRAFTERS] + [{"min_confidence": True}])
def test_what_is_no_option_is_refused(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(OptionError, match=f"^{name}=.* must be (an object whose class inherits|a number)"):
        uag.Assistant(None, **options)


def test_a_model_is_a_draft_and_a_class_is_none() -> None:
    draft = pair()[2]
    with pytest.raises(OptionError, match=r"must be an object whose class .* Models, names and files are drafts"):
        uag.Assistant(None, drafter=draft)
    with pytest.raises(OptionError, match=r"The draft is a class: LlamaForCausalLM\. Pass a model"):
        uag.Assistant(type(draft))
    with pytest.raises(OptionError, match=r"The draft is a drafter: .*drafter=PromptLookup\(\)\)"):
        uag.Assistant(uag.drafting.PromptLookup())


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
    named = {"num_trials", "max_new_tokens", "batch_size", "temperature", "seed", "is_chat", "cache", "is_compiled"}
    for command, kind, names in (
        (measuring.bench, BenchOptions, {*named, "minutes", "compile_draft", "draft_independent"}),
        (measuring.doctor, BenchOptions, named - {"num_trials"}),
        (generate.generate, Options, {"compile_draft", "draft_independent"}),
        (serve.serve, Options, {"compile_draft", "draft_independent"}),
    ):
        defaults = {field.name: field.default for field in fields(kind)}
        flags = inspect.signature(command).parameters
        assert {name: flags[name].default for name in names} == {name: defaults[name] for name in names}


def test_options_of_a_benchmark_are_those_of_its_assistants() -> None:
    options = BenchOptions(draft_independent=True, batch_size=2)
    assert uag.Assistant(None, options=options).options.draft_independent
    with pytest.raises(OptionError, match="draft_independent=True promises"):
        replace(options, sampling="rejection")
