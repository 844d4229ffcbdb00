"""Trials of targets: a block is compared with single tokens once. Code of others is assisted with restrictions."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import MethodType
from typing import Any
from unittest.mock import patch

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import uag
from tests.integration.targets.test_position_dependent import CASES, PROMPTS, VOCAB, check, target
from tests.support.calls import ROWS, left_padded
from tests.support.grids import covering
from tests.support.models import ARCHITECTURES, spread, tiny_model
from tests.support.tiny_classes import tiny_config
from uag.decoding import trial
from uag.hf import foreign_code, positions
from uag.hf.cache.caches import CACHE
from uag.kernels import kernel

ROUNDING = ["llama", "gpt2", "gemma3", "mistral", "mixtral", "qwen3", "falcon", "phi3", "t5", "bart", "bloom", "glm"]


class Peeking(LlamaForCausalLM):
    """Disturbs each pass of several tokens after a cache, so blocks are never right."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        cache = kwargs.get(CACHE)
        ids = kwargs["input_ids"]
        if cache is not None and cache.get_seq_length() > ids.shape[1] and ids.shape[1] > 1:
            output.logits = output.logits + torch.arange(output.logits.shape[-1]).mul(1.7).sin()
        return output


class Backwards(LlamaForCausalLM):
    """The prompt's tokens depend on the last one of their pass, so only candidates in the prompt's pass are wrong."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        cache, ids = kwargs.get(CACHE), kwargs["input_ids"]
        if cache is None or cache.get_seq_length() == 0:
            embeddings = self.model.embed_tokens(ids) * (1 + ids[:, -1:, None] / VOCAB)
            kwargs |= {"input_ids": None, "inputs_embeds": embeddings}
        return super().forward(*args, **kwargs)


class Slots(LlamaForCausalLM):
    """Accepts positions but ignores them, so padding counts."""

    def forward(
        self, input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None, **kwargs: Any
    ) -> Any:
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, **kwargs)


class Broken(LlamaForCausalLM):
    """Fails for any input except the call's prompt."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if int(kwargs["input_ids"][0, 0]) != PROMPTS[0][0] and not kwargs[CACHE].get_seq_length():
            raise LookupError("where is the picture?")
        return super().forward(*args, **kwargs)


class Usual(LlamaForCausalLM):
    """A user's class that computes the same as Llama."""


def made(kind: type, **options: Any) -> Any:
    torch.manual_seed(0)
    ids = {"bos_token_id": None, "eos_token_id": None}
    return spread(kind(tiny_config(LlamaConfig, vocab_size=VOCAB, **ids | options)))


@covering("name, num_rows, do_sample", [name for name in CASES if CASES[name][2]], (1, 3), (False, True), strength=1)
def test_no_drafts_behind_a_length(name: str, num_rows: int, do_sample: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamic and long rotary factors, dropped caches and temperatures by slot all start at such a length."""
    model = target(name)
    monkeypatch.setattr(positions, "of_others", lambda model: "a part")
    (cut,) = positions._untried(model)
    monkeypatch.setattr(positions, "cuts", lambda model: (cut,))  # like code whose names uag does not know
    inputs = left_padded(PROMPTS[:num_rows])
    stats = check(model, inputs, do_sample=do_sample)
    is_far = cut.at > inputs["input_ids"].shape[1] + 4
    assert (stats.num_accepted_tokens > 0) == is_far
    reasons = "; ".join(stats.fallbacks)
    assert "has no trial beyond length" in reasons
    assert ("rows advance in lockstep" in reasons) == (num_rows == 3 and is_far)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Peeking, "the target computes different logits for a block than for single tokens ("),
        (Broken, "the target could not be tested (LookupError: where is the picture?)"),
    ],
)
def test_blocks_that_are_never_right_or_cannot_be_tried(kind: type, reason: str) -> None:
    stats = check(made(kind), left_padded(PROMPTS[:1]))
    assert stats.num_candidate_tokens == 0
    (found,) = stats.fallbacks
    assert found.startswith(reason)
    assert found.endswith(", so this call falls back to plain decoding")


class Switchable(Peeking):
    """Becomes `Peeking` by an attribute of its own, or of its configuration."""

    peeks = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        is_on = self.peeks or getattr(self.config, "peeks", False)
        return (Peeking if is_on else LlamaForCausalLM).forward(self, *args, **kwargs)


@pytest.mark.parametrize("switch", [lambda model: model, lambda model: model.config], ids=["module", "configuration"])
def test_an_attribute_that_is_switched_after_the_first_call_is_seen(switch: Callable[[Any], Any]) -> None:
    model = made(Switchable)
    assert check(model, left_padded(PROMPTS[:1])).num_accepted_tokens > 0
    switch(model).peeks = True
    stats = check(model, left_padded(PROMPTS[:1]))
    assert stats.num_candidate_tokens == 0
    assert "computes different logits for a block" in stats.fallbacks[0]


@pytest.mark.parametrize("kind", [Usual, Backwards, Slots])
@ROWS
def test_what_passes_the_trial_is_assisted_carefully(kind: type, num_rows: int) -> None:
    """No candidates in the prompt's pass, rows in lockstep."""
    stats = check(made(kind), left_padded(PROMPTS[:num_rows]))
    assert stats.num_accepted_tokens > 0
    reason = f"rows advance in lockstep: the class {kind.__name__} may treat the rows of a batch differently"
    assert stats.fallbacks == [reason] * (num_rows > 1)


@covering("name, dtype", ROUNDING, (torch.float32, torch.bfloat16, torch.float16), strength=1)
def test_rounding_is_no_difference(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither PyTorch's, nor that of uag's kernels beside PyTorch's, which are compared for code of others."""
    monkeypatch.setattr(foreign_code, "of_others", lambda model: "a part")
    model_type, options, _, _ = ARCHITECTURES[name]
    draft = tiny_model("llama", VOCAB, seed=3)
    for seed in range(2):
        model = tiny_model(model_type, VOCAB, **options | {"seed": seed}).to(dtype)
        assistant = uag.Assistant(draft, num_candidate_tokens=3, own_kernels=bool(seed))
        inputs = left_padded(PROMPTS)
        assistant.generate(model, **inputs, max_new_tokens=3, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert assistant.stats.num_candidate_tokens > 0
        assert "logits" not in "; ".join(assistant.stats.fallbacks)


def test_a_model_is_tried_once_with_a_few_passes() -> None:
    """A prompt and four blocks, and with uag's kernels also a prompt and a block by transformers' own operations."""
    draft = tiny_model("llama", VOCAB, seed=3)
    given: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}

    class Counting(LlamaForCausalLM):
        num_passes = 0

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            type(self).num_passes += 1
            return super().forward(*args, **kwargs)

    def num_trial_passes(model: Any) -> int:
        assistant = uag.Assistant(draft, num_candidate_tokens=2)
        Counting.num_passes = 0
        assistant.generate(model, torch.tensor([PROMPTS[0]]), **given)
        return Counting.num_passes - assistant.stats.num_target_forwards

    model = made(Counting)
    assert num_trial_passes(model) == (7 if kernel.LEVEL else 5)
    assert num_trial_passes(model) == 0
    assert num_trial_passes(model.double()) == 5


def test_a_layer_of_another_package_may_hold_functions_of_a_third() -> None:
    """This is not a change: the layer runs a trial."""
    layered = made(LlamaForCausalLM)
    norm = type("Norm", (type(layered.model.norm),), {"__module__": "mine"})(32)
    norm.load_state_dict(layered.model.norm.state_dict())
    norm.helper = pytest.approx
    layered.model.norm = norm
    stats = check(layered, left_padded(PROMPTS))
    assert stats.num_accepted_tokens > 0
    (reason,) = stats.fallbacks
    assert reason == "rows advance in lockstep: a layer of the class Norm may treat the rows of a batch differently"


@covering("num_rows, cache, own_kernels", (1, 3), ("dynamic", "static"), (True, False))
def test_every_target_is_tried(num_rows: int, cache: str, own_kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each kind of cache, so with rows of different lengths if the call has them."""
    trials: list[Any] = []
    refusal = trial._refusal

    def counted(*of_trial: Any) -> str:
        trials.append(of_trial)
        return refusal(*of_trial)

    monkeypatch.setattr(trial, "_refusal", counted)
    assistant = uag.Assistant(tiny_model("llama", VOCAB, seed=3), num_candidate_tokens=3, own_kernels=own_kernels)
    model = made(LlamaForCausalLM)
    options: dict[str, Any] = {"cache_implementation": cache} if cache == "static" else {}
    for _ in range(2):
        inputs = left_padded(PROMPTS[:num_rows])
        assistant.generate(model, **inputs, **options, max_new_tokens=6, do_sample=False, pad_token_id=0)
        assert assistant.stats.num_candidate_tokens > 0
        assert "falls back to plain" not in "; ".join(assistant.stats.fallbacks)
    assert len(trials) == 1


LIBRARY = """
def replacing(own):
    def forward(self, x):
        return own(self, x) * effect(x.shape[-2])
    return forward
"""


@contextmanager
def norm_of_a_library(where: str, model: Any, effect: Callable[[int], float]) -> Iterator[None]:
    """Replace the forward of a norm, as Liger and kernels from the hub do."""
    names: dict[str, Any] = {"__name__": "fast_layers", "effect": effect}
    exec(compile(LIBRARY, "/usr/lib/site-packages/fast_layers.py", "exec"), names)
    norm = model.model.norm
    forward = names["replacing"](type(norm).forward)
    owner, forward = (type(norm), forward) if where == "class" else (norm, MethodType(forward, norm))
    with patch.object(owner, "forward", forward):
        yield


@contextmanager
def attention_of(name: str, model: Any, effect: Callable[[int], float]) -> Iterator[None]:
    own = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def attention(module: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
        output, weights = own(module, query, *args, **kwargs)
        return output * effect(query.shape[2]), weights

    model.config._attn_implementation = name
    masks = {name: ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]}
    with (
        patch.dict(ALL_ATTENTION_FUNCTIONS._global_mapping, {name: attention}),
        patch.dict(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, masks),
    ):
        yield


@contextmanager
def experts_of(name: str, model: Any, effect: Callable[[int], float]) -> Iterator[None]:
    own = ALL_EXPERTS_FUNCTIONS["batched_mm"]

    def experts(module: Any, states: Any, *args: Any, **kwargs: Any) -> Any:
        return own(module, states, *args, **kwargs) * effect(len(states))

    with patch.dict(ALL_EXPERTS_FUNCTIONS._global_mapping, {name: experts}):
        model.set_experts_implementation(name)
        yield


OTHERS: dict[str, Callable[[Any, Callable[[int], float]], AbstractContextManager[None]]] = {
    "the attention 'mine'": partial(attention_of, "mine"),
    "the attention 'sdpa'": partial(attention_of, "sdpa"),
    "the experts 'mine'": partial(experts_of, "mine"),
    "the experts 'batched_mm'": partial(experts_of, "batched_mm"),
    "forward of MixtralRMSNorm on the class": partial(norm_of_a_library, "class"),
    "forward of MixtralRMSNorm on the instance": partial(norm_of_a_library, "instance"),
}
"""Functions that the user registers, and forwards that an installed package replaces."""


@covering("name, num_rows", OTHERS, (1, 3), strength=1)
def test_functions_of_others_in_a_tested_class_are_tried(name: str, num_rows: int) -> None:
    model = tiny_model("mixtral", VOCAB)
    with OTHERS[name](model, lambda width: 0.9):
        stats = check(model, left_padded(PROMPTS[:num_rows]))
        assert stats.num_accepted_tokens > 0
        reason = f"rows advance in lockstep: {name.partition(' on ')[0]} may treat the rows of a batch differently"
        assert stats.fallbacks == [reason] * (num_rows > 1)
    with OTHERS[name](model, lambda width: 1.0 + 0.3 * width):  # another function, so another trial
        (reason,) = check(model, left_padded(PROMPTS[:num_rows])).fallbacks
        assert "computes different logits for a block than for single tokens" in reason


def test_a_static_cache_is_tried_as_the_call_uses_it() -> None:
    class Peeks(LlamaForCausalLM):
        """Disturbs blocks over a static cache only."""

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            if isinstance(kwargs.get(CACHE), StaticCache) and 1 < kwargs["input_ids"].shape[1] < 6:
                output.logits = output.logits + torch.arange(output.logits.shape[-1]).mul(1.7).sin()
            return output

    model, inputs = made(Peeks), left_padded(PROMPTS[:1])
    assert check(model, inputs).num_accepted_tokens > 0
    (reason,) = check(model, inputs, cache_implementation="static").fallbacks
    assert "computes different logits for a block than for single tokens" in reason
    assert check(made(Usual), inputs, cache_implementation="static").num_accepted_tokens > 0


def test_a_foreign_rotary_module_without_a_length_is_not_drafted_for() -> None:
    """It used to raise an AttributeError in `generate`."""
    model = made(LlamaForCausalLM)
    rotary = model.model.rotary_emb
    rotary.rope_type = "dynamic"
    vars(rotary).pop("original_max_seq_len", None)
    assert [cut.at for cut in positions.cuts(model)] == [0]
