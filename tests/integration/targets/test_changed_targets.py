"""Targets that other code changes or observes fall back to plain decoding, unless the caller trusts the change."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import LlamaForCausalLM

import uag
from tests.fuzz.targets import CHANGES as DRAWN
from tests.support.calls import GREEDY, NEW, PROMPTS, SAMPLED, compare, left_padded, oracle, pair, seeded
from tests.support.grids import ROWS_AND_MODES, covering

pytestmark = pytest.mark.filterwarnings("ignore:uag. other code changes")

STEER = torch.linspace(-2, 2, 32)

Change = Callable[[Any], AbstractContextManager[Any]]


def by_width(x: torch.Tensor) -> torch.Tensor:
    """Change states [rows, width, 32] depending on the number of tokens in the pass."""
    return x + STEER * x.shape[1]


def recording_hook(target: Any) -> Any:
    return target.model.register_forward_pre_hook(lambda *_: None)


def forward_without_globals(target: Any) -> AbstractContextManager[Any]:
    names: dict[str, Any] = {"own": target.model.norm.forward, "steer": by_width}
    exec("def forward(x): return steer(own(x))", names)
    names.pop("__name__", None)
    return patch.object(target.model.norm, "forward", names["forward"])


def forward_of_a_class(target: Any) -> AbstractContextManager[Any]:
    kind = type(target.model.norm)
    own = kind.forward
    return patch.object(kind, "forward", lambda self, x: by_width(own(self, x)))


def object_in_the_place_of_a_forward(target: Any) -> AbstractContextManager[Any]:
    own = target.model.norm.forward
    return patch.object(target.model.norm, "forward", Mock(side_effect=lambda x: by_width(own(x))))


prepare: Any = LlamaForCausalLM.prepare_inputs_for_generation
DESCRIBED = {
    "recording hook": "a forward hook on LlamaModel",
    "global hook each": "a forward hook on all",
    "function mode": "the active mode FunctionMode",
    "forward row": "forward of LlamaRMSNorm",
}

# A class of another package; a hook that counts the passes of all calls; weights.
_OTHER = "module swapped", "hook passes", "embeddings nan", "embeddings inf"

CHANGES: dict[str, Change] = {
    **{name: change for name, change in DRAWN.items() if name not in _OTHER and "training" not in name},
    **{change.__name__.replace("_", " "): change for change in (
        recording_hook, forward_without_globals, forward_of_a_class, object_in_the_place_of_a_forward,
    )},
    "preparation of the user": lambda target: patch.object(
        target, "prepare_inputs_for_generation", lambda *args, **kwargs: prepare(target, *args, **kwargs)
    ),
}  # fmt: skip


@covering("change, num_rows, options", CHANGES, (1, 3), (GREEDY, SAMPLED), strength=1)
def test_a_changed_target_falls_back_to_plain_decoding(change: str, num_rows: int, options: dict[str, Any]) -> None:
    target, inputs = copy.deepcopy(pair()[0]), left_padded(PROMPTS[:num_rows])
    with CHANGES[change](target):
        stats = compare(target, inputs | options)
        assert stats.num_candidate_tokens == 0
        assert f"other code changes or observes the target's passes ({DESCRIBED.get(change, '')}" in stats.fallbacks[0]
    assert compare(target, inputs | options).num_accepted_tokens > 0  # and assisted again afterwards


@covering("first, num_rows, options", (0, 1), (1, 2), (GREEDY, SAMPLED))
def test_a_prompt_read_in_both_directions_has_no_candidates(first: int, num_rows: int, options: dict[str, Any]) -> None:
    """Without padding, a prompt has no mask; a block after the cache has one."""
    target = copy.deepcopy(pair()[0])
    for layer in target.model.layers[first:]:
        layer.self_attn.is_causal = False
    inputs = {"input_ids": torch.tensor([[5, 9, 14, 33, 7, 8], [12, 40, 33, 18, 21, 9]][:num_rows])}
    assert compare(target, inputs | options, spoil=0).num_accepted_tokens > 0


@pytest.mark.parametrize(("owner", "name"), [(torch.nn.Linear, "forward"), (F, "linear")])
def test_kernels_leave_a_changed_model_alone(owner: Any, name: str) -> None:
    """Even without a draft: the kernels would bypass the code that observes the model."""
    own, seen = getattr(owner, name), count()
    with patch.object(owner, name, lambda *args: own(*args) if next(seen) >= 0 else None):
        uag.Assistant(None).generate(copy.deepcopy(pair()[0]), torch.tensor([PROMPTS[0]]), **GREEDY)
    assert next(seen) >= NEW * 15


@ROWS_AND_MODES
def test_the_caller_may_trust_a_change(num_rows: int, options: dict[str, Any]) -> None:
    """A vector per row is correct in passes of any width, provided that rows keep their indices."""
    target = copy.deepcopy(pair()[0])
    given = left_padded(PROMPTS[:num_rows]) | options
    with CHANGES["forward row"](target):
        expected = seeded(3, target.generate, **given)
        assistant = oracle(target, None, expected, given["input_ids"].shape[1])
        assistant.options.trust_changes = True
        stats = compare(target, given, assistant)
    assert stats.num_accepted_tokens > 0
    reason = "rows advance in lockstep: forward of LlamaRMSNorm may treat the rows of a batch differently"
    assert stats.fallbacks == [reason] * (num_rows > 1)


def test_code_of_known_libraries_is_no_change() -> None:
    target = copy.deepcopy(pair()[0])
    inputs = left_padded(PROMPTS)
    target.generate(**inputs, **GREEDY, return_dict_in_generate=True, output_hidden_states=True)  # leaves hooks
    target.enable_input_require_grads()
    torch.nn.utils.spectral_norm(target.model.layers[0].mlp.up_proj).eval()  # a hook of torch's
    with torch.device("cpu"), nullcontext():  # a function mode of torch's own
        stats = compare(target, inputs | GREEDY)
    assert not stats.fallbacks
    assert stats.num_accepted_tokens > 0


def test_functions_that_no_pass_calls_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    target = copy.deepcopy(pair()[0])
    target.loss_function = lambda *_: None
    target.save_pretrained = lambda *_: None
    target.model.norm.extra_repr = lambda: "mine"
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda self: "a tensor")
    monkeypatch.setattr(torch.Tensor, "lovely", lambda self: "a tensor", raising=False)
    stats = compare(target, left_padded(PROMPTS) | GREEDY)
    assert not stats.fallbacks
    assert stats.num_accepted_tokens > 0
