"""Print the tree of the package's files, with the first sentence of each module's docstring.

python docs/tree.py
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def lines(folder: Path, indent: str = "") -> Iterator[str]:
    """Yield the lines of a folder: itself, its modules, and its folders."""
    yield line(folder / "__init__.py", f"{folder.name}/", indent)
    for module in sorted(folder.glob("*.py")):
        if module.name != "__init__.py":
            yield line(module, module.name, indent + "  ")
    for package in sorted(folder.glob("*/__init__.py")):
        if not package.parent.is_symlink():
            yield from lines(package.parent, indent + "  ")


def line(module: Path, name: str, indent: str) -> str:
    """Return one line: a name, and what is there."""
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    sentence = " ".join(text.split("\n\n")[0].split()).removesuffix(".")
    return f"{indent}{name}".ljust(26) + sentence


if __name__ == "__main__":
    for folder in ("adapters", "uag"):
        print("\n".join(lines(ROOT / folder)))
