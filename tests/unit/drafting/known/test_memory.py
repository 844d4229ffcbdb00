"""The memory: what is found in it, its limits, its files, and use from several threads."""

import copy
import gc
import json
import os
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import uag
from uag.drafting.known.index import NUM_LAST, KnownIds, Places
from uag.errors import LoadingError, OptionError, PairError


def assert_refused(path: Path) -> None:
    with pytest.raises(LoadingError, match="cannot be loaded as a memory"):
        uag.Memory.load(path)


def write(path: Path, ids: dict[str, Any]) -> None:
    """Write a file of 100 bytes whose header describes its ids."""
    header = json.dumps({"__metadata__": {"max_tokens": "100", "tokenizer": ""}, "ids": ids}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(100))


def in_threads(work: Callable[[int], None]) -> None:
    """Run a function in four threads, with their numbers."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


@contextmanager
def switching_threads() -> Iterator[None]:
    """Let another thread run in the middle of what builds many objects; Python 3.11.7's parser cannot bear it."""

    def sleep(*_: object) -> None:
        time.sleep(0)

    threshold = gc.get_threshold()
    gc.callbacks.append(sleep)
    gc.set_threshold(10)
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(sleep)


def test_the_longest_and_then_the_latest_match_decides() -> None:
    memory = uag.Memory()
    for last in (7, 8):
        memory.add([1, 2, 3, 4, 5, last])
    memory.add([9, 9, 4, 5, 6])
    assert memory.look_up([2, 3, 4, 5], 8) == (4, [8])
    assert memory.look_up([0, 0, 4, 5], 8) == (2, [6])
    assert memory.look_up([0, 0, 5, 10], 8) == (0, [])
    for _ in range(3):
        memory.add(list(range(10, 40)), [50, 51, 52])  # the prompt is stored once, and each output
    assert memory.look_up([38, 39], 2) == (2, [50, 51])
    assert len(memory) == 17 + 33 + 2 * (16 + 3)


def test_a_conversation_is_stored_once() -> None:
    """Each prompt begins with the previous prompt and output."""
    memory, text = uag.Memory(), list(range(40))
    for turn in range(1, 11):
        output = list(range(100 * turn, 100 * turn + 40))
        memory.add(text, output)
        text += output
    assert len(memory) < len(text) + 10 * 16 + 1
    for place in range(16, len(text) - 1):
        num_matching, following = memory.look_up(text[:place], 1)
        assert (num_matching >= 16, following) == (True, [text[place]])


def test_a_text_longer_than_the_memory_keeps_its_end() -> None:
    memory = uag.Memory(max_tokens=64)
    memory.add(list(range(200)))
    assert len(memory) == 63
    assert memory.look_up([190, 191], 3) == (2, [192, 193, 194])


@pytest.mark.parametrize("max_tokens", [63, 2**31, 1e6, True, None])
def test_an_invalid_size_is_refused(max_tokens: object) -> None:
    with pytest.raises(OptionError, match=r"max_tokens=.* must be a whole number from 64"):
        uag.Memory(max_tokens=max_tokens)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["file", "pickle", "deepcopy"])
def test_a_copy_has_the_same_texts(way: str, tmp_path: Path) -> None:
    memory = uag.Memory(max_tokens=500)
    memory.bind("one tokenizer")
    for start in range(40):
        memory.add(list(range(start, start + 30)))
    memory.add([200, 201, 202])
    if way == "file":
        memory.save(tmp_path / "memory.safetensors")
        memory.save(tmp_path / "memory.safetensors")
        assert [path.name for path in tmp_path.iterdir()] == ["memory.safetensors"]
        copied = uag.Memory.load(tmp_path / "memory.safetensors")
    else:
        copied = pickle.loads(pickle.dumps(memory)) if way == "pickle" else copy.deepcopy(memory)
    assert (copied.max_tokens, copied.tokenizer, len(copied)) == (500, "one tokenizer", len(memory))
    for first in (*range(35, 60), 200):
        assert copied.look_up([first, first + 1], 8) == memory.look_up([first, first + 1], 8) != (0, [])
    copied.add([1, 2, 3])
    assert len(copied) != len(memory)


def test_a_memory_belongs_to_one_tokenizer_until_it_is_cleared() -> None:
    memory = uag.Memory()
    memory.bind("one")
    memory.bind("one")
    memory.add([1, 2, 3])
    with pytest.raises(PairError, match="ids of another tokenizer"):
        memory.bind("other")
    memory.clear()
    memory.bind("other")
    assert len(memory) == 0


def test_files_that_are_no_memory_are_refused(tmp_path: Path) -> None:
    path, memory = tmp_path / "memory.safetensors", uag.Memory()
    memory.add(list(range(100)))
    memory.save(path)
    whole = path.read_bytes()
    for broken in (b"", b"text", whole[: len(whole) // 2]):
        path.write_bytes(broken)
        assert_refused(path)
    good = np.zeros(3, np.int32)
    for ids in (np.array([1, -5], np.int32), np.array([1.5]), np.zeros((3, 3), np.int32), np.zeros(3, np.int64)):
        save_file({"ids": ids}, path, {"max_tokens": "100", "tokenizer": ""})
        assert_refused(path)
    for size in ("3", str(2**31), str(2**40), "inf", "nan", "[1, 2]", ""):
        save_file({"ids": good}, path, {"max_tokens": size, "tokenizer": ""})
        assert_refused(path)
    save_file({"ids": good}, path)
    assert_refused(path)
    save_file({"other": good}, path, {"max_tokens": "100", "tokenizer": ""})
    assert_refused(path)
    assert_refused(tmp_path)
    with pytest.raises(LoadingError, match="nothing"):
        uag.Memory.load(tmp_path / "nothing.safetensors")


def test_an_interrupt_after_the_file_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, path, replace = uag.Memory(), tmp_path / "memory.safetensors", os.replace

    def interrupt(*paths: Any) -> None:
        replace(*paths)
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        memory.save(path)
    assert len(uag.Memory.load(path)) == 0
    assert list(tmp_path.iterdir()) == [path]


def test_headers_of_terabytes_and_of_kinds_that_numpy_lacks_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "memory.safetensors"
    ids = {"dtype": "I32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}
    write(path, ids)
    assert_refused(path)
    write(path, {"dtype": "F8_E4M3", "shape": [100], "data_offsets": [0, 100]})
    assert_refused(path)


def test_damaged_files_are_refused_or_loaded(tmp_path: Path) -> None:
    path, draw = tmp_path / "memory.safetensors", random.Random(1)
    memory = uag.Memory(2000)
    memory.add(range(20))
    memory.save(path)
    whole, num_refused = path.read_bytes(), 0
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(draw.choice([1, 3, 20])):
            data[draw.randrange(len(data))] = draw.randrange(256)
        path.write_bytes(data)
        try:
            uag.Memory.load(path)
        except LoadingError:
            num_refused += 1
    assert 100 < num_refused < 500


@pytest.mark.parametrize("ids", [[1, -1, 2], [-200], [1 << 31], [1 << 80]])
def test_ids_that_cannot_be_stored_are_refused(ids: list[int]) -> None:
    memory = uag.Memory()
    for prompt, output in ((ids, ()), ([1], ids)):
        with pytest.raises(OptionError, match=r"stores ids from 0 to 2,147,483,647"):
            memory.add(prompt, output)
    assert len(memory) == 0


def test_a_text_that_repeats_itself_is_added_with_few_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, searches, find = uag.Memory(), list[int](), KnownIds.find

    def counted(self: KnownIds, last_ids: Sequence[int]) -> tuple[int, Places]:
        searches.append(1)
        return find(self, last_ids)

    monkeypatch.setattr(KnownIds, "find", counted)
    memory.add([7] * 17)
    memory.add([7] * 20_000)
    memory.add([7] * 20_000)
    assert len(searches) < 100
    assert memory.look_up([7] * NUM_LAST, 1) == (NUM_LAST, [7])


def test_threads_save_to_one_path_and_never_through_links(tmp_path: Path) -> None:
    memory, path = uag.Memory(), tmp_path / "memory.safetensors"
    memory.add(range(5000))
    (tmp_path / "secret").write_text("kept")
    (tmp_path / "memory.safetensors.partial").symlink_to(tmp_path / "secret")
    path.symlink_to(tmp_path / "secret")

    def work(_: int) -> None:
        for _ in range(20):
            memory.save(path)
            assert len(uag.Memory.load(path)) == 5000

    with switching_threads():
        in_threads(work)
    assert (tmp_path / "secret").read_text() == "kept"
    assert not path.is_symlink()
    assert {file.name for file in tmp_path.iterdir()} == {"secret", "memory.safetensors", "memory.safetensors.partial"}


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, path = uag.Memory(), tmp_path / "memory.safetensors"
    memory.add(range(100))
    memory.save(path)
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("safetensors.numpy.save", full)
    with pytest.raises(OSError, match="No space left"):
        memory.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["memory.safetensors"]


def test_threads_add_and_look_up_at_the_same_time(tmp_path: Path) -> None:
    """Every continuation is one that was stored, although texts are overwritten all the time."""
    memory = uag.Memory(max_tokens=1000)

    def work(number: int) -> None:
        for text in range(100):
            first = 1000 * number + 100 * (text % 3)
            memory.add(list(range(first, first + 40)))
            memory.save(tmp_path / f"{number}.safetensors")
            _, following = memory.look_up([first + 20, first + 21], 5)
            assert following == list(range(first + 22, first + 22 + len(following)))

    in_threads(work)
    assert len(uag.Memory.load(tmp_path / "0.safetensors")) > 900


def test_a_memory_that_is_cleared_just_after_it_was_bound_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, lock = uag.Memory(), threading.Lock()

    @contextmanager
    def cleared_behind() -> Iterator[None]:
        with lock:
            yield
        memory.tokenizer = ""

    monkeypatch.setattr(memory, "_lock", cleared_behind())
    memory.bind("one")
    memory.tokenizer = "two"
    monkeypatch.setattr(memory, "_lock", lock)
    with pytest.raises(PairError, match="ids of another tokenizer"):
        memory.bind("one")
