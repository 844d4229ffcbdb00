"""Room on the disk: asked for before hours are spent, and named where it runs out all the same."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BYTES_PER_TEXT_TOKEN = 16
"""Of a text in its file: an id in digits and its share of the text; higher refuses some disks that would do."""

_RESERVE = 1 << 26
"""Bytes to leave free: for logs, and what others write meanwhile."""


def check_space(folder: Path, num_bytes: int, what: str) -> None:
    """Refuse a folder whose disk has not room for so many bytes.

    Raises:
        OSError: too little room, with ENOSPC.
    """
    free = free_bytes(folder)
    if free < num_bytes + _RESERVE:
        raise OSError(
            errno.ENOSPC,
            f"{what} will take about {_shown(num_bytes)} in {str(folder)!r} and {_shown(free)} are free: make room, or "
            "give another output folder",
        )


def free_bytes(folder: Path) -> int:
    """Return what is free on the disk of a folder, which need not exist yet."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    return shutil.disk_usage(there).free


@contextmanager
def told_where_full(folder: Path, kept: str) -> Iterator[None]:
    """Say what is kept where the disk turns out to be full; libraries say it in errors of many kinds.

    Raises:
        OSError: no space was left, with ENOSPC.
    """
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        if not _is_full(error, folder):
            raise
        message = f"no space is left for {str(folder)!r}: {kept}. Make room and run the same command again"
        raise OSError(errno.ENOSPC, message) from error


def _is_full(error: Exception, folder: Path) -> bool:
    found: BaseException | None = error
    while found is not None:
        if getattr(found, "errno", None) == errno.ENOSPC or "No space left" in str(found):
            return True
        found = found.__cause__ or found.__context__
    # torch.save only says that its writer failed
    return "failed writing file" in str(error) and free_bytes(folder) < _RESERVE


def _shown(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
