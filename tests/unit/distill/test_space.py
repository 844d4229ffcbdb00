"""Room on the disk."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from uag.distill.space import check_space, free_bytes, told_where_full


def test_too_little_room_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"writing will take about .* GB in .* and .* are free: make room") as caught:
        check_space(tmp_path / "not" / "there" / "yet", 1 << 60, "writing")
    assert caught.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())
    check_space(tmp_path, 1, "writing")


def test_free_space_is_that_of_the_disk_below(tmp_path: Path) -> None:
    expected = shutil.disk_usage(tmp_path).free
    assert free_bytes(tmp_path / "not" / "there") == pytest.approx(expected, rel=0.05)


def raise_like_a_library() -> None:
    try:
        raise OSError(errno.ENOSPC, "No space left on device")
    except OSError as error:
        raise RuntimeError("serialization failed") from error


def test_a_full_disk_is_named_whatever_the_library_says(tmp_path: Path) -> None:
    with (
        pytest.raises(
            OSError, match=r"no space is left for .*: 5 texts are kept. Make room and run the same"
        ) as caught,
        told_where_full(tmp_path, "5 texts are kept"),
    ):
        raise_like_a_library()
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("error", [ValueError("shape"), OSError(errno.EACCES, "denied"), RuntimeError("cuda")])
def test_other_errors_stay_what_they_are(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)) as caught, told_where_full(tmp_path, "nothing"):
        raise error
    assert caught.value is error
