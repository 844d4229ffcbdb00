"""Arms: each run starts from its seed, and its output and accepted tokens are counted."""

import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import normalizers

from tests.support.calls import left_padded
from tests.support.models import tiny_model
from tests.support.stubs import EOS, StubTarget, StubTokenizer, plain_arm, stub_pair, writer
from tests.support.tokenizers import byte_level
from tests.support.trained import small
from uag.bench import Arm, BenchOptions, build_arms, heldout_prompts, losses
from uag.bench.arms import run_arm
from uag.loading import Pair, encode
from uag.stats import Stats


def test_run_counts_tokens_up_to_eos_and_what_was_accepted() -> None:
    pair, inputs = stub_pair(), left_padded([[9, 9]])
    output_ids, figures = run_arm(writer(pair, "ab\x01\x00"), pair, inputs, {}, seed=0)
    counts = {"num_output_tokens": 3, "num_target_forwards": 1, "num_accepted_tokens": 2}
    assert figures.items() >= counts.items()
    assert output_ids.tolist() == [[97, 98, EOS, 0]]
    _, figures = run_arm(plain_arm(pair), pair, inputs, {}, seed=0)
    counts = {"num_target_forwards": 4, "num_candidate_tokens": 0, "num_accepted_tokens": 0}
    assert figures.items() >= counts.items()


def test_every_run_starts_from_its_seed() -> None:
    pair = stub_pair()
    drawn: list[float] = []

    def generate(input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        drawn.append(torch.rand(1).item())
        return torch.cat([input_ids, input_ids], dim=1)

    for seed in (3, 4, 3):
        run_arm(Arm("plain", generate), pair, left_padded([[9]]), {}, seed=seed)
    assert drawn[0] == drawn[2] != drawn[1]


def test_arms_with_statistics_run_without_a_hook_on_the_target() -> None:
    """With a hook on the target uag would fall back to plain decoding."""
    pair = stub_pair()
    counts = {"num_rounds": 3, "num_target_forwards": 4, "num_candidate_tokens": 6, "num_accepted_tokens": 5}
    stats = Stats()
    vars(stats).update(counts)
    hooks: list[int] = []

    def generate(input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        hooks.append(len(pair.target._forward_pre_hooks))
        return torch.cat([input_ids, input_ids], dim=1)

    _, figures = run_arm(Arm("uag", generate, lambda: stats), pair, left_padded([[9]]), {}, seed=0)
    run_arm(Arm("plain", generate), pair, left_padded([[9]]), {}, seed=0)
    assert hooks == [0, 1]
    assert not pair.target._forward_pre_hooks
    assert figures.items() >= counts.items()
    assert figures["stats"] == stats.to_dict()


def test_transformers_arm_never_touches_the_callers_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    target = StubTarget()
    monkeypatch.setattr(target, "generate", lambda **kwargs: seen.append(kwargs["assistant_model"]))
    draft = SimpleNamespace(name="draft")
    pair = Pair(target, StubTokenizer(), "t", draft, StubTokenizer(), "d")
    _, arm = build_arms(pair, BenchOptions(arm_names=("transformers",)))
    for _ in range(2):
        arm.generate(do_sample=True)
    assert seen[0] is seen[1] is not draft  # sampling modifies it


def test_a_call_without_hooks_counts_a_pass_per_step() -> None:
    pair = Pair(tiny_model("llama", 60), byte_level(), "target", None, None, "draft")
    pair.target.generation_config.eos_token_id = None
    other = copy.deepcopy(pair.target)
    arms = [*build_arms(pair, BenchOptions(arm_names=("plain", "uag-no-draft"))), Arm("another model", other.generate)]
    options = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": "static"}
    runs = [run_arm(arm, pair, left_padded([[5, 6, 7]]), options, seed=0) for arm in arms]
    assert [figures["num_target_forwards"] for _, figures in runs] == [8, 8, 8]
    assert all(figures["num_output_tokens"] == 8 and not figures["num_candidate_tokens"] for _, figures in runs)
    assert runs[0][0].equal(runs[1][0])
    assert "forward" not in vars(pair.target)


def test_nothing_of_a_useless_draft_is_accepted_and_the_output_is_the_same() -> None:
    pair = small()
    inputs = encode(pair, [heldout_prompts()[0].content])
    plain, no_draft, useless = build_arms(pair, BenchOptions(arm_names=("uag-no-draft", "uag-useless")))
    options = {"max_new_tokens": 12, "do_sample": False}
    output_ids, figures = run_arm(useless, pair, inputs, options | {"num_assistant_tokens": 3}, 0)
    assert figures["num_candidate_tokens"] >= 12
    assert figures["num_accepted_tokens"] == 0
    assert figures["num_rounds"] == 11
    assert output_ids.equal(run_arm(plain, pair, inputs, options, 0)[0])
    assert run_arm(no_draft, pair, inputs, options, 0)[1]["num_candidate_tokens"] == 0


def test_each_draft_has_its_own_arms_and_the_others_are_shared() -> None:
    pair = small()
    other = replace(pair, draft_name="other")
    names = ("transformers", "uag", "uag-useless", "uag-lookup", "uag-draft")
    arms = build_arms(pair, BenchOptions(arm_names=names), [other])
    of_draft = [(arm.name, arm.draft) for arm in arms if arm.draft]
    expected = [(name, draft) for name in ("uag", "uag-draft", "transformers") for draft in (pair.draft_name, "other")]
    assert of_draft == expected
    assert [arm.name for arm in arms if not arm.draft] == ["plain", "uag-lookup", "uag-useless"]


def test_a_draft_whose_tokenizer_changes_text_is_named() -> None:
    lossy = byte_level(normalizer=normalizers.Replace("``", '"'))
    pairs = [Pair(None, None, "t", None, tokenizer, name) for tokenizer, name in ((lossy, "a"), (byte_level(), "b"))]
    assert losses(pairs) == ["a: normalizes text (Replace)"]
