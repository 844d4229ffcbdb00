"""Draft passes of GGUF files in the kernels: the written model's distributions, without llama.cpp."""

import gc
import json
import pickle
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import uag
from tests.support.calls import GREEDY, SAMPLED, assert_drafted, batch, compare, pair
from tests.support.gguf_files import write_family, write_lfm2
from tests.support.models import HYBRID_DRAFTS, tiny_model
from tests.support.rollbacks import check_rollbacks
from tests.support.served import run_cli
from tests.support.tokenizers import small_tokenizer
from uag.drafting.models import gguf_decoder, llama_cpp
from uag.drafting.models.gguf_decoder import GgufDecoderPasses, decoder_of_file
from uag.drafting.models.open_draft import open_passes
from uag.errors import TokenizerError, UnsupportedError
from uag.gguf import GgufDraft, load_model
from uag.hf.decoder import describe
from uag.kernels import Decoder, kernel, steps
from uag.loading import load_pair
from uag.projection import DraftRow, Feed, Node, link

pytest.importorskip("gguf", reason="GGUF files are written with the gguf package")
pytestmark = pytest.mark.skipif(not kernel.LEVEL, reason="there are no kernels here")

TOKENIZER = "byte_level_llama3"


@pytest.fixture(autouse=True)
def without_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    llama_cpp._library.cache_clear()
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    yield
    monkeypatch.undo()
    llama_cpp._library.cache_clear()


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama", len(small_tokenizer(TOKENIZER)) + 3, hidden_size=64, max_position_embeddings=512)


@pytest.fixture(scope="module")
def path(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp("gguf") / "tiny.gguf", "llama", model, small_tokenizer(TOKENIZER))


def test_distributions_after_rollbacks_are_the_models(model: Any, path: Path) -> None:
    draft = GgufDraft(path, threads=1)
    decoder = Decoder(describe(load_model(draft.contents)), "model")  # the file's weights without rounding
    check_rollbacks(GgufDecoderPasses(draft, decoder), model, 30, 5e-3)
    passes = open_passes(draft)
    assert passes.counts.passes == "in one call, int8"
    assert 0 < passes.counts.num_bytes < 2 * sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("options", [GREEDY, SAMPLED])
def test_outputs_equal_plain_decoding(num_rows: int, options: dict[str, Any], model: Any, path: Path) -> None:
    tokenizer = small_tokenizer(TOKENIZER)
    own = uag.Assistant(path, tokenizer=tokenizer, num_candidate_tokens=4)
    stats = compare(model, batch(tokenizer, num_rows) | options, own)
    assert (stats.strategy, stats.draft_passes, stats.fallbacks) == ("shared-vocabulary", "in one call, int8", [])
    assert stats.num_accepted_tokens >= 0.8 * stats.num_candidate_tokens > 0
    target, of_target, _, _ = pair()
    other = uag.Assistant(GgufDraft(path, context=32), tokenizer=of_target, num_candidate_tokens=4)
    assert compare(target, batch(of_target, num_rows) | options, other).num_candidate_tokens > 0


def test_the_tokenizer_is_the_written_one(path: Path) -> None:
    found, due = GgufDraft(path).tokenizer, small_tokenizer(TOKENIZER)
    assert GgufDraft(path).tokenizer is found
    for text in ("The quick  brown fox", " 12345 don't\n\n\tstop", "naïve 你好 <|eot_id|>"):
        assert found.encode(text, add_special_tokens=False) == due.encode(text, add_special_tokens=False)
    assert (found.bos_token_id, found.eos_token_id) == (due.bos_token_id, due.eos_token_id)


def test_codes_are_shared_and_freed_and_float_weights_are_not_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []

    def noted(contents: Any) -> Any:
        found = load_model(contents)
        loaded.append(weakref.ref(found))
        return found

    monkeypatch.setattr(gguf_decoder, "load_model", noted)
    first, second = (open_passes(GgufDraft(path)) for _ in range(2))
    other = open_passes(pickle.loads(pickle.dumps(GgufDraft(path, context=64))))
    assert isinstance(first, GgufDecoderPasses)
    assert isinstance(second, GgufDecoderPasses)
    assert isinstance(other, GgufDecoderPasses)
    assert first._decoder is second._decoder is other._decoder
    assert (other.max_positions, first.max_positions) == (64, 512)
    gc.collect()
    assert [one() for one in loaded] == [None]
    decoder = weakref.ref(first._decoder)
    del first, second, other
    gc.collect()
    assert decoder() is None


def test_threads_are_the_drafts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes, ids = open_passes(GgufDraft(path, threads=3)), [3, 4, 5]
    seen: list[int] = []
    create = steps.CPass

    def noted(**values: Any) -> Any:
        seen.append(values["threads"])
        return create(**values)

    monkeypatch.setattr(steps, "CPass", noted)
    row = DraftRow()
    passes.start([row])
    passes.feed([(0, Feed(0, link([Node(None, i, b"", 0) for i in ids], None)))])
    assert seen == [3]


def test_a_changed_file_is_read_again(path: Path, tmp_path: Path) -> None:
    copied = tmp_path / "m.gguf"
    copied.write_bytes(path.read_bytes())
    draft = GgufDraft(copied)
    first = decoder_of_file(draft, "int8")
    other = tiny_model("qwen2", len(small_tokenizer(TOKENIZER)) + 3, hidden_size=32)
    write_family(copied, "qwen2", other, small_tokenizer(TOKENIZER))
    assert draft.vocab_size == len(small_tokenizer(TOKENIZER)) + 3
    second = decoder_of_file(draft, "int8")
    assert not isinstance(first, str)
    assert not isinstance(second, str)
    assert (first.sizes[0], second.sizes[0]) == (64, 32)


def test_other_files_and_options_name_llama_cpp(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = small_tokenizer(TOKENIZER)
    kind, options = HYBRID_DRAFTS["lfm2"]
    lfm2 = write_lfm2(tmp_path / "l.gguf", tiny_model(kind, len(tokenizer) + 3, **options), tokenizer, "gpt-2")
    needs = "needs llama-cpp-python.*pip install llama-cpp-python.*the file"
    for draft, changes, why in (
        (lfm2, {}, "has the architecture 'lfm2'"),
        (GgufDraft(path, gpu_layers=-1), {}, "is to run on a GPU"),
        (path, {"draft_weights": "model"}, "keeps its own weights"),
        (path, {"own_kernels": False}, "does not use uag's kernels"),
    ):
        with pytest.raises(UnsupportedError, match=f"{needs} {why}"):
            uag.Assistant(draft, tokenizer, tokenizer, **changes)
    monkeypatch.setattr(kernel, "LEVEL", "")
    with pytest.raises(UnsupportedError, match=f"{needs} runs without uag's kernels"):
        uag.Assistant(path, tokenizer, tokenizer)


def test_a_file_without_a_tokenizer_needs_one(model: Any, path: Path, tmp_path: Path) -> None:
    data, bare = path.read_bytes(), tmp_path / "m.gguf"
    bare.write_bytes(data.replace(b"tokenizer.ggml.model", b"tokenizer.ggml.mudel"))
    with pytest.raises(TokenizerError, match=r"transformers cannot read the tokenizer.*Pass the model's own"):
        uag.Assistant(bare, tokenizer=small_tokenizer(TOKENIZER))
    tokenizer = small_tokenizer(TOKENIZER)
    assistant = uag.Assistant(bare, tokenizer, tokenizer, num_candidate_tokens=4)
    assert_drafted(compare(model, batch(tokenizer) | GREEDY, assistant))


def test_load_pair_and_the_command_line_take_a_file(
    model: Any, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.save_pretrained(tmp_path)
    small_tokenizer(TOKENIZER).save_pretrained(tmp_path)
    loaded = load_pair(str(tmp_path), str(path), device="cpu", dtype=torch.float32)
    assistant = uag.Assistant(loaded.draft, loaded.draft_tokenizer, loaded.target_tokenizer, num_candidate_tokens=4)
    assert_drafted(compare(loaded.target, batch(loaded.target_tokenizer) | GREEDY, assistant))
    arguments = ["--target", str(tmp_path), "--draft", str(path), "-p", "The quick", "--max-new-tokens", "8", "--json"]
    code, out, _ = run_cli(capsys, "generate", *arguments, "--device", "cpu")
    assert code == 0
    assert json.loads(out)["stats"]["draft_passes"] == "in one call, int8"
