"""The public names: the list, their existence, and that importing the package loads nothing heavy."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import uag

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
