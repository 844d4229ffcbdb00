"""The choice of an adapter, and the cache of adapters."""

import gc
import weakref
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any, ClassVar

import pytest

from tests.support.tokenizers import BUILDERS, byte_level, small_tokenizer
from uag.adapters import TokenizerAdapter, detect, from_tokenizer
from uag.errors import TokenizerError


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_the_family_depends_on_the_components(name: str) -> None:
    assert from_tokenizer(small_tokenizer(name)).family == BUILDERS[name][1]


def test_same_tokenizer_gives_the_same_adapter() -> None:
    tokenizer = byte_level()
    adapter = from_tokenizer(tokenizer)
    assert from_tokenizer(tokenizer) is adapter
    assert adapter.tokenizer is tokenizer


def test_a_tokenizer_that_changed_gets_a_new_adapter() -> None:
    tokenizer = byte_level()
    before = from_tokenizer(tokenizer)
    tokenizer.add_special_tokens({"pad_token": "<|padding|>"})
    after = from_tokenizer(tokenizer)
    assert after.vocab_size == before.vocab_size + 1
    assert after.controls.pad_id == before.vocab_size


def test_the_cache_keeps_no_tokenizer_alive() -> None:
    tokenizer = byte_level()
    adapter = from_tokenizer(tokenizer)
    adapter.encode_continuation(b"text")
    dead = weakref.ref(tokenizer)
    del adapter, tokenizer
    gc.collect()
    assert dead() is None


def test_an_adapter_leaves_its_tokenizer_as_it_was() -> None:
    tokenizer = byte_level()
    before = tokenizer.backend_tokenizer.to_str(), sorted(vars(tokenizer))
    adapter = from_tokenizer(tokenizer)
    adapter.encode_continuation(b"some text \xff")
    assert adapter.fingerprint
    assert (tokenizer.backend_tokenizer.to_str(), sorted(vars(tokenizer))) == before


@pytest.mark.parametrize("thing", [None, "gpt2", 3, object(), type(small_tokenizer("byt5"))])
def test_other_objects_are_refused(thing: Any) -> None:
    with pytest.raises(TokenizerError, match=r"Expected a Hugging Face tokenizer, got .*AutoTokenizer.from_pretrained"):
        from_tokenizer(thing)


def test_a_tokenizer_that_can_only_encode_is_refused() -> None:
    class Encoder:
        added_tokens_decoder: ClassVar[dict[int, Any]] = {}
        all_special_ids: ClassVar[list[int]] = []

        def __len__(self) -> int:
            return 256

        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return list(text.encode())

    with pytest.raises(TokenizerError, match=r"Expected a Hugging Face tokenizer, got <.*Encoder"):
        from_tokenizer(Encoder())


class Favorite(TokenizerAdapter):
    family = "favorite"

    @classmethod
    def matches(cls, tokenizer: Any) -> int:
        return 1000

    def _build_token_bytes(self) -> dict[int, bytes | None]:
        return {0: b"x"}

    def _encode(self, data: bytes) -> list[int]:
        return [0] * len(data)


@pytest.fixture
def plug_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    installed: list[EntryPoint] = []
    monkeypatch.setattr(detect, "entry_points", lambda group: installed if group == detect.GROUP else [])
    detect._registered.cache_clear()
    detect._load.cache_clear()
    yield installed
    detect._registered.cache_clear()
    detect._load.cache_clear()


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, detect.GROUP)


def test_a_plug_in_of_a_higher_rank_is_used(plug_ins: list[EntryPoint]) -> None:
    plug_ins.append(entry("favorite", f"{__name__}:Favorite"))
    assert from_tokenizer(byte_level()).family == "favorite"


@pytest.mark.parametrize("thing", [None, "gpt2", object()])
def test_a_plug_in_does_not_see_objects_that_are_no_tokenizers(plug_ins: list[EntryPoint], thing: Any) -> None:
    plug_ins.append(entry("favorite", f"{__name__}:Favorite"))
    with pytest.raises(TokenizerError, match="Expected a Hugging Face tokenizer"):
        from_tokenizer(thing)


def test_two_plug_ins_of_one_name_are_refused(plug_ins: list[EntryPoint]) -> None:
    plug_ins.append(entry("byte_level", "other:Adapter"))
    with pytest.raises(TokenizerError, match=r"Two tokenizer adapters are named 'byte_level'.*other:Adapter"):
        from_tokenizer(byte_level())


@pytest.mark.parametrize("value", ["no_such_module_of_uag:Adapter", f"{__name__}:no_such_name"])
def test_a_broken_plug_in_is_named(plug_ins: list[EntryPoint], value: str) -> None:
    plug_ins.append(entry("broken", value))
    with pytest.raises(TokenizerError, match=r"tokenizer adapter 'broken' .* cannot be loaded"):
        from_tokenizer(byte_level())


def test_a_plug_in_of_the_wrong_kind_is_named(plug_ins: list[EntryPoint]) -> None:
    plug_ins.append(entry("wrong", "builtins:dict"))
    with pytest.raises(TokenizerError, match="tokenizer adapter 'wrong' is <class 'dict'>"):
        from_tokenizer(byte_level())
