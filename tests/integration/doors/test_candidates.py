"""The candidate generator inside transformers' own assisted decoding."""

import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import pytest
import torch
from transformers import (
    DynamicCache,
    EosTokenCriteria,
    GenerationConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
)

import uag
from tests.support.callers import EndsAt, Looks, OracleDrafter
from tests.support.grids import covering
from tests.support.models import tiny_draft, tiny_target
from uag import CandidateGenerator, candidates
from uag.adapters import detect
from uag.candidates import CandidateGeneratorMixin
from uag.decoding import Call
from uag.drafting import Pairing
from uag.errors import OptionError
from uag.hf.cache.caches import CACHE
from uag.hf.models import max_positions
from uag.projection import vocabulary

NEW = 24
TEXT = "The quick brown fox jumps over the lazy dog, and"


@cache
def models(name: str) -> tuple[Any, Any, Any, Any]:
    return (*tiny_target(name), *tiny_draft(name))


@cache
def plugged(name: str) -> Any:
    target, _ = tiny_target(name)
    target.__class__ = type("Target", (CandidateGeneratorMixin, type(target)), {})
    return target


def prompt(tokenizer: Any, text: str = TEXT) -> torch.Tensor:
    return torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])


@covering("name, do_sample", ("llama", "gemma2", "t5"), (False, True), strength=1)
def test_inside_transformers_loop(name: str, do_sample: bool) -> None:
    target, tokenizer, draft, draft_tokenizer = models(name)
    inputs = prompt(tokenizer)
    options = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
    Pairing(draft, tokenizer, draft_tokenizer)  # its first trial runs the draft
    with count_calls_of(draft) as calls:
        ids = plugged(name).generate(inputs, max_new_tokens=NEW, do_sample=do_sample, **options)
    assert bool(calls) == (name != "gemma2")  # a class of one's own has no trial beyond its window
    if not do_sample:
        expected = target.generate(inputs, max_new_tokens=NEW, do_sample=False)
        assert ids.tolist() == expected.tolist()
    assert ids.shape[1] == NEW + (1 if name == "t5" else inputs.shape[1])


@pytest.mark.parametrize("draft", ["demo", LlamaForCausalLM])
def test_what_is_no_model_is_no_draft(draft: Any) -> None:
    tokenizer = models("llama")[1]
    options = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": tokenizer}
    with pytest.raises(OptionError, match=r"assistant_model=.* must be a model"):
        plugged("llama").generate(prompt(tokenizer), max_new_tokens=2, do_sample=False, **options)


def test_without_a_draft_model_transformers_own_generator_is_used() -> None:
    target, tokenizer, _, _ = models("llama")
    inputs = prompt(tokenizer)
    expected = target.generate(inputs, max_new_tokens=8, do_sample=False)
    ids = plugged("llama").generate(inputs, max_new_tokens=8, do_sample=False, prompt_lookup_num_tokens=2)
    assert ids.tolist() == expected.tolist()


def prepared(max_length: int | None = None, eos_id: int | None = None) -> GenerationConfig:
    config = GenerationConfig(max_length=max_length)
    config._eos_token_tensor = None if eos_id is None else torch.tensor([eos_id])
    config._pad_token_tensor = None
    return config


def call_of(target: Any, config: GenerationConfig, ids: torch.Tensor) -> Call:
    kwargs = {CACHE: DynamicCache(config=target.config), "use_cache": True}
    return Call(target, ids, (), (), config, kwargs)


def oracle_generator(outputs: list[int], config: GenerationConfig, **options: Any) -> CandidateGenerator:
    drafter = OracleDrafter([outputs], 1000, spoil=0)
    return CandidateGenerator(drafter, call_of(models("gpt2")[0], config, torch.tensor([[1]])), **options)


def test_it_learns_what_was_accepted_from_the_ids_alone() -> None:
    outputs = [11, 12, 13, 14, 15, 16, 17, 18]
    generator = oracle_generator(outputs, prepared(), num_candidate_tokens=3)
    first, logits = generator.get_candidates(torch.tensor([[1, 2]]))
    assert first.tolist() == [[1, 2, 11, 12, 13]]
    assert logits is None
    # Two candidates were accepted and the target wrote the third id itself.
    second, _ = generator.get_candidates(torch.tensor([[1, 2, 11, 12, 13]]))
    assert second.tolist() == [[1, 2, 11, 12, 13, 14, 15, 16]]
    # Called twice with the same ids, it proposes the same candidates.
    again, _ = generator.get_candidates(torch.tensor([[1, 2, 11, 12, 13]]))
    assert again.tolist() == second.tolist()
    # Other ids restart it.
    other, _ = generator.get_candidates(torch.tensor([[1, 3]]))
    assert other.tolist() == [[1, 3, 11, 12, 13]]
    assert generator.drafter.prompts == [[1, 3]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_real_draft_follows_any_ids(name: str) -> None:
    """For ids that grow or repeat. For ids that diverge, it proposes the same as a fresh generator."""
    target, tokenizer, draft, draft_tokenizer = models(name)

    def fresh() -> CandidateGenerator:
        drafter, _ = Pairing(draft, tokenizer, draft_tokenizer).drafter_for(target)
        return CandidateGenerator(drafter, call_of(target, prepared(), long), num_candidate_tokens=4)

    long = prompt(tokenizer, TEXT + " then sleeps; 12345 + y")
    shown = [long[:, :size] for size in (5, 9, 9, 13, 7)] + [torch.cat([long[:, :7], long[:, 3:6]], dim=1)]
    generator = fresh()
    for place, ids in enumerate(shown):
        found, _ = generator.get_candidates(ids)
        assert found[:, : ids.shape[1]].tolist() == ids.tolist()
        assert found.shape[1] > ids.shape[1]
        assert int(found.max()) < target.get_output_embeddings().weight.shape[0]
        if place in (0, 4):  # text that grows keeps its draft tokens, so that other candidates may follow
            assert found.tolist() == fresh().get_candidates(ids)[0].tolist()


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"max_length": 6}, [1, 2, 11, 12, 13]),  # the target writes the sixth id itself
        ({"max_length": 3}, [1, 2]),
        ({"eos_id": 12}, [1, 2, 11, 12]),
    ],
)
def test_candidates_end_at_limits_eos_and_the_last_position(limits: dict[str, int], expected: list[int]) -> None:
    generator = oracle_generator(list(range(11, 31)), prepared(**limits), num_candidate_tokens=8)
    assert generator.get_candidates(torch.tensor([[1, 2]]))[0].tolist() == [expected]
    ids = torch.ones((1, max_positions(models("gpt2")[0]) - 3), dtype=torch.long)
    assert oracle_generator(list(range(11, 31)), prepared()).get_candidates(ids)[0].shape[1] == ids.shape[1] + 3


@contextmanager
def count_calls_of(model: Any) -> Iterator[list[int]]:
    calls: list[int] = []
    with model.register_forward_pre_hook(lambda *_: calls.append(1)):
        yield calls


@pytest.mark.parametrize("change", ["hook", "processor"])
def test_the_verdict_of_uags_own_loop_is_obeyed(change: str) -> None:
    target, tokenizer, draft, draft_tokenizer = models("llama")
    inputs, model = prompt(tokenizer), plugged("llama")
    options: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False}
    if change == "processor":
        options["logits_processor"] = LogitsProcessorList([Looks()])
    expected = target.generate(inputs, **options).tolist()
    options |= {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
    Pairing(draft, tokenizer, draft_tokenizer)  # its first trial runs the draft
    hook = model.lm_head.register_forward_hook(lambda *_: None) if change == "hook" else nullcontext()
    with hook, count_calls_of(draft) as calls:
        assert model.generate(inputs, **options).tolist() == expected
    assert not calls
    (reason,) = uag.last_stats(model).fallbacks
    assert ("other code changes" if change == "hook" else "Looks may keep state") in reason


def test_the_drafter_is_released_with_the_generator() -> None:
    released: list[int] = []
    drafter = OracleDrafter([[11, 12, 13]], 1000, spoil=0)
    drafter.release = lambda: released.append(1)  # type: ignore[method-assign]
    generator = CandidateGenerator(drafter, call_of(models("gpt2")[0], prepared(), torch.tensor([[1, 2]])))
    del generator
    gc.collect()
    assert released == [1]


def same_draft_options(tokenizer: Any) -> dict[str, Any]:
    return {"assistant_model": tiny_target("llama")[0], "tokenizer": tokenizer, "assistant_tokenizer": tokenizer}


@pytest.mark.parametrize("place", range(6, 10))
@pytest.mark.parametrize("kind", ["stop string", "own criterion", "EOS", "length"])
def test_criteria_that_are_met_inside_a_block_end_the_text_there(kind: str, place: int) -> None:
    """transformers' loop looks at a block's end only."""
    target, tokenizer, _, _ = models("llama")
    inputs, model, options = prompt(tokenizer), plugged("llama"), {"max_new_tokens": NEW, "do_sample": False}
    size = inputs.shape[1]
    output = target.generate(inputs, **options)[0, size:].tolist()
    criteria = {
        "own criterion": EndsAt(size + place),
        "EOS": EosTokenCriteria(torch.tensor([output[place]])),
        "length": MaxLengthCriteria(size + place),
    }
    more: dict[str, Any] = {"stop_strings": [tokenizer.decode(output[place : place + 2])], "tokenizer": tokenizer}
    if kind in criteria:
        more = {"stopping_criteria": StoppingCriteriaList([criteria[kind]])}
    expected = target.generate(inputs, **options, **more).tolist()
    assert len(expected[0]) < size + NEW
    assert model.generate(inputs, **options, **more | same_draft_options(tokenizer)).tolist() == expected


@pytest.mark.parametrize("num_cached", [3, 10])
def test_a_filled_cache_is_decoded_plainly(num_cached: int) -> None:
    target, tokenizer, _, _ = models("llama")
    inputs, model = prompt(tokenizer), plugged("llama")
    results = []
    for each, more in ((target, {}), (model, same_draft_options(tokenizer))):
        cache = DynamicCache(config=target.config)
        with torch.no_grad():
            target(inputs[:, :num_cached], **{CACHE: cache}, use_cache=True)
        ids = each.generate(inputs, **{CACHE: cache}, max_new_tokens=NEW, do_sample=False, **more)
        results.append((ids.tolist(), cache.get_seq_length()))
    assert results[0] == results[1]
    assert "filled cache" in uag.last_stats(model).fallbacks[0]


def test_the_adapters_and_the_map_are_built_once_for_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    target, tokenizer, draft, draft_tokenizer = models("llama")
    builds = list[Any]()
    for name in ("vocabulary_map", "map_controls", "SortedBytes"):
        original = getattr(vocabulary, name)
        monkeypatch.setattr(vocabulary, name, lambda *args, do=original: [builds.extend([do]), do(*args)][1])  # type: ignore[func-returns-value]
    options = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
    inputs, outputs, numbers, known = prompt(tokenizer), [], [], list[set[int]]()
    for _ in range(3):
        outputs.append(plugged("llama").generate(inputs, max_new_tokens=NEW, do_sample=False, **options).tolist())
        gc.collect()
        numbers.append(len(builds))
        known.append({id(adapter) for adapter in detect._adapters.values()})
    assert outputs == [target.generate(inputs, max_new_tokens=NEW, do_sample=False).tolist()] * 3
    assert numbers == numbers[:1] * 3
    assert known == known[:1] * 3
    (of_pair,) = candidates._idle[draft][plugged("llama")]
    assert of_pair[0].tokenizer is tokenizer
    assert of_pair[1].tokenizer is draft_tokenizer


def test_overlapping_calls_have_drafters_of_their_own_and_a_forgotten_draft_is_freed() -> None:
    target, tokenizer, _, draft_tokenizer = models("llama")
    draft = tiny_draft("llama")[0]
    inputs, options = prompt(tokenizer), {"max_new_tokens": NEW, "do_sample": False}
    expected = target.generate(inputs, **options).tolist()
    options |= {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
    barrier, model = threading.Barrier(2), plugged("llama")

    def call(_: int) -> Any:
        barrier.wait()
        return model.generate(inputs, **options).tolist()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(call, range(2))) == [expected] * 2
    reference = weakref.ref(draft)
    options.clear()
    del draft
    gc.collect()
    assert reference() is None
