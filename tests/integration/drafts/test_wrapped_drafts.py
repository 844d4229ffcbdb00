"""Drafts inside other modules: LoRA, torch.compile, offloading, modules that forward all arguments."""

import copy
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from transformers import LlamaForCausalLM

import uag
from tests.support.calls import GREEDY, batch, compare, draft_options, pair

peft = pytest.importorskip("peft", reason="pip install peft")
pytest.importorskip("accelerate", reason="pip install accelerate")

from tests.support import wrappers  # noqa: E402 - it needs both
from tests.support.wrappers import BOTH, CALLS, OTHERS, TRANSPARENT_NAMES  # noqa: E402
from uag.drafting.models import trials  # noqa: E402
from uag.errors import UnsupportedError  # noqa: E402
from uag.hf import required_names  # noqa: E402
from uag.hf.cache.caches import CACHE  # noqa: E402


class OfAnOlderRelease(LlamaForCausalLM):
    """A class whose forward takes its cache under the name that it had before transformers 5.24."""

    def forward(self, input_ids: Any, position_ids: Any = None, past_key_values: Any = None, **given: Any) -> Any:
        return super().forward(input_ids, position_ids=position_ids, **{CACHE: past_key_values}, **given)


Counts = list[tuple[int, int]]
SHORT = {"max_new_tokens": 12}


pytestmark = pytest.mark.usefixtures("few_compilations")


def counts(draft: Any, calls: Any = CALLS, **options: Any) -> Counts:
    """Draft with a model, assert that the output is the target's, and return each call's candidates and accepted.

    All drafts keep their own weights, as wrapped ones do, so that their candidates can be compared.
    """
    target, tokenizer, _, draft_tokenizer = pair()
    known: dict[str, Any] = {"num_candidate_tokens": 4, "draft_weights": "model"}
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, **known | options)
    found = []
    for rows, given in calls:
        stats = compare(target, batch(tokenizer, rows) | given | SHORT, assistant)
        assert not stats.fallbacks
        found.append((stats.num_candidate_tokens, stats.num_accepted_tokens))
    assert all(0 < accepted < candidates for candidates, accepted in found)
    return found


@cache
def bare_counts(is_first: bool = True) -> Counts:
    return counts(pair()[2], CALLS if is_first else OTHERS)


@BOTH
@pytest.mark.parametrize("name", [name for name in TRANSPARENT_NAMES if name != "value head"])
def test_a_wrapper_that_changes_nothing_drafts_the_same(name: str, calls: Any) -> None:
    assert counts(wrappers.TRANSPARENT[name](pair()[2]), calls) == bare_counts(calls is CALLS)


@pytest.mark.parametrize("wrap", [wrappers.on_disk, wrappers.spread_out])
def test_weights_on_the_disk(wrap: Any, tmp_path: Path) -> None:
    draft = wrap(pair()[2], tmp_path)
    assert "meta" in {parameter.device.type for parameter in draft.parameters()}
    assert counts(draft) == bare_counts()
    assert not any(parameter.is_inference() for parameter in draft.parameters())


@BOTH
@pytest.mark.parametrize("name", wrappers.ADAPTER_NAMES)
def test_adapters(name: str, calls: Any) -> None:
    wrapped = wrappers.ADAPTERS[name](pair()[2])
    found = counts(wrapped, calls)
    if name == "lora":
        assert found == counts(wrapped.merge_and_unload(), calls) != bare_counts(calls is CALLS)


def test_the_adapter_that_is_active_at_a_call_drafts() -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    draft = wrappers.lora(draft, names=("other",))
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=4, draft_weights="model")

    def candidates() -> tuple[int, int]:
        stats = compare(target, batch(tokenizer, 3) | GREEDY | SHORT, assistant)
        return stats.num_candidate_tokens, stats.num_accepted_tokens

    with draft.disable_adapter():
        assert candidates() == bare_counts()[0]
    first = candidates()
    draft.set_adapter("other")
    second = candidates()
    draft.set_adapter("default")
    assert first == candidates()
    assert len({first, second, bare_counts()[0]}) == 3


@pytest.mark.parametrize("wrap", [wrappers.lora, wrappers.compiled, wrappers.data_parallel])
def test_after_install(wrap: Any) -> None:
    target, tokenizer, draft, draft_tokenizer = pair()
    assistant = uag.Assistant(wrap(draft), draft_tokenizer, tokenizer)
    stats = compare(target, batch(tokenizer, 3) | GREEDY | SHORT, assistant, door="install")
    assert stats.num_candidate_tokens > 0
    assert not stats.fallbacks


@pytest.mark.slow
def test_compile_draft_with_an_adapter() -> None:
    counts(wrappers.compiled(wrappers.lora(pair()[2])), CALLS, compile_draft=True)


def test_a_draft_takes_its_cache_under_the_old_name() -> None:
    draft = copy.deepcopy(pair()[2])
    draft.__class__ = OfAnOlderRelease
    assert counts(draft) == counts(pair()[2])


@pytest.mark.parametrize("kind", wrappers.VIRTUAL)
def test_a_draft_with_virtual_tokens_is_refused(kind: str) -> None:
    _, tokenizer, draft, draft_tokenizer = pair()
    if kind == "prefix" and required_names.release() >= (5, 24):
        pytest.skip("PEFT 0.21 passes the prefix under the old name of a cache, which transformers ignores")
    with pytest.raises(UnsupportedError, match=r"stores (nothing|6 positions for two tokens) in the cache"):
        uag.Assistant(wrappers.virtual(draft, kind), draft_tokenizer, tokenizer)


def test_a_forward_without_a_cache_is_refused_for_that(installed: None) -> None:
    """Only a trial shows which `**kwargs` are forwarded; here, the cache is dropped."""
    target, tokenizer, draft, draft_tokenizer = pair()
    draft = copy.deepcopy(draft)
    forward = draft.forward
    draft.forward = lambda input_ids, **given: forward(input_ids, use_cache=False)
    with pytest.raises(
        UnsupportedError, match="stores nothing in the cache passed to it, so it would re-read the whole text"
    ):
        uag.Assistant(draft, draft_tokenizer, tokenizer)
    given = draft_options() | {"assistant_model": draft}
    expected = target.generate(**batch(tokenizer, 1), **GREEDY)
    assert target.generate(**batch(tokenizer, 1), **GREEDY, **given).tolist() == expected.tolist()
    assert "stores nothing in the cache" in uag.last_stats(target).fallbacks[0]


def test_a_trial_is_that_of_one_wrapper() -> None:
    """A model and the adapters around it share their embeddings, but not their capabilities."""
    draft = copy.deepcopy(pair()[2])
    assert trials.reading_refusal(draft) == ""
    config = peft.PromptTuningConfig(task_type=wrappers.CAUSAL, num_virtual_tokens=4)
    assert "stores 6 positions" in trials.reading_refusal(peft.get_peft_model(draft, config).eval())


@pytest.mark.parametrize("are_known", [False, True])
def test_a_draft_is_examined_once_per_assistant(are_known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    examined = mock.Mock(wraps=trials._refusals)
    monkeypatch.setattr(trials, "_refusals", examined)
    _, tokenizer, draft, draft_tokenizer = pair()
    uag.Assistant(draft, *(draft_tokenizer, tokenizer) * are_known)
    assert examined.call_count == 1
