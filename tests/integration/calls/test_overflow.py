"""Candidates whose embeddings are NaN or infinite: attention multiplies them by 0, which is NaN for the whole pass."""

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

import uag
from tests.support.calls import GREEDY, SAMPLED, compare, ids_of, left_padded, seeded
from tests.support.grids import covering
from tests.support.models import STATEFUL, tiny_model, tiny_target
from tests.support.walk import SharedDrafter
from uag.hf.models import head_size

PROMPTS = ([5, 9, 14, 3, 27], [8, 6], [12, 40, 33, 18, 21, 9, 4])
BAD = 77

CALLS: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static"},
    "recorded": {"return_dict_in_generate": True, "output_logits": True},
}


@cache
def overflowing(name: str, value: float) -> Any:
    """Return a target with an untied head that overflows if it reads `BAD`, which it never writes."""
    model = tiny_model(*STATEFUL[name][:1], 300, **STATEFUL[name][1]) if name in STATEFUL else tiny_target(name)[0]
    model = copy.deepcopy(model)
    embeddings = (model.get_decoder() if model.config.is_encoder_decoder else model).get_input_embeddings()
    weight = embeddings.weight.detach().clone()
    weight[BAD] = value
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())
    head.weight.requires_grad_(False)
    embeddings.weight = torch.nn.Parameter(weight)
    model.generation_config.suppress_tokens = [BAD]
    return model


class OverflowingDrafter(SharedDrafter):
    def __init__(self, outputs: Sequence[Sequence[int]], vocab_size: int) -> None:
        super().__init__(outputs, vocab_size, 1.0)
        self.outputs = [[BAD if i % 5 == 4 else each for i, each in enumerate(row)] for row in outputs]


def check(model: Any, num_rows: int, options: dict[str, Any]) -> None:
    inputs: dict[str, Any] = left_padded(PROMPTS[:num_rows]) | {"num_beams": 1}
    width = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    known = ids_of(seeded(3, model.generate, **inputs, **options))[:, width:].tolist()
    assert not any(BAD in row for row in known)
    drafter = OverflowingDrafter(known, head_size(model))
    for own_kernels in (True, False):  # the kernels do not read masked keys
        assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=3, own_kernels=own_kernels)
        stats = compare(model, inputs | options, assistant, tolerance=1e-3)
        assert 0 < stats.num_accepted_tokens < stats.num_candidate_tokens
    assert any("NaN" in reason for reason in stats.fallbacks), stats.fallbacks


NAMES = ("llama", "mistral", "gpt2", "bart", "bloom", "lfm2", "qwen3_next")


@covering("name, value, num_rows, kind, is_sampled",
          NAMES, (float("nan"), float("inf")), (1, 3), tuple(CALLS), (False, True), strength=1)  # fmt: skip
def test_overflows_change_nothing(name: str, value: float, num_rows: int, kind: str, is_sampled: bool) -> None:
    if kind == "static" and name not in ("llama", "mistral", "gpt2"):
        kind = "dynamic"
    options = (SAMPLED if is_sampled else GREEDY) | {"max_new_tokens": 14} | CALLS[kind]
    check(overflowing(name, value), num_rows, options)


def test_top_h_sees_no_nan_after_a_rejected_candidate() -> None:
    """It raises an error for them."""
    options = SAMPLED | {"max_new_tokens": 14, "top_h": 0.4, "top_k": 0}
    check(overflowing("llama", float("inf")), 1, options)
