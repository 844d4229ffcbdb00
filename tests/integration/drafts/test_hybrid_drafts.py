"""Drafts with a state: exact rollback, output equal to plain decoding, and acceptance of a draft for itself."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest
import torch

import uag
from benchmarks.replay import Replay, Text
from tests.support.callers import failing_after
from tests.support.calls import GREEDY, SAMPLED, batch, compare, left_padded, pair
from tests.support.grids import mostly_grid
from tests.support.models import HYBRID_DRAFTS, tiny_model
from tests.support.rollbacks import check_rollbacks
from tests.support.tokenizers import small_tokenizer
from uag.drafting import ModelDrafter, TorchPasses
from uag.drafting.models.open_draft import open_passes
from uag.lookahead import Lookahead

LIMITING = {"zamba2", "nemotron_h"}
"""Classes that limit time steps in blocks but not in single tokens, so the whole text has other distributions."""

FALLING_BACK = LIMITING | {"mamba", "jamba", "zamba"}
"""Classes that fall back to plain decoding as targets."""


QUICK = {"lfm2", "mamba", "falcon_h1", "qwen3_5"}
"""Classes that the default test run assists targets with; the others are slow tests: convolutions beside attention,
states only (one token per pass), attention and states in one layer, and linear attention."""


def with_slow(names: Iterable[str]) -> list[Any]:
    """Return parameters, those outside `QUICK` with the mark slow."""
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


@cache
def hybrid(name: str) -> Any:
    model_type, options = HYBRID_DRAFTS[name]
    return tiny_model(model_type, len(small_tokenizer("unigram")) + 3, **options)


def hybrid_assistant(name: str) -> uag.Assistant:
    """An assistant for the target of `pair`, whose draft has another tokenizer."""
    _, tokenizer, _, _ = pair()
    return uag.Assistant(
        hybrid(name), small_tokenizer("unigram"), tokenizer, num_candidate_tokens=4, prompt_lookup=False
    )


@pytest.mark.parametrize("name", mostly_grid(sorted(HYBRID_DRAFTS.keys() - LIMITING), [*QUICK, "mamba2", "zamba"]))
def test_distributions_after_rollbacks_are_those_of_the_whole_text(name: str) -> None:
    passes = open_passes(hybrid(name))
    assert isinstance(passes, TorchPasses)
    check_rollbacks(passes, hybrid(name), 9, 1e-4)


@pytest.mark.parametrize("name", mostly_grid(HYBRID_DRAFTS, [*QUICK, *LIMITING, "jamba"]))
def test_nearly_every_candidate_of_a_model_for_itself_is_accepted(name: str) -> None:
    """A replay, because some of these classes fall back to plain decoding as targets."""
    model = hybrid(name)
    prompt = [5, 9, 14, 3, 27, 30, 8]
    output = model.generate(torch.tensor([prompt]), **GREEDY | {"max_new_tokens": 30})[0, len(prompt) :].tolist()
    replay = Replay(ModelDrafter(model, None), model.config.vocab_size)
    text = Text("", tuple(prompt), output_ids=tuple(output))
    rounds = replay.rounds(text, Lookahead(fixed=4), lambda left: 4 if left >= 5 else None)
    num_accepted = [done.num_accepted for done in rounds]
    assert len(num_accepted) >= 5
    assert sum(num_accepted) >= 0.9 * 4 * len(num_accepted)


@pytest.mark.parametrize("name", with_slow(sorted(HYBRID_DRAFTS.keys() - FALLING_BACK)))
def test_a_model_assists_itself_with_the_same_ids(name: str) -> None:
    """Prompts of different lengths, greedy and sampled."""
    model, inputs = hybrid(name), left_padded([[5, 9, 14, 3, 27, 11], [8, 6], [12, 40, 33, 18, 21, 9, 4]])
    assistant = uag.Assistant(model, num_candidate_tokens=4, prompt_lookup=False)
    for options in (GREEDY, SAMPLED):
        assert compare(model, inputs | options, assistant).num_accepted_tokens > 0


@pytest.mark.parametrize("name", mostly_grid(HYBRID_DRAFTS, ["lfm2", "mamba"]))
def test_across_tokenizers_a_batch_equals_plain_decoding_in_two_calls(name: str) -> None:
    target, tokenizer, _, _ = pair()
    assistant = hybrid_assistant(name)
    for num_rows, options in ((3, SAMPLED), (1, GREEDY)):
        stats = compare(target, batch(tokenizer, num_rows) | options | {"max_new_tokens": 12}, assistant)
        assert stats.num_candidate_tokens > 12
        assert not stats.fallbacks


def test_after_an_exception_in_a_pass_the_next_call_drafts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    target, tokenizer, _, _ = pair()
    assistant, draft, inputs = hybrid_assistant("falcon_h1"), hybrid("falcon_h1"), batch(tokenizer, 3)
    with monkeypatch.context() as patch:
        patch.setattr(draft, "forward", failing_after(9, draft.forward, RuntimeError("no memory")))
        with pytest.warns(UserWarning, match="stopped drafting: .*no memory"):
            compare(target, inputs | GREEDY, assistant)
    stats = compare(target, inputs | GREEDY, assistant)
    assert stats.num_candidate_tokens > 0
    assert not stats.fallbacks
