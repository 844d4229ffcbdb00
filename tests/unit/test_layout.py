"""The architecture: imports are one-way, and only `hf` uses transformers' internals."""

import ast
import re
import runpy
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import uag
from uag.hf import required_names

ROOT = Path(uag.__file__).parent
BELOW = {
    "_version": "",
    "forks": "",
    "errors": "",
    "proposal": "",
    "adapters": "errors",
    "hf": "errors forks",
    "gguf": "errors forks",
    "loading": "errors gguf hf forks",
    "lookahead": "proposal forks",
    "stats": "errors forks",
    "kernels": "hf forks",
    "projection": "adapters errors proposal",
    "sampling": "hf proposal forks",
    "options": "errors",
    "drafting": "adapters errors gguf hf lookahead kernels options projection proposal sampling forks",
    "decoding": "drafting errors hf lookahead options kernels projection proposal sampling stats",
    "vllm": "adapters drafting errors hf loading lookahead projection proposal forks",
    "generate_hook": "errors hf forks",
    "assistant": "decoding generate_hook drafting errors hf loading lookahead kernels options stats forks",
    "testing": "assistant drafting errors loading proposal stats",
    "candidates": "decoding drafting errors gguf hf lookahead options kernels projection proposal sampling stats",
    "installing": "assistant generate_hook errors gguf hf loading options forks",
    "structured": "errors forks hf",
    "serving": "errors hf installing loading stats structured",
    "bench": "_version adapters assistant drafting errors forks gguf hf kernels loading options proposal stats",
    "ray": "assistant errors forks hf loading options sampling",
    "cli": "_version assistant bench errors loading serving",
    "": "_version assistant candidates drafting gguf installing loading options stats",
}
"""The allowed imports of each package or top-level module, from the lowest layer up."""

PATHS = {*ROOT.rglob("*.py"), *(ROOT / "adapters").glob("*.py")}  # adapters is a symlink, which rglob does not follow
FILES = {path.relative_to(ROOT): ast.parse(path.read_text()) for path in sorted(PATHS)}
READ_IF_PRESENT = {
    *("_device_mesh", "_is_user_defined", "_compiled_call_impl", "_dynamo", "_torchdynamo_orig_callable"),
    *("_forward_hooks", "_forward_pre_hooks", "_global_forward_hooks", "_global_forward_pre_hooks"),
    *("_backward_hooks", "_backward_pre_hooks", "_call_impl", "_buffers", "_parameters", "_modules", "_C", "_orig_mod"),
    *("_len_torch_function_stack", "_get_function_stack_at", "_get_current_dispatch_mode_stack", "_hf_hook"),
    *("_eos_token_tensor", "_pad_token_tensor", "_prefix_allowed_tokens_fn"),
    *("_is_mkldnn_bf16_supported", "_is_mkldnn_fp16_supported"),
}
"""Private names that only some models, releases or calls have."""

KNOWN = READ_IF_PRESENT.union(*required_names.NAMES.values())


def owner(path: Path) -> str:
    """The package or top-level module that a file belongs to."""
    return path.parts[0].removesuffix(".py").replace("__init__", "")


def imports(tree: ast.Module) -> Iterator[str]:
    """Every module that a file imports, at any level."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (
                [f"{node.module}.{name.name}" for name in node.names] if node.module == "uag" else [node.module]
            )
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def test_imports_run_one_way() -> None:
    for path, tree in FILES.items():
        own = owner(path)
        found = {name.split(".")[1]: name for name in imports(tree) if name.startswith("uag.")}
        assert found.keys() - {own} <= set(BELOW[own].split()), f"{path}: not below: see the table in this file"
        inner = [name for name in found.values() if name.count(".") > 1 and name.split(".")[1] not in (own, "hf")]
        assert not inner, f"{path}: not through the package's face"
        assert own != "projection" or not [name for name in imports(tree) if name.split(".")[0] == "torch"], path


def test_the_table_has_no_circle() -> None:
    seen: set[str] = set()
    for own, below in BELOW.items():
        assert set(below.split()) <= seen
        seen.add(own)
    assert {owner(path) for path in FILES} == seen


def private_names(tree: ast.Module) -> set[str]:
    """Private names that a file imports or accesses on objects."""
    looked = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    imported = {name.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for name in n.names}
    strings = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    found = looked | imported | {text for text in strings if text.isidentifier()}
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


OF_OTHERS = {
    "adapters/mistral_common.py": {"_tekken_token2id_nospecial"},
    "candidates.py": {"_assisted_decoding", "_get_candidate_generator", "_validate_generation_mode"},
    "forks.py": {"_at_fork_reinit", "_is_owned"},
    "generate_hook.py": {"_is_user_defined"},
    "kernels/library.py": {"_rows", "_vcomp_barrier", "_vcomp_fork", "_vcomp_set_num_threads"},
    "kernels/operations.py": {"_apply_gate", "_bias", "_default_apply_gate", "_is_expert_parallel"},
    "kernels/rounding.py": {"_schema"},
    "serving/server.py": {"_chat_handler", "_generation_state", "_model_manager", "_response_handler"},
}
"""Private names of libraries that a file outside `hf` uses."""


def test_only_hf_uses_private_names_of_transformers_and_looks_for_each_at_start_up() -> None:
    of_all = {"_cdata", "_version", "_exit"}  # every storage and tensor has the first two; os._exit is public
    defined: dict[str, set[str]] = defaultdict(of_all.copy)
    for path, tree in FILES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                defined[owner(path)].add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                defined[owner(path)].add(node.id if isinstance(node, ast.Name) else node.attr)
    for path, tree in FILES.items():
        theirs = private_names(tree) - (defined[owner(path)] - KNOWN)
        assert theirs <= (KNOWN if owner(path) == "hf" else OF_OTHERS.get(str(path), set())), path


MOST_MODULES, MOST_LINES = 13, 320
"""Maximum sizes of a folder and of a module."""


def test_folders_and_modules_stay_small() -> None:
    folders = Counter(path.parent for path in FILES if path.name != "__init__.py")
    assert {str(folder): size for folder, size in folders.items() if size > MOST_MODULES} == {}
    lengths = {str(path): len((ROOT / path).read_text().splitlines()) for path in FILES}
    assert {path: length for path, length in lengths.items() if length > MOST_LINES} == {}


def test_every_module_begins_with_a_sentence() -> None:
    """`python docs/tree.py` prints them."""
    printed = runpy.run_path(str(ROOT.parent / "docs" / "tree.py"))["lines"]
    lines = [line for folder in (ROOT.parent / "adapters", ROOT) for line in printed(folder)]
    assert len(lines) == len(FILES)
    assert [line for line in lines if len(line.split()) < 3] == []


def test_the_steps_of_a_round_in_how_it_works_name_methods_that_exist() -> None:
    page = (ROOT.parent / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    steps = re.findall(r"`(\w+)\.(\w+)`,?\s+\(?\[\w+\.py\]\(\.\./uag/([\w/.]+)\)", page)
    assert len(steps) >= 8
    for name, method, path in steps:
        (found,) = [node for node in FILES[Path(path)].body if isinstance(node, ast.ClassDef) and node.name == name]
        assert method in {node.name for node in found.body if isinstance(node, ast.FunctionDef)}, (name, method)


def test_no_two_public_classes_share_a_name() -> None:
    owners: dict[str, list[str]] = {}
    for path, tree in FILES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners.setdefault(node.name, []).append(str(path))
    assert {name: paths for name, paths in owners.items() if len(paths) > 1} == {}


def test_modules_import_each_other_one_way() -> None:
    """No module reaches itself through the modules it imports at load time."""
    modules = {".".join(("uag", *path.with_suffix("").parts)).removesuffix(".__init__"): path for path in FILES}
    graph = {name: set(_loaded(FILES[path], set(modules))) - {name} for name, path in modules.items()}
    packages = {name for name, path in modules.items() if path.name == "__init__.py"}
    # A package's __init__ imports its modules; importing another package's __init__ does not count as a cycle.
    order = TopologicalSorter({name: below - packages for name, below in graph.items() if name not in packages})
    order.prepare()


def _loaded(tree: ast.Module, modules: set[str]) -> Iterator[str]:
    """Every module of uag that a file imports at load time: outside functions and type checking."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = (f"{node.module}.{name.name}" for name in node.names)
            yield from (name if name in modules else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
