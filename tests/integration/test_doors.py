"""The doors of uag: equal results through each, and nothing else of transformers changes."""

from __future__ import annotations

import copy
import gc
import inspect
import threading
import weakref
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    pipeline,
)

import uag
from tests.support.calls import OracleDrafter, left_padded
from tests.support.models import tiny_draft, tiny_model, tiny_target, twin
from tests.support.tokenizers import CORPUS, small_tokenizer, wrap
from uag.drafting.pairing import ASSUMED
from uag.errors import PairError, UnsupportedError

TEXTS = ("The quick brown fox jumps over the", "Once upon a time there was", "def add(first, second):")
NEW = 30
GREEDY: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False}


@cache
def pair(name: str = "gpt2") -> tuple[Any, Any, Any, Any]:
    """A target, its tokenizer, and a draft with other ids that writes much the same."""
    target, tokenizer = tiny_target(name)
    return target, tokenizer, *twin(target, tokenizer)


def batch(tokenizer: Any, num_rows: int = 1) -> dict[str, Any]:
    return left_padded([tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS[:num_rows]])


@pytest.fixture
def installed() -> Iterator[None]:
    uag.install()
    yield
    uag.uninstall()


# ---------------------------------------------------------------------- equal results


@pytest.mark.parametrize("num_candidate_tokens", [None, 4])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_every_door_gives_plain_decodings_ids(num_rows: int, num_candidate_tokens: int | None) -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    inputs = batch(tokenizer, num_rows)
    expected = target.generate(**inputs, **GREEDY).tolist()
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=num_candidate_tokens)
    assert assistant.generate(target, **inputs, **GREEDY).tolist() == expected
    if num_candidate_tokens:
        assert 0 < assistant.stats.num_accepted_tokens < assistant.stats.num_candidate_tokens
    assert target.generate(**inputs, **GREEDY, custom_generate=assistant).tolist() == expected
    mask = inputs["attention_mask"]
    assert assistant.generate(target, inputs["input_ids"], attention_mask=mask, **GREEDY).tolist() == expected


@pytest.mark.parametrize("num_rows", [1, 3])
def test_the_installed_door(installed: None, num_rows: int) -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    inputs = batch(tokenizer, num_rows)
    expected = target.generate(**inputs, **GREEDY).tolist()
    options = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
    assert target.generate(**inputs, **GREEDY, **options).tolist() == expected
    assert uag.last_stats(target).strategy.startswith("cross-tokenizer")
    assert uag.last_stats(target).num_output_tokens == NEW * num_rows
    # by position as transformers' own signature has it: inputs, generation_config, logits_processor, ...
    del options["assistant_model"]
    by_position = (inputs["input_ids"], GenerationConfig(**GREEDY), None, None, None, None, draft)
    assert target.generate(*by_position, **options, attention_mask=inputs["attention_mask"]).tolist() == expected


def test_no_draft_decodes_plainly() -> None:
    target, tokenizer, _, _ = pair()
    assistant = uag.Assistant(None, None, tokenizer)
    for num_rows in (1, 3):
        inputs = batch(tokenizer, num_rows)
        expected = target.generate(**inputs, **GREEDY)
        assert assistant.generate(target, **inputs, **GREEDY).tolist() == expected.tolist()
    assert assistant.stats.strategy == "plain"
    assert assistant.stats.num_target_forwards == NEW


# ---------------------------------------------------------------------- install and uninstall


def test_install_is_idempotent_and_uninstall_restores_exactly() -> None:
    original = GenerationMixin.generate
    uag.uninstall()
    assert GenerationMixin.generate is original
    uag.install()
    wrapped = GenerationMixin.generate
    uag.install()
    assert GenerationMixin.generate is wrapped is not original
    uag.uninstall()
    assert GenerationMixin.generate is original
    uag.uninstall()
    assert GenerationMixin.generate is original


def test_the_wrapper_looks_like_the_original(installed: None) -> None:
    wrapped = GenerationMixin.generate
    original = wrapped.__wrapped__
    assert inspect.signature(wrapped) == inspect.signature(original)
    assert (wrapped.__name__, wrapped.__qualname__, wrapped.__module__, wrapped.__doc__) == (
        original.__name__,
        original.__qualname__,
        original.__module__,
        original.__doc__,
    )
    assert "GenerationMixin" in str(wrapped)  # auto classes look for it
    target, _, _, _ = pair()
    assert target.can_generate()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 2},
        {"generation_config": GenerationConfig(num_beams=3)},
        {"prompt_lookup_num_tokens": 3},
        {"penalty_alpha": 0.6, "top_k": 4},
        {"assistant_early_exit": 1},
        {"token_healing": True},
        {"is_assistant": True},
        {"use_mtp": True},
        {"speculation_type": "dflash"},
        {"assistant_ensemble_weight": 0.5},
        {"custom_generate": "somewhere/else"},
    ],
)
@pytest.mark.parametrize("with_draft", [False, True])
def test_other_calls_pass_through_untouched(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], with_draft: bool
) -> None:
    target, _, draft, _ = pair()
    if with_draft and not options:
        pytest.skip("this one is ours")
    calls = []

    def generate(self: Any, *args: Any, **kwargs: Any) -> str:
        calls.append((self, args, kwargs))
        return "untouched"

    monkeypatch.setattr(GenerationMixin, "generate", generate)
    uag.install()
    try:
        given = {"inputs": torch.ones((1, 2), dtype=torch.long), **options}
        if with_draft:
            given["assistant_model"] = draft
        assert target.generate(**given) == "untouched"
    finally:
        uag.uninstall()
    (model, args, kwargs) = calls[0]
    assert model is target
    assert args == ()
    assert kwargs.keys() == given.keys()
    assert all(kwargs[name] is given[name] for name in given)


def test_a_class_with_a_generate_of_its_own_is_left_alone(installed: None) -> None:
    target, tokenizer, draft, _ = pair()

    class Own(type(target)):  # type: ignore[misc]
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            return kwargs

    other = copy.copy(target)
    other.__class__ = Own
    given = {"assistant_model": draft, "tokenizer": tokenizer}
    assert other.generate(**given) == given


# ---------------------------------------------------------------------- several at a time


def test_assistants_of_one_target_alternate() -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    other, other_tokenizer = tiny_draft("gpt2")
    inputs = batch(tokenizer)
    expected = target.generate(**inputs, **GREEDY).tolist()
    assistants = [
        uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3),
        uag.Assistant(other, other_tokenizer, tokenizer, num_candidate_tokens=2),
        uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=5),
    ]
    for assistant in assistants * 2:
        assert assistant.generate(target, **inputs, **GREEDY).tolist() == expected
        assert uag.last_stats(target) is assistant.stats


def test_one_draft_serves_several_targets(installed: None) -> None:
    _, _, draft, draft_tokenizer = pair()
    for name in ("gpt2", "llama", "mistral", "gpt2"):
        target, tokenizer = tiny_target(name)
        inputs = batch(tokenizer)
        expected = target.generate(**inputs, **GREEDY).tolist()
        options = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
        assert target.generate(**inputs, **GREEDY, **options).tolist() == expected


def test_calls_in_threads(installed: None) -> None:
    """Through the installed door overlapping calls get an assistant each."""
    target, tokenizer, draft, draft_tokenizer = pair()
    inputs = batch(tokenizer)
    expected = target.generate(**inputs, **GREEDY).tolist()
    found: list[Any] = []
    options = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}

    def run() -> None:
        found.append(target.generate(**inputs, **GREEDY, **options).tolist())

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 3


class CallsGenerate(LogitsProcessor):
    def __init__(self, run: Any) -> None:
        self.run = run

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.run()
        return scores


def test_an_assistant_in_use_says_so() -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer)
    inputs = batch(tokenizer)
    processor = CallsGenerate(lambda: assistant.generate(target, **inputs, **GREEDY))
    with pytest.raises(UnsupportedError, match="in the middle of another call"):
        assistant.generate(target, **inputs, **GREEDY, logits_processor=[processor])
    expected = target.generate(**inputs, **GREEDY).tolist()
    assert assistant.generate(target, **inputs, **GREEDY).tolist() == expected  # and it is free again


def test_the_installed_door_keeps_no_model_alive(installed: None) -> None:
    target, tokenizer = tiny_target("gpt2")
    draft, draft_tokenizer = tiny_draft("gpt2")
    options = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
    target.generate(**batch(tokenizer), max_new_tokens=4, do_sample=False, **options)
    kept = [weakref.ref(draft), weakref.ref(target)]
    del draft, options
    gc.collect()
    assert kept[0]() is None
    del target
    gc.collect()
    assert kept[1]() is None


# ---------------------------------------------------------------------- the draft


@pytest.mark.parametrize("do_sample", [False, True])
def test_the_draft_is_not_changed(installed: None, do_sample: bool) -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    draft.generation_config.repetition_penalty = 1.3
    before = (
        {name: value.clone() for name, value in draft.state_dict().items()},
        copy.deepcopy(draft.config.to_dict()),
        copy.deepcopy(draft.generation_config.to_dict()),
        set(vars(draft)),
        {name: type(module) for name, module in draft.named_modules()},
        draft.training,
    )
    options = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
    target.generate(**batch(tokenizer, 3), max_new_tokens=NEW, do_sample=do_sample, **options)
    assert before[0].keys() == draft.state_dict().keys()
    assert all(torch.equal(value, draft.state_dict()[name]) for name, value in before[0].items())
    assert before[1:] == (
        draft.config.to_dict(),
        draft.generation_config.to_dict(),
        set(vars(draft)),
        {name: type(module) for name, module in draft.named_modules()},
        draft.training,
    )
    draft.generation_config.repetition_penalty = None


@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_draft_of_another_dtype(num_rows: int) -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    rough = copy.deepcopy(draft).to(torch.bfloat16)
    assistant = uag.Assistant(rough, draft_tokenizer, tokenizer, num_candidate_tokens=4)
    inputs = batch(tokenizer, num_rows)
    expected = target.generate(**inputs, **GREEDY)
    assert assistant.generate(target, **inputs, **GREEDY).tolist() == expected.tolist()
    assert assistant.stats.num_accepted_tokens > 0


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("is_shared", [False, True])
def test_a_prompt_longer_than_the_drafts_context(is_shared: bool, num_rows: int) -> None:
    target, tokenizer, _, _ = pair()
    draft_tokenizer = tokenizer if is_shared else small_tokenizer("llama")
    draft = tiny_model("gpt2", len(draft_tokenizer), n_embd=32, n_layer=1, n_head=2, n_positions=48)
    inputs = left_padded([tokenizer(text * 16, add_special_tokens=False)["input_ids"] for text in TEXTS[:num_rows]])
    assert inputs["input_ids"].shape[1] > 100
    expected = target.generate(**inputs, max_new_tokens=60, do_sample=False)
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3)
    assert assistant.generate(target, **inputs, max_new_tokens=60, do_sample=False).tolist() == expected.tolist()
    # it drafts to the very end: the window moves on
    assert assistant.stats.num_candidate_tokens > 40 * num_rows


# ---------------------------------------------------------------------- equal tokenizers


@cache
def small_vocabulary() -> Any:
    """A tokenizer of 150 entries."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    backend.decoder = decoders.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(vocab_size=150, special_tokens=["<unk>", "</s>"], show_progress=False)
    backend.train_from_iterator([text for text in CORPUS if text.isascii()], trainer)
    return wrap(backend, unk_token="<unk>", eos_token="</s>")


@cache
def padded_pair(target_size: int, draft_size: int) -> tuple[Any, Any]:
    """Two models over one tokenizer of 150 entries; the draft is the target with its head cut or grown."""
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "eos_id": 1}
    target, draft = tiny_model("gpt2", target_size, seed=4, **sizes), tiny_model("gpt2", draft_size, seed=6, **sizes)
    smaller = min(target_size, draft_size)
    with torch.no_grad():
        weights = target.state_dict()
        for name, value in draft.state_dict().items():
            source = weights[name]
            value[:smaller] = source[:smaller] if value.shape[0] != source.shape[0] else source[: value.shape[0]]
    return target, draft


@pytest.mark.parametrize("tokenizers", ["both", "target", "none"])
@pytest.mark.parametrize(("target_size", "draft_size"), [(160, 152), (152, 160), (160, 160), (150, 160)])
def test_equal_tokenizers_with_padded_heads(
    installed: None, target_size: int, draft_size: int, tokenizers: str, recwarn: pytest.WarningsRecorder
) -> None:
    tokenizer = small_vocabulary()
    assert len(tokenizer) == 150
    target, draft = padded_pair(target_size, draft_size)
    given = {
        "both": {"tokenizer": tokenizer, "assistant_tokenizer": copy.deepcopy(tokenizer)},
        "target": {"tokenizer": tokenizer},
        "none": {},
    }[tokenizers]
    for num_rows in (1, 3):
        inputs = batch(tokenizer, num_rows)
        expected = target.generate(**inputs, **GREEDY).tolist()
        draft.generation_config.num_assistant_tokens_schedule = "constant"
        draft.generation_config.num_assistant_tokens = 4
        assert target.generate(**inputs, **GREEDY, assistant_model=draft, **given).tolist() == expected
        stats = uag.last_stats(target)
        assert stats.strategy.startswith("shared-vocabulary")
        assert (ASSUMED in stats.fallbacks) == (tokenizers != "both")
        assert stats.num_accepted_tokens > 0


def test_heads_of_very_different_size_without_tokenizers_are_refused() -> None:
    target, draft = tiny_model("gpt2", 300, n_embd=32, n_head=4), tiny_model("gpt2", 600, n_embd=32, n_head=4)
    for assistant in (uag.Assistant(draft), uag.Assistant(draft, None, small_tokenizer("byte_level"))):
        with pytest.raises(PairError, match=r"300 entries for the target, 600 for the draft.* found. Pass both"):
            assistant.generate(target, torch.ones((1, 3), dtype=torch.long), max_new_tokens=2)


def test_padded_heads_of_other_special_ids_are_refused_without_tokenizers() -> None:
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 4}
    target, draft = tiny_model("gpt2", 300, eos_id=1, **sizes), tiny_model("gpt2", 296, eos_id=7, **sizes)
    with pytest.raises(PairError, match="tokenizer and draft_tokenizer cannot be found"):
        uag.Assistant(draft).generate(target, torch.ones((1, 3), dtype=torch.long), max_new_tokens=2)


def test_equal_sizes_of_different_tokenizers_take_the_cross_path(installed: None) -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    assert len(tokenizer) == len(draft_tokenizer)
    options = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
    target.generate(**batch(tokenizer), **GREEDY, **options)
    assert uag.last_stats(target).strategy.startswith("cross-tokenizer")


@pytest.mark.parametrize("are_equal", [False, True])
def test_tokenizers_are_found_where_the_models_came_from(tmp_path: Any, installed: None, are_equal: bool) -> None:
    """Equal sizes and special ids: `pipeline` passes no assistant_tokenizer here, and a user may pass none."""
    target, tokenizer, draft, draft_tokenizer = pair()
    if are_equal:
        draft, draft_tokenizer = target, tokenizer
    for folder, model, its_tokenizer in (("target", target, tokenizer), ("draft", draft, draft_tokenizer)):
        model.save_pretrained(tmp_path / folder)
        its_tokenizer.save_pretrained(tmp_path / folder)
    loaded, loaded_draft = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("target", "draft"))
    inputs = batch(tokenizer)
    expected = target.generate(**inputs, **GREEDY).tolist()
    assert loaded.generate(**inputs, **GREEDY, assistant_model=loaded_draft).tolist() == expected
    stats = uag.last_stats(loaded)
    assert stats.strategy.startswith("shared-vocabulary" if are_equal else "cross-tokenizer")
    assert stats.fallbacks == []


@pytest.mark.parametrize("are_loaded", [False, True])
def test_pipeline(tmp_path: Any, installed: None, are_loaded: bool) -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    if are_loaded:
        for folder, model, its_tokenizer in (("target", target, tokenizer), ("draft", draft, draft_tokenizer)):
            model.save_pretrained(tmp_path / folder)
            its_tokenizer.save_pretrained(tmp_path / folder)
        target, draft = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("target", "draft"))
    plain = pipeline("text-generation", model=target, tokenizer=tokenizer)
    expected = plain(TEXTS[0], return_tensors=True, **GREEDY)
    assisted = pipeline(
        "text-generation", model=target, tokenizer=tokenizer, assistant_model=draft, assistant_tokenizer=draft_tokenizer
    )
    assert assisted.assistant_tokenizer is None  # dropped by transformers: sizes and special ids agree
    assert assisted(TEXTS[0], return_tensors=True, **GREEDY) == expected
    stats = uag.last_stats(target)
    assert stats.strategy.startswith("cross-tokenizer" if are_loaded else "shared-vocabulary")
    assert (ASSUMED in stats.fallbacks) == (not are_loaded)


# ---------------------------------------------------------------------- streamers


class Recorder:
    def __init__(self, fails_at: int | None = None) -> None:
        self.put_ids: list[Any] = []
        self.num_ends = 0
        self.fails_at = fails_at

    def put(self, value: torch.Tensor) -> None:
        if len(self.put_ids) == self.fails_at:
            raise RuntimeError("the consumer has gone")
        self.put_ids.append(value.tolist())

    def end(self) -> None:
        self.num_ends += 1


@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_streamer_gets_what_plain_decoding_puts(installed: None, num_rows: int) -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    inputs = batch(tokenizer, num_rows)
    expected = Recorder()
    target.generate(**inputs, **GREEDY, streamer=expected)
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=4)
    found = Recorder()
    assistant.generate(target, **inputs, **GREEDY, streamer=found)
    assert found.put_ids == expected.put_ids
    assert found.num_ends == expected.num_ends == 1
    found = Recorder()
    options = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
    target.generate(**inputs, **GREEDY, **options, streamer=found)
    assert found.put_ids == expected.put_ids
    assert found.num_ends == 1


def test_a_streamer_ends_after_an_error_too() -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    inputs = batch(tokenizer)
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer)
    # in the loop
    streamer = Recorder(fails_at=5)
    with pytest.raises(RuntimeError, match="the consumer has gone"):
        assistant.generate(target, **inputs, **GREEDY, streamer=streamer)
    assert streamer.num_ends == 1
    # refused before it
    for options in ({"num_beams": 2}, {"cache_implementation": "static"}, {"nonsense": 1}):
        streamer = Recorder()
        with pytest.raises(ValueError, match=r"beams|cannot be rewound|nonsense"):
            assistant.generate(target, **inputs, **(GREEDY | options), streamer=streamer)
        assert streamer.num_ends == 1
    assert assistant.generate(target, **inputs, **GREEDY).tolist() == target.generate(**inputs, **GREEDY).tolist()


# ---------------------------------------------------------------------- where rows end


def oracle(target: Any, tokenizer: Any, expected: torch.Tensor, width: int, **options: Any) -> uag.Assistant:
    drafter = OracleDrafter(expected[:, width:].tolist(), target.get_output_embeddings().weight.shape[0], **options)
    return uag.Assistant(None, None, tokenizer, drafter=drafter, num_candidate_tokens=6)


@pytest.mark.parametrize("place", ["keyword", "config", "model"])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_stop_strings(installed: None, num_rows: int, place: str) -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    target, inputs = copy.deepcopy(target), batch(tokenizer, num_rows)
    tokenizer.pad_token = tokenizer.eos_token
    width = inputs["input_ids"].shape[1]
    long = target.generate(**inputs, **GREEDY, pad_token_id=0)
    # a string that row 0 writes at its tenth token, in the middle of a block
    stop = tokenizer.decode(long[0, width + 9 : width + 10])
    given: dict[str, Any] = {"pad_token_id": 0}
    if place == "keyword":
        given |= GREEDY | {"stop_strings": [stop]}
    elif place == "config":
        given["generation_config"] = GenerationConfig(**GREEDY, stop_strings=stop)
    else:
        target.generation_config.stop_strings = [stop]
        given |= GREEDY
    expected = target.generate(**inputs, **given, tokenizer=tokenizer)
    assert expected.shape[1] < long.shape[1] or num_rows > 1
    assistant = oracle(target, tokenizer, long, width, spoil=7)
    assert assistant.generate(target, **inputs, **given).tolist() == expected.tolist()
    assert assistant.stats.num_accepted_tokens > 0
    options = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
    assert target.generate(**inputs, **given, **options).tolist() == expected.tolist()
    with pytest.raises(PairError, match=r"stop_strings=.*need the target's tokenizer"):
        uag.Assistant(draft, draft_tokenizer).generate(target, **inputs, **given)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("max_length", [31, 32, 33])
def test_up_to_the_models_last_position(num_rows: int, max_length: int) -> None:
    tokenizer = small_tokenizer("byte_level")
    target = tiny_model("gpt2", len(tokenizer), n_embd=32, n_layer=2, n_head=4, n_positions=32)
    inputs = batch(tokenizer, num_rows)
    inputs = {name: value[:, -12:] for name, value in inputs.items()}
    expected = target.generate(**inputs, max_length=max_length, do_sample=False)
    assert expected.shape[1] == max_length
    assistant = oracle(target, tokenizer, expected, inputs["input_ids"].shape[1])
    assert assistant.generate(target, **inputs, max_length=max_length, do_sample=False).tolist() == expected.tolist()
    assert assistant.stats.num_accepted_tokens > 0
    draft, draft_tokenizer = twin(target, tokenizer)
    cross = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=6)
    assert cross.generate(target, **inputs, max_length=max_length, do_sample=False).tolist() == expected.tolist()


@pytest.mark.parametrize("max_new_tokens", [1, 2, 3])
def test_very_short_outputs(max_new_tokens: int) -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=5)
    for num_rows in (1, 3):
        inputs = batch(tokenizer, num_rows)
        expected = target.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
        found = assistant.generate(target, **inputs, max_new_tokens=max_new_tokens, do_sample=False)
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("spoil", [0, 6])
def test_eos_can_be_drafted(num_rows: int, spoil: int) -> None:
    """Rows end at different steps, each where plain decoding ends it, and are padded as there."""
    target, tokenizer, _, _ = pair()
    inputs = batch(tokenizer, num_rows)
    width = inputs["input_ids"].shape[1]
    long = target.generate(**inputs, **GREEDY, pad_token_id=0)
    ends = [int(long[0, width + 8]), int(long[-1, width + 15])]
    options = GREEDY | {"eos_token_id": ends, "pad_token_id": 3}
    expected = target.generate(**inputs, **options)
    assert expected.shape[1] < long.shape[1] or num_rows > 1
    assistant = oracle(target, tokenizer, long, width, spoil=spoil)
    assert assistant.generate(target, **inputs, **options).tolist() == expected.tolist()
    lengths = [next((i + 1 for i, t in enumerate(row[width:]) if t in ends), NEW) for row in expected.tolist()]
    assert assistant.stats.num_output_tokens == sum(lengths)
    if not spoil and num_rows == 1:
        assert assistant.stats.origins[0][-1]  # the EOS itself was drafted


def test_a_draft_model_drafts_eos() -> None:
    """The draft's own EOS, another id, becomes the target's."""
    target, tokenizer, _, _ = pair()
    target = copy.deepcopy(target)
    target.generation_config.eos_token_id = eos_id = tokenizer.eos_token_id
    target.generation_config.pad_token_id = 0
    inputs = batch(tokenizer)
    # teach the target to end: five tokens behind the prompt it writes EOS
    with torch.no_grad():
        position = target.transformer.wpe.weight[inputs["input_ids"].shape[1] + 5]
        position.copy_(30 * torch.sign(target.lm_head.weight[eos_id]))
    draft, draft_tokenizer = twin(target, tokenizer, noise=0.0)
    assert draft_tokenizer.eos_token_id != eos_id
    expected = target.generate(**inputs, **GREEDY)
    assert expected[0, -1] == eos_id
    for size in (2, 3, 4, 5, 6):
        assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=size)
        assert assistant.generate(target, **inputs, **GREEDY).tolist() == expected.tolist()
        if assistant.stats.origins[0][-1]:
            return
    pytest.fail("no draft length made the draft propose EOS")


# ---------------------------------------------------------------------- prompts


CHAT = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("draft_name", ["byte_level_digits", "byte_level_llama3", "llama", "wordpiece", "byt5"])
def test_chat_markers(draft_name: str) -> None:
    """They become the draft's own markers, or text where it has none; and the output is plain decoding's."""
    target, tokenizer, _, _ = pair()
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    draft_tokenizer = small_tokenizer(draft_name)
    draft = tiny_model("llama", len(draft_tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
                       num_key_value_heads=4, intermediate_size=32)  # fmt: skip
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3)
    inputs = torch.tensor([tokenizer(CHAT)["input_ids"]])
    expected = target.generate(inputs, **GREEDY)
    fed: list[int] = []
    handle = draft.register_forward_pre_hook(
        lambda module, args, kwargs: fed.extend(kwargs["input_ids"][0].tolist()), with_kwargs=True
    )
    assert assistant.generate(target, inputs, **GREEDY).tolist() == expected.tolist()
    handle.remove()
    text = draft_tokenizer.decode(fed)
    if draft_name == "byte_level_digits":
        marker = draft_tokenizer.convert_tokens_to_ids("<|im_start|>")
        assert fed.count(marker) == 2
    elif draft_name == "llama":
        assert text.count("<|im_start|>") == 2  # as plain text
    assert "ello" in text


@pytest.mark.parametrize(
    "prompt",
    ["The quick bro", "naïve caf", "日本語のテキスト", "x = 12", " ", "\n\n", "a", "  def"],
)
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_prompts_that_end_anywhere(prompt: str, cut: int) -> None:
    """In the middle of a word, of a run of spaces or of a UTF-8 character."""
    target, tokenizer, _, _ = pair()
    ids = tokenizer(prompt)["input_ids"]
    ids = ids[: max(1, len(ids) - cut)]
    inputs = torch.tensor([ids])
    expected = target.generate(inputs, **GREEDY).tolist()
    for draft, draft_tokenizer in (tiny_draft("gpt2"), pair()[2:]):
        assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3)
        assert assistant.generate(target, inputs, **GREEDY).tolist() == expected
        assert assistant.stats.num_candidate_tokens > 0


def test_prompts_of_nearly_nothing() -> None:
    target, tokenizer, _, _ = pair()
    drafts = [(*tiny_draft(name),) for name in ("gpt2", "qwen2", "gpt_neox")]
    for inputs in (torch.tensor([[tokenizer.eos_token_id]]), torch.tensor([[5]]), None):
        options = GREEDY | ({"bos_token_id": tokenizer.bos_token_id} if inputs is None else {})
        expected = target.generate(inputs, **options).tolist()
        for draft, draft_tokenizer in drafts:
            assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3)
            assert assistant.generate(target, inputs, **options).tolist() == expected
            assert assistant.stats.num_candidate_tokens > 0


@pytest.mark.parametrize("in_step", [False, True])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_embeddings_as_prompt(num_rows: int, in_step: bool) -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    inputs = batch(tokenizer, num_rows)
    given = {
        "inputs_embeds": target.get_input_embeddings()(inputs["input_ids"]).detach(),
        "attention_mask": inputs["attention_mask"],
    }
    expected = target.generate(**given, **GREEDY)
    assistant = oracle(target, tokenizer, expected, 0)
    found = assistant.generate(target, **given, **GREEDY, return_dict_in_generate=in_step)
    assert (found.sequences if in_step else found).tolist() == expected.tolist()
    assert 0 < assistant.stats.num_accepted_tokens < assistant.stats.num_candidate_tokens
    cross = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3)
    assert cross.generate(target, **given, **GREEDY).tolist() == expected.tolist()


def test_embeddings_up_to_the_models_last_position() -> None:
    """The ids alone do not tell how far the cache reaches; candidates behind an EOS must not go beyond it."""
    tokenizer = small_tokenizer("byte_level")
    target = tiny_model("gpt2", len(tokenizer), n_embd=32, n_layer=2, n_head=4, n_positions=32)
    ids = batch(tokenizer)["input_ids"][:, -12:]
    given = {"inputs_embeds": target.get_input_embeddings()(ids).detach()}
    num_left = 33 - ids.shape[1]  # the last token written needs no position
    long = target.generate(**given, max_new_tokens=num_left, do_sample=False)[0].tolist()
    eos_id = long[-3]
    assert eos_id not in long[:-3]
    options: dict[str, Any] = {"max_new_tokens": 90, "do_sample": False, "eos_token_id": eos_id, "pad_token_id": 0}
    expected = target.generate(**given, **options)
    assert expected[0].tolist() == long[:-2]
    assistant = oracle(target, tokenizer, torch.tensor([long + [7] * 9]), 0, spoil=0)
    assert assistant.generate(target, **given, **options).tolist() == expected.tolist()
    assert assistant.stats.num_accepted_tokens > 0


@pytest.mark.parametrize("num_rows", [1, 3])
def test_token_types(num_rows: int) -> None:
    """GPT-2 adds an embedding per type; each new token has the type of the one before."""
    target, tokenizer, _, _ = pair()
    inputs = batch(tokenizer, num_rows)
    width = inputs["input_ids"].shape[1]
    inputs["token_type_ids"] = (torch.arange(width) * 5 % 7).repeat(num_rows, 1)
    expected = target.generate(**inputs, **GREEDY)
    assert expected.tolist() != target.generate(**batch(tokenizer, num_rows), **GREEDY).tolist()
    assistant = oracle(target, tokenizer, expected, width)
    assert assistant.generate(target, **inputs, **GREEDY).tolist() == expected.tolist()
    assert 0 < assistant.stats.num_accepted_tokens < assistant.stats.num_candidate_tokens


@pytest.mark.parametrize("only_new_ids", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "mistral", "gemma2"])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_cache_of_the_user_is_continued(name: str, num_rows: int, only_new_ids: bool) -> None:
    target, tokenizer = tiny_target(name)
    inputs = batch(tokenizer, num_rows)
    width = inputs["input_ids"].shape[1]
    options = {"do_sample": False, "return_dict_in_generate": True}
    text = target.config.get_text_config()

    def two_calls(generate: Any) -> tuple[list[Any], Any]:
        cache = DynamicCache(config=text)
        first = generate(**inputs, past_key_values=cache, max_new_tokens=12, **options)
        # The last token written is not in the cache yet; the whole text may be given again, or what is new alone.
        more = torch.cat([first.sequences[:, -1:] if only_new_ids else first.sequences, inputs["input_ids"][:, -4:]], 1)
        mask = torch.cat([inputs["attention_mask"], torch.ones((num_rows, 16), dtype=torch.long)], dim=-1)
        second = generate(
            input_ids=more, attention_mask=mask, past_key_values=first.past_key_values, max_new_tokens=12, **options
        )
        assert second.past_key_values is cache
        return [first.sequences.tolist(), second.sequences.tolist()], cache

    expected, expected_cache = two_calls(target.generate)
    calls = iter(expected)

    class Continuing(OracleDrafter):
        def start(self, prompts: Any, source_ids: Any = None) -> None:
            super().start(prompts, source_ids)
            self.outputs = [row[-12:] for row in next(calls)]

    head = target.get_output_embeddings().weight.shape[0]
    assistant = uag.Assistant(None, None, tokenizer, drafter=Continuing([], head), num_candidate_tokens=4)
    found, cache = two_calls(lambda **given: assistant.generate(target, **given))
    assert found == expected
    assert assistant.stats.num_accepted_tokens > 0
    assert cache.get_seq_length() == expected_cache.get_seq_length() == width + 12 + 4 + 12 - 1
    mask = torch.cat([inputs["attention_mask"], torch.ones((num_rows, 27), dtype=torch.long)], dim=-1).bool()
    for layer, expected_layer in zip(cache.layers, expected_cache.layers, strict=True):
        assert layer.keys.shape == expected_layer.keys.shape
        is_text = mask[:, -layer.keys.shape[2] :]  # what lies in padded slots means nothing
        for kind in ("keys", "values"):
            found_rows = getattr(layer, kind).transpose(1, 2)[is_text]
            torch.testing.assert_close(
                found_rows, getattr(expected_layer, kind).transpose(1, 2)[is_text], rtol=1e-3, atol=1e-3
            )
        assert getattr(layer, "record_past", False) is False


@pytest.mark.parametrize("num_rows", [1, 3])
def test_prefill_in_chunks(num_rows: int) -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    inputs = batch(tokenizer, num_rows)
    expected = target.generate(**inputs, **GREEDY).tolist()
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=4)
    assert assistant.generate(target, **inputs, **GREEDY, prefill_chunk_size=5).tolist() == expected


def test_return_sequences() -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    inputs = batch(tokenizer)
    expected = target.generate(**inputs, **GREEDY).tolist()
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=4)
    assert assistant.generate(target, **inputs, **GREEDY, num_return_sequences=1).tolist() == expected
    with pytest.raises(ValueError, match="num_return_sequences"):
        assistant.generate(target, **inputs, **GREEDY, num_return_sequences=3)
    torch.manual_seed(3)
    sampled = target.generate(**inputs, max_new_tokens=12, do_sample=True, num_return_sequences=3).tolist()
    torch.manual_seed(3)
    found = assistant.generate(target, **inputs, max_new_tokens=12, do_sample=True, num_return_sequences=3)
    assert found.tolist() == sampled


def test_a_config_that_samples(installed: None) -> None:
    """Chat models often set it."""
    target, tokenizer, draft, draft_tokenizer = pair()
    inputs = batch(tokenizer)
    config = GenerationConfig(do_sample=True, temperature=0.8, top_k=30, max_new_tokens=20)
    options = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
    torch.manual_seed(11)
    expected = target.generate(**inputs, generation_config=config).tolist()
    state = torch.get_rng_state()
    torch.manual_seed(11)
    assert target.generate(**inputs, generation_config=config, **options).tolist() == expected
    assert torch.equal(torch.get_rng_state(), state)
    assert config.to_dict() == GenerationConfig(do_sample=True, temperature=0.8, top_k=30, max_new_tokens=20).to_dict()
