"""Write the tree of files in docs/how-it-works.md, with the first sentence of each module's docstring.

python docs/tree.py
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "how-it-works.md"
BLOCK = re.compile(r"(?<=<!-- written by docs/tree.py -->\n```text\n).*?(?=```\n)", re.DOTALL)


def tree() -> str:
    """Return a line for each folder and module of the package."""
    return "".join(f"{line}\n" for folder in ("adapters", "uag") for line in lines(ROOT / folder))


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
    PAGE.write_text(BLOCK.sub(tree().replace("\\", r"\\"), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
