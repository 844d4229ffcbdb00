"""Links of a page to files outside docs/, for the site: they lead to the repository, or are text where none is known.

mkdocs calls `on_page_markdown`. A link to a file that does not exist is a warning, and so an error with `--strict`.
"""

import logging
import re
from pathlib import Path
from typing import Any

logger = logging.getLogger("mkdocs.plugins.site_links")

DOCS = Path(__file__).parent
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return a page's text with its links to files outside docs/ replaced."""

    def replaced(match: re.Match[str]) -> str:
        text, path, anchor = match.groups(default="")
        file = (DOCS / path).resolve()
        if not file.exists():
            logger.warning("%s links to %s, which does not exist", page.file.src_path, path)
        if not config.repo_url:
            return text
        return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{file.relative_to(DOCS.parent)}{anchor})"

    return LINK.sub(replaced, markdown)
