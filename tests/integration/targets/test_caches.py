"""The caller's caches can be continued, end in plain decoding's state, and stay valid after an error."""

import copy
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LogitsProcessor, StaticCache, StoppingCriteria

import uag
from tests.support.callers import OracleDrafter, Puts, raises_at
from tests.support.calls import GREEDY, NEW, PROMPTS, ROWS, assistant_of, batch, compare, left_padded, oracle, pair
from tests.support.grids import covering
from tests.support.models import tiny_target
from uag.hf import passes
from uag.hf.cache.caches import CACHE
from uag.hf.models import head_size

KINDS = (DynamicCache, StaticCache)


def new_cache(kind: type, target: Any) -> Any:
    options = {"max_cache_len": 96} if kind is StaticCache else {}
    return kind(config=target.config.get_text_config(), **options)


@covering("name, num_rows, kind, only_new_ids", ("gpt2", "mistral", "gemma2"), (1, 3), KINDS, (False, True))
def test_a_cache_of_the_caller_is_continued(name: str, num_rows: int, kind: type, only_new_ids: bool) -> None:
    """In two assisted turns, and a plain one, which reads what the assisted ones have left in the cache."""
    target, tokenizer = tiny_target(name)
    inputs = batch(tokenizer, num_rows)

    def turns(*generators: Any) -> list[list[list[int]]]:
        cache, ids, mask, written = new_cache(kind, target), inputs["input_ids"], inputs["attention_mask"], []
        for generate in generators:
            key = CACHE if only_new_ids else "past_key_values"  # the old name works in calls until transformers 6
            given = {"input_ids": ids, "attention_mask": mask, key: cache}
            output = generate(**given, **GREEDY | {"max_new_tokens": 12})
            written.append(output[:, -12:].tolist())
            # The last output token is not in the cache yet; the caller may pass the whole text again, or only the new
            # part.
            ids = torch.cat([output[:, -1:] if only_new_ids else output, inputs["input_ids"][:, -4:]], 1)
            mask = torch.cat([mask, torch.ones((num_rows, 16), dtype=torch.long)], dim=1)
        return written

    def assisted(output: list[list[int]]) -> Any:
        drafter = OracleDrafter(output, head_size(target))
        return partial(uag.Assistant(None, drafter=drafter, num_candidate_tokens=4).generate, target)

    expected = turns(*[target.generate] * 3)
    assert turns(assisted(expected[0]), assisted(expected[1]), target.generate) == expected
    assert uag.last_stats(target).num_accepted_tokens > 0


class Keeps(StoppingCriteria):
    """Keeps the cache's tensors, and a copy of the cache, at every step."""

    def __init__(self, cache: DynamicCache) -> None:
        self.cache = cache
        self.copies: list[tuple[torch.Tensor, DynamicCache]] = []
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, input_ids: torch.Tensor, _scores: Any, **_: Any) -> torch.Tensor:
        self.copies.append((input_ids.clone(), copy.deepcopy(self.cache)))
        self.kept += [(layer.keys, layer.keys.clone()) for layer in self.cache.layers]
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


@pytest.mark.parametrize("is_drafted", [False, True])
def test_what_others_keep_of_a_cache_stays_as_it_was(is_drafted: bool) -> None:
    target, tokenizer = pair()[:2]
    cache = DynamicCache(config=target.config)
    keeps = Keeps(cache)
    inputs = left_padded(PROMPTS[:1])
    given = {**inputs, **GREEDY, CACHE: cache, "stopping_criteria": [keeps]}
    expected = target.generate(**inputs, **GREEDY)
    assistant = assistant_of() if is_drafted else uag.Assistant(None, None, tokenizer)
    assert assistant.generate(target, **given).tolist() == expected.tolist()
    assert all(torch.equal(kept, before) for kept, before in keeps.kept)
    if not is_drafted:  # otherwise the copies contain candidates too
        ids, snapshot = keeps.copies[2]
        again = assistant_of().generate(
            target, input_ids=ids, attention_mask=torch.ones_like(ids), **{CACHE: snapshot}, do_sample=False,
            max_length=expected.shape[1], pad_token_id=0,
        )  # fmt: skip
        assert again.tolist() == expected.tolist()


class Closed(Puts):
    def end(self) -> None:
        raise ConnectionError("the reader has gone")


FAILURES: dict[str, Callable[[int], dict[str, Any]]] = {
    "processor": lambda step: {"logits_processor": [raises_at(len(PROMPTS[0]) + step, ConnectionError)]},
    "streamer": lambda step: {"streamer": Puts(fail_at=step)},
    "end of the streamer": lambda step: {"streamer": Closed()},
}


@covering("name, kind, fails", ("llama", "mistral"), KINDS, FAILURES)
def test_an_error_leaves_a_cache_to_continue_from(name: str, kind: type, fails: str) -> None:
    """It may contain output, but no rejected candidates, and its layers are transformers' own."""
    target, tokenizer = tiny_target(name)
    ids = torch.tensor([PROMPTS[0]])
    expected = target.generate(ids, **GREEDY | {"max_new_tokens": NEW + 4})
    for step in range(3, 12, 2):
        assistant, cache = oracle(target, tokenizer, expected, ids.shape[1], spoil=3), new_cache(kind, target)
        with pytest.raises(ConnectionError):
            assistant.generate(target, ids, **{CACHE: cache}, **GREEDY, **FAILURES[fails](step))
        assert assistant.stats.num_candidate_tokens > 0
        assert {type(layer) for layer in cache.layers} <= {type(layer) for layer in new_cache(kind, target).layers}
        known = expected[:, : int(cache.get_seq_length()) + 1]
        options = GREEDY | {"max_new_tokens": expected.shape[1] - known.shape[1]}
        assert target.generate(known, **{CACHE: cache}, **options).equal(expected)


class EverySecondRound(OracleDrafter):
    num_asked = 0

    def propose(self, ask: Any) -> Any:
        self.num_asked += 1
        return super().propose(ask) if self.num_asked % 2 else [[] for _ in ask.limits]


def test_a_window_of_a_static_cache_is_restored_before_a_narrow_pass() -> None:
    target, _ = tiny_target("mistral")  # with a window of 9
    given = {"input_ids": torch.tensor([PROMPTS[2][:4]]), "cache_implementation": "static"} | GREEDY
    outputs = target.generate(**given)[:, 4:].tolist()
    drafter = EverySecondRound(outputs, head_size(target), spoil=1.4)
    stats = compare(target, given, uag.Assistant(None, drafter=drafter, num_candidate_tokens=6))
    assert 0 < stats.num_accepted_tokens < stats.num_candidate_tokens


class CountsSlots(LogitsProcessor):
    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.counts: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.counts.append(self.cache.layers[0].keys.shape[2])
        return scores


def test_prompt_longer_than_a_window_is_not_kept_whole() -> None:
    """With candidates in its pass, every layer with a window would keep the prompt until the end of the pass."""
    target, ids = tiny_target("mistral")[0], torch.arange(4, 68)[None]
    expected = target.generate(ids, **GREEDY)
    cache = new_cache(DynamicCache, target)
    slots = CountsSlots(cache)
    assistant = oracle(target, None, expected, 64, spoil=0)
    output = assistant.generate(target, ids, **GREEDY, **{CACHE: cache}, logits_processor=[slots])
    assert output.tolist() == expected.tolist()
    assert assistant.stats.num_accepted_tokens > 0
    assert slots.counts[0] == target.config.sliding_window - 1


@pytest.mark.usefixtures("layer_by_layer")
@ROWS
@pytest.mark.parametrize("options", [{}, {"return_dict_in_generate": True}, {"cache_implementation": "static"}])
def test_logits_are_freed_per_pass(options: dict[str, Any], num_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a long prompt can take gigabytes."""
    seen: list[weakref.ref[Any]] = []

    def noting(function: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            assert all(known() is None for known in seen)
            found = function(*args, **kwargs)
            outputs = found[0] if isinstance(found, tuple) else found
            seen.append(weakref.ref(outputs.logits))
            return found

        return run

    for name in ("run", "prefill"):
        monkeypatch.setattr(passes, name, noting(getattr(passes, name)))
    assistant = assistant_of()
    assistant.generate(pair()[0], **left_padded(PROMPTS[:num_rows]), **GREEDY | options)
    assert len(seen) > 4
