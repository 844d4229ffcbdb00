"""The contract with transformers: every name that uag uses exists, in the oldest and the newest supported release."""

import ast
import importlib
import inspect
import os
import pkgutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import transformers
from transformers import DynamicCache, GenerationMixin, cache_utils

import uag
from tests.support.forked import elsewhere, forked, needs_fork
from uag.errors import CompatibilityError
from uag.hf import required_names


def test_this_release_has_all_that_uag_needs() -> None:
    required_names.check()


@needs_fork
def test_names_are_looked_up_once_since_a_child_inherits_the_locks_of_imports() -> None:
    uag.Assistant(None)

    def importing(wait: Callable[[], None]) -> None:
        with importlib._bootstrap._ModuleLockManager("transformers.GenerationMixin"):  # type: ignore[attr-defined]
            wait()

    with elsewhere(importing):
        assert forked(lambda: uag.Assistant(None).draft, timeout=20) is None


def test_names_are_looked_up_until_none_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    required_names._check_once.cache_clear()
    with monkeypatch.context() as patch:
        patch.delattr(GenerationMixin, "_sample")
        for _ in range(2):
            with pytest.raises(CompatibilityError, match=r"lacks transformers\.GenerationMixin\._sample"):
                uag.Assistant(None)
    uag.Assistant(None)


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


RENAMED = """
import os, pkgutil, sys
import transformers, torch._dynamo.callback

def said_without(owner, name):
    read, write = os.pipe()
    if not os.fork():
        found = pkgutil.resolve_name(owner)
        for each in found.__mro__ if isinstance(found, type) else (found,):
            if name in vars(each):
                delattr(each, name)
        getattr(found, "_class_to_module", {{}}).pop(name, None)  # from which transformers would import it again
        try:
            {use}
            said = "nothing"
        except BaseException as error:
            said = f"{{type(error).__name__}}: {{error}}"
        os.write(write, said.encode()[:2000])
        os._exit(0)
    os.close(write)
    os.wait()
    return os.read(read, 2000).decode()

names = {names!r}
for owner, name in names:  # loaded once, not in each fork
    getattr(pkgutil.resolve_name(owner), name)
assert not [module for module in sys.modules if module.split(".")[0] == "uag"]
wrong = {{}}
for owner, name in names:
    said = said_without(owner, name)
    if not (said.startswith("CompatibilityError: ") and f"lacks {{owner}}.{{name}}, which uag needs" in said):
        wrong[owner, name] = said
assert not wrong, wrong
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="imports transformers once for all names")
@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.grid)])
def test_each_renamed_name_is_refused_before_anything_else_is_imported(share: int) -> None:
    names = [(owner, name) for owner, of_owner in required_names.NAMES.items() for name in of_owner]
    assert len(names) > 80
    names = names[::share]  # of each owner
    code = RENAMED.format(names=names, use="import uag; uag.Assistant")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert not done.returncode, done.stdout + done.stderr


PROGRAMS = {"bench", "cli", "distill", "serving", "vllm"}
"""Packages that `import uag` does not load."""


def test_each_name_that_a_module_imports_from_transformers_is_checked() -> None:
    listed = {f"{owner}.{name}" for owner, names in required_names.NAMES.items() for name in names}
    root = Path(uag.__file__).parent
    used: dict[str, str] = {}
    for path in [*root.rglob("*.py"), *(root / "adapters").glob("*.py")]:
        if path.relative_to(root).parts[0] in PROGRAMS:
            continue
        tree, modules = ast.parse(path.read_text(encoding="utf-8")), {}
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "transformers":
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    if isinstance(pkgutil.resolve_name(name), ModuleType):
                        modules[alias.asname or alias.name] = name
                    else:
                        used[name] = str(path)
        for each in ast.walk(tree):
            if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id in modules:
                used[f"{modules[each.value.id]}.{each.attr}"] = str(path)
    assert len(used) > 60
    assert {name: path for name, path in used.items() if name not in listed} == {}


def test_fields_of_cache_layers_that_the_check_cannot_see() -> None:
    layers = {
        cache_utils.DynamicSlidingWindowLayer(sliding_window=4): ("record_past", "cumulative_length", "sliding_window"),
        cache_utils.StaticLayer(max_cache_len=4): ("cumulative_length", "max_cache_len"),
        cache_utils.StaticSlidingWindowLayer(4, sliding_window=4): (
            *("cumulative_length", "cumulative_length_int", "max_cache_len"),
        ),
        cache_utils.LinearAttentionLayer(): (
            *("record_past", "number_of_states", "conv_states", "recurrent_states"),
            "is_recurrent_states_initialized",
        ),
    }
    for layer, names in layers.items():
        assert [name for name in names if not hasattr(layer, name)] == []
    assert hasattr(DynamicCache(), "layer_class_to_replicate")


def test_names_of_the_server_are_checked_when_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvicorn", reason="uag[serve] is not installed")
    from uag.serving import Server

    required_names.check(required_names.SERVER)
    for owner, names in required_names.SERVER.items():
        for name in names:
            with monkeypatch.context() as patch:
                patch.delattr(pkgutil.resolve_name(owner), name)
                with pytest.raises(CompatibilityError, match=f"lacks .*{name}"):
                    Server("./none", "./none", host="127.0.0.1", port=0)
    with pytest.raises(CompatibilityError, match=r"lacks _Renamed\._model_manager, _Renamed\._generation_state, which"):
        required_names.require(type("_Renamed", (), {})(), "_model_manager", "_generation_state", "__doc__")


def test_the_candidate_generator_is_asked_for_with_the_parameters_that_the_mixin_takes() -> None:
    from uag.candidates import CandidateGeneratorMixin

    theirs = inspect.signature(GenerationMixin._get_candidate_generator).parameters
    assert theirs.keys() == inspect.signature(CandidateGeneratorMixin._get_candidate_generator).parameters.keys()


def test_what_a_callable_is_given() -> None:
    """The arguments that `Assistant.__call__` and the door accept by position or name."""
    theirs = list(inspect.signature(GenerationMixin._sample).parameters)
    ours = list(inspect.signature(uag.Assistant.__call__).parameters)
    assert ours[1:6] == ["model", *theirs[1:5]]
