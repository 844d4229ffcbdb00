"""The choice of an adapter, and the cache of adapters."""

import gc
import weakref
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from typing import Any, ClassVar

import pytest

from tests.support.tokenizers import BUILDERS, byte_level, small_tokenizer
from uag.adapters import TokenizerAdapter, detect, from_tokenizer
from uag.errors import TokenizerError


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_the_family_depends_on_the_components(name: str) -> None:
    assert from_tokenizer(small_tokenizer(name)).family == BUILDERS[name][1]


def test_a_tokenizer_that_changed_gets_a_new_adapter() -> None:
    tokenizer = byte_level()
    before = from_tokenizer(tokenizer)
    assert from_tokenizer(tokenizer) is before
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
def plug_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    installed: list[EntryPoint] = []
    monkeypatch.setattr(detect, "entry_points", lambda group: installed if group == detect.GROUP else [])
    detect._registered.cache_clear()
    detect._load.cache_clear()
    yield lambda name, value: installed.append(EntryPoint(name, value, detect.GROUP))
    detect._registered.cache_clear()
    detect._load.cache_clear()


def test_a_plug_in_of_a_higher_rank_is_used(plug_in: Callable[[str, str], None]) -> None:
    plug_in("favorite", f"{__name__}:Favorite")
    assert from_tokenizer(byte_level()).family == "favorite"


@pytest.mark.parametrize("thing", [None, "gpt2", 3, object(), type(small_tokenizer("byt5"))])
def test_other_objects_are_refused_before_a_plug_in_sees_them(plug_in: Callable[[str, str], None], thing: Any) -> None:
    plug_in("favorite", f"{__name__}:Favorite")
    with pytest.raises(TokenizerError, match=r"Expected a Hugging Face tokenizer, got .*AutoTokenizer.from_pretrained"):
        from_tokenizer(thing)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("byte_level", "other:Adapter", r"Two tokenizer adapters are named 'byte_level'.*other:Adapter"),
        ("broken", "no_such_module_of_uag:Adapter", r"tokenizer adapter 'broken' .* cannot be loaded"),
        ("broken", f"{__name__}:no_such_name", r"tokenizer adapter 'broken' .* cannot be loaded"),
        ("wrong", "builtins:dict", "tokenizer adapter 'wrong' is <class 'dict'>"),
    ],
)
def test_an_unusable_plug_in_is_named(plug_in: Callable[[str, str], None], name: str, value: str, message: str) -> None:
    plug_in(name, value)
    with pytest.raises(TokenizerError, match=message):
        from_tokenizer(byte_level())
