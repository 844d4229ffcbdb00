"""`uag.attach()`: every `generate` of a model is assisted and equal, and nothing of uag stays in or with the model."""

import copy
import functools
import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, GenerationMixin

import uag
from tests.support.callers import OracleDrafter, Puts
from tests.support.calls import (
    GREEDY,
    NEW,
    PROMPTS,
    TEXTS,
    assistant_of,
    batch,
    draft_options,
    left_padded,
    pair,
    seeded,
)
from tests.support.grids import ROWS_AND_MODES
from tests.support.models import tiny_draft, tiny_target
from uag import installing
from uag.errors import LoadingError, OptionError, PairError, UnsupportedError
from uag.hf.models import head_size

pytestmark = pytest.mark.usefixtures("detached")


@pytest.fixture
def target() -> Any:
    installing._logged.clear()
    attach(pair()[0], num_candidate_tokens=4)
    return pair()[0]


def attach(model: Any, **options: Any) -> uag.Assistant:
    _, tokenizer, draft, draft_tokenizer = pair()
    return uag.attach(model, draft, tokenizer=tokenizer, draft_tokenizer=draft_tokenizer, **options)


def plainly(model: Any, **options: Any) -> Any:
    generate = getattr(GenerationMixin.generate, "__uag_original__", GenerationMixin.generate)
    return seeded(3, generate, model, **options)


@ROWS_AND_MODES
def test_calls_without_a_draft_are_assisted_and_equal(target: Any, num_rows: int, options: dict[str, Any]) -> None:
    inputs = left_padded(PROMPTS[:num_rows])
    due = plainly(target, **inputs, **options).tolist()
    state = torch.get_rng_state()
    streamer = Puts()
    assert seeded(3, target.generate, **inputs, **options, streamer=streamer).tolist() == due
    assert torch.equal(torch.get_rng_state(), state)
    assert (len(streamer.puts), streamer.num_ends) == (NEW + 1, 1)
    stats = uag.last_stats(target)
    assert stats.strategy == "cross-tokenizer"
    assert 0 < stats.num_accepted_tokens < stats.num_candidate_tokens
    sums = ("num_rounds", "num_output_tokens", "num_candidate_tokens", "num_accepted_tokens", "total_s")
    expected = {name: getattr(stats, name) for name in (*sums, "acceptance_rate")}
    expected |= {"num_calls": 1, "num_fallbacks": 0, "tokens_per_second": stats.num_output_tokens / stats.total_s}
    assert installing._attachments[target][0].totals.to_dict() == expected


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"num_beams": 2}, "num_beams=2"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3"),
        ({"assistant_model": None}, "it has its own assistant_model="),
        ({"custom_generate": None}, "it has its own custom_generate="),
    ],
)
def test_unassisted_calls(target: Any, options: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture) -> None:
    _, tokenizer, draft, _ = pair()
    own = {"assistant_model": draft, "custom_generate": assistant_of()}
    options = {name: own.get(name, value) for name, value in options.items()}
    inputs = batch(tokenizer)
    expected = plainly(target, **inputs, **GREEDY, **options).tolist()
    with caplog.at_level(logging.WARNING, "uag"):
        for _ in range(2):
            assert target.generate(**inputs, **GREEDY, **options).tolist() == expected
    messages = [record.getMessage() for record in caplog.records if record.name == "uag"]
    assert messages == [f"A call of LlamaForCausalLM is not assisted by uag: {reason}"]
    assert installing._attachments[target][0].totals.num_calls == 0


def test_a_class_that_overrides_generate_runs_as_in_transformers() -> None:
    target, tokenizer = pair()[:2]

    class Own(type(target)):  # type: ignore[misc]
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            return super().generate(*args, **kwargs)

    other = copy.copy(target)
    other.__class__ = Own
    attach(other)
    inputs = batch(tokenizer)
    assert other.generate(**inputs, **GREEDY).tolist() == target.generate(**inputs, **GREEDY).tolist()
    assert installing._attachments[other][0].totals.num_calls == 0


def test_overlapping_calls_are_equal_and_counted(target: Any) -> None:
    rows = [left_padded([prompt]) for prompt in PROMPTS]
    expected = [plainly(target, **row, **GREEDY).tolist() for row in rows]
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda row: target.generate(**row, **GREEDY).tolist(), rows * 2))
    assert outputs == expected * 2
    assert installing._attachments[target][0].totals.num_calls == 6
    assistant = installing._attachments[target][0]
    for row in rows:
        target.generate(**row, **GREEDY)
        assert uag.last_stats(target) is assistant.stats


def test_overlapping_calls_share_a_memory() -> None:
    target, tokenizer, _, _ = pair()
    memory = uag.attach(target, None, tokenizer=tokenizer, memory=True).memory
    inputs = left_padded(PROMPTS[:1])
    prompt_length = inputs["input_ids"].shape[1]

    def nested(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] == prompt_length:
            target.generate(**inputs, **GREEDY)
        return scores

    target.generate(**inputs, **GREEDY, logits_processor=[nested])
    assert memory is not None
    assert len(memory) == 2 * (prompt_length + GREEDY["max_new_tokens"])


def test_overlapping_calls_take_turns_with_a_custom_drafter() -> None:
    target, tokenizer, _, _ = pair()
    inputs = left_padded(PROMPTS[:1])
    expected = plainly(target, **inputs, **GREEDY)
    width = inputs["input_ids"].shape[1]
    drafter = OracleDrafter(expected[:, width:].tolist(), head_size(target))
    uag.attach(target, None, tokenizer=tokenizer, drafter=drafter, num_candidate_tokens=4)
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda _: target.generate(**inputs, **GREEDY).tolist(), range(12)))
    assert outputs == [expected.tolist()] * 12
    assert installing._attachments[target][0].totals.num_accepted_tokens > 0


def test_detach_restores_and_a_second_attach_replaces(target: Any) -> None:
    routed = GenerationMixin.generate
    second = attach(target)
    assert GenerationMixin.generate is routed
    target.generate(**batch(pair()[1]), **GREEDY)
    assert uag.last_stats(target) is second.stats
    uag.detach(target)
    uag.detach(target)
    assert not hasattr(GenerationMixin.generate, "__uag_original__")
    assert target not in installing._attachments


def test_attach_beside_install(target: Any, installed: None) -> None:
    inputs = batch(pair()[1])
    expected = plainly(target, **inputs, **GREEDY).tolist()
    assert target.generate(**inputs, **GREEDY, prediction=TEXTS[0]).tolist() == expected
    assert installing._attachments[target][0].totals.num_calls == 1
    assert target.generate(**inputs, **GREEDY, **draft_options()).tolist() == expected
    assert uag.last_stats(target).strategy == "cross-tokenizer"
    assert installing._attachments[target][0].totals.num_calls == 1
    uag.uninstall()
    assert target.generate(**inputs, **GREEDY).tolist() == expected
    assert installing._attachments[target][0].totals.num_calls == 2


@pytest.mark.parametrize("is_named", [False, True], ids=["plain function", "functools.wraps"])
def test_a_wrapper_of_another_library(target: Any, is_named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Monitoring tools wrap `generate`, too: their wrapper is called and stays."""
    inputs = batch(pair()[1])
    original = GenerationMixin.generate.__uag_original__
    expected = seeded(3, original, target, **inputs, **GREEDY).tolist()
    inner, calls = GenerationMixin.generate, []

    def other(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return inner(*args, **kwargs)

    wrapper = functools.wraps(inner)(other) if is_named else other
    monkeypatch.setattr(GenerationMixin, "generate", wrapper)
    assert target.generate(**inputs, **GREEDY).tolist() == expected
    assert installing._attachments[target][0].totals.num_calls == 1
    uag.detach(target)
    assert GenerationMixin.generate is wrapper
    calls.clear()
    assert target.generate(**inputs, **GREEDY).tolist() == expected
    assert len(calls) == 1
    attach(target)
    target.generate(**inputs, **GREEDY)
    assert installing._attachments[target][0].totals.num_calls == 1
    uag.detach(target)
    monkeypatch.setattr(GenerationMixin, "generate", original)


def test_a_tokenizer_for_no_draft_is_ignored_as_in_transformers(target: Any) -> None:
    tokenizer = pair()[1]
    options = {**batch(tokenizer), **GREEDY, "assistant_tokenizer": tokenizer}
    assert target.generate(**options).tolist() == plainly(target, **options).tolist()


def test_nothing_of_uag_is_copied_or_saved(target: Any, tmp_path: Path) -> None:
    inputs = batch(pair()[1])
    expected = target.generate(**inputs, **GREEDY).tolist()
    target.save_pretrained(tmp_path)
    copies = [copy.copy(target), copy.deepcopy(target), pickle.loads(pickle.dumps(target))]
    copies.append(AutoModelForCausalLM.from_pretrained(tmp_path))
    num_calls = installing._attachments[target][0].totals.num_calls
    for other in copies:
        assert other.generate(**inputs, **GREEDY).tolist() == expected
    assert installing._attachments[target][0].totals.num_calls == num_calls
    assert not [name for file in tmp_path.iterdir() for name in (b"uag", b"draft") if name in file.read_bytes()[:4096]]


@pytest.mark.parametrize("is_wrapped_first", [False, True])
def test_lora(is_wrapped_first: bool) -> None:
    target, tokenizer = tiny_target("llama")
    draft, draft_tokenizer = tiny_draft("llama")
    options = {"tokenizer": tokenizer, "draft_tokenizer": draft_tokenizer, "num_candidate_tokens": 3}
    if not is_wrapped_first:
        uag.attach(target, draft, **options)
    lora: PeftModel = get_peft_model(target, LoraConfig(target_modules=["q_proj"], init_lora_weights=False)).eval()
    if is_wrapped_first:
        uag.attach(lora, draft, **options)
    inputs = batch(tokenizer)
    assisted = lora.generate(**inputs, **GREEDY).tolist()
    assert uag.last_stats(lora).num_candidate_tokens
    assert installing._attachments[target][0].totals.num_calls == 1
    uag.detach(lora)
    assert lora.generate(**inputs, **GREEDY).tolist() == assisted


def test_what_cannot_be_attached() -> None:
    target, tokenizer, draft, _ = pair()
    with pytest.raises(UnsupportedError, match=r"'Linear' is not a transformers model that generates. Pass the model"):
        uag.attach(torch.nn.Linear(2, 2), draft)
    with pytest.raises(UnsupportedError, match="'str' is not a transformers model"):
        uag.attach("target", draft)
    with pytest.raises(OptionError, match="num_candidate_tokens"):
        uag.attach(target, draft, tokenizer=tokenizer, num_candidate_tokens=-1)
    with pytest.raises(OptionError, match="The draft contains the target"):
        uag.attach(target, target, tokenizer=tokenizer)
    small, _ = tiny_draft("llama")
    with pytest.raises(PairError, match="their tokenizers may differ"):
        uag.attach(target, small)
    with pytest.raises(LoadingError, match=r"There is no GGUF file 'none\.gguf'"):
        uag.attach(target, "./none.gguf", tokenizer=tokenizer)
    assert target not in installing._attachments
