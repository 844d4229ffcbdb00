"""The text: the Python standard library's own source, without comments and docstrings.

A narrow domain is what small models can agree on. Some modules are held out from benchmarks.demo_pair.
"""

import ast
import functools
import io
import sysconfig
import tokenize
from dataclasses import dataclass
from pathlib import Path

SKIPPED_FOLDERS = {
    *("test", "tests", "site-packages", "idlelib", "lib2to3", "turtledemo", "encodings", "pydoc_data", "__pycache__"),
    *("ensurepip", "__phello__", "lib-dynload", "macholib", "msilib"),
}
SKIPPED_FILES = {"html/entities.py", "this.py", "antigravity.py", "opcode.py", "token.py", "keyword.py", "symbol.py"}
HELD_OUT = (
    *("asyncio/locks.py", "asyncio/queues.py", "bdb.py", "cmd.py", "concurrent/futures/thread.py", "configparser.py"),
    *("csv.py", "email/header.py", "fnmatch.py", "getopt.py", "http/cookies.py", "importlib/abc.py", "json/decoder.py"),
    *("json/encoder.py", "logging/handlers.py", "netrc.py", "queue.py", "sched.py", "shelve.py", "statistics.py"),
    *("textwrap.py", "urllib/robotparser.py", "wsgiref/handlers.py", "xml/dom/pulldom.py", "zipapp.py"),
)

HasDocstring = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One library module: its path, its code and, for each line of the code, the line number in the file."""

    name: str
    text: str
    lines: tuple[int, ...]


def strip_prose(source: str) -> tuple[str, tuple[int, ...]]:
    """Remove comments and docstrings; also return the file's line number of each line that is left."""
    lines = source.splitlines()
    gone: set[int] = set()
    for body in (node.body for node in ast.walk(ast.parse(source)) if isinstance(node, HasDocstring)):
        first = body[0] if body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            start, end = first.lineno - 1, first.end_lineno or first.lineno
            if len(body) == 1:
                lines[start] = lines[start][: first.col_offset] + "pass"
                gone.update(range(start + 1, end))
            elif body[1].lineno > end:
                gone.update(range(start, end))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        row, column = token.start[0] - 1, token.start[1]
        if token.type == tokenize.COMMENT and row not in gone:
            lines[row] = lines[row][:column].rstrip()
            if not lines[row]:
                gone.add(row)
    kept: list[tuple[int, str]] = []
    for number, line in enumerate(lines):
        blanks = sum(not text for _, text in kept[-2:]) if kept else 2
        if number not in gone and (line.strip() or blanks < 2):
            kept.append((number + 1, line.rstrip()))
    return "\n".join(line for _, line in kept).rstrip() + "\n", tuple(number for number, _ in kept)


def library() -> list[Module]:
    """Read the standard library's modules in the order of their names."""
    root = Path(sysconfig.get_paths()["stdlib"])
    modules = []
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        relative = path.relative_to(root)
        name = relative.as_posix()
        if SKIPPED_FOLDERS.intersection(relative.parts) or name in SKIPPED_FILES or name.startswith("config-"):
            continue
        text, lines = strip_prose(path.read_text(encoding="utf-8", errors="replace"))
        if len(text) > 200:
            modules.append(Module(name, text, lines))
    return modules


@functools.cache
def split_library() -> tuple[list[Module], list[Module]]:
    """Return the modules to train on and the held-out ones."""
    modules = library()
    return [m for m in modules if m.name not in HELD_OUT], [m for m in modules if m.name in HELD_OUT]
