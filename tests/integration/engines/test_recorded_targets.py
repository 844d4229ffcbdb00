"""With `draft_independent=True`, a target's passes are recorded: the same bits for every draft, and as without graphs.

UAG_DEVICE=standin pytest tests/integration/engines/test_recorded_targets.py     # or cuda, xpu
"""

import copy
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

import uag
from tests.support import calls, wrappers
from tests.support.calls import PROMPTS, left_padded
from tests.support.calls import pair as pair_on_cpu
from tests.support.device import DEVICE, random_state
from tests.support.grids import covering
from tests.support.models import tiny_of_class, tiny_target
from tests.support.tiny_classes import class_names
from tests.support.walk import SharedDrafter
from uag.decoding import ways
from uag.errors import UnsupportedError
from uag.hf.cache import recorded
from uag.hf.cache.recorded import RecordedTarget
from uag.hf.devices import graphs_of

HAS_GRAPHS = DEVICE is not None and graphs_of(torch.device(DEVICE)) is not None
pytestmark = pytest.mark.skipif(not HAS_GRAPHS, reason="needs a device that records graphs: set UAG_DEVICE")
DTYPES = (torch.float32, torch.bfloat16)
WANTED: dict[str, Any] = {"return_dict_in_generate": True, "output_logits": True, "output_scores": True}
GREEDY: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    recorded._kept.clear()


def on_device(name: str = "llama", dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    target, tokenizer = tiny_target(name)
    return copy.deepcopy(target).to(DEVICE, dtype), tokenizer


def prompts(num_rows: int = 1) -> dict[str, Any]:
    return {name: ids.to(DEVICE) for name, ids in left_padded(PROMPTS[:num_rows]).items()}


def run(assistant: uag.Assistant, target: Any, given: dict[str, Any]) -> tuple[Any, Any]:
    torch.manual_seed(7)
    return assistant.generate(target, **given, **WANTED), random_state()


def independent(tokenizer: Any, draft: tuple[Any, Any] = (None, None), **options: Any) -> uag.Assistant:
    return uag.Assistant(*draft, tokenizer, draft_independent=True, **options)


def oracle(tokenizer: Any, output: Any, share: float = 0.6) -> uag.Assistant:
    known = output.sequences[:, -len(output.logits) :].tolist()
    return independent(tokenizer, drafter=SharedDrafter(known, output.logits[0].shape[1], share))


def graphs_for(target: Any) -> Any:
    return recorded._kept[target]


def check_equal(one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    for kind in ("logits", "scores"):
        for step, both in enumerate(zip(getattr(one[0], kind), getattr(other[0], kind), strict=True)):
            assert torch.equal(*both), (kind, step)
    assert torch.equal(one[0].sequences, other[0].sequences)
    assert one[1] == other[1]


@covering("name, num_rows, options, dtype", ("llama", "gemma3", "gpt2"), (1, 3), (calls.GREEDY, calls.SAMPLED), DTYPES)
def test_recorded_target_has_the_bits_of_usual_passes_with_every_draft(
    name: str, num_rows: int, options: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, tokenizer = on_device(name, dtype)
    given = prompts(num_rows) | options
    reference = run(independent(tokenizer), target, given)
    graphs = graphs_for(target)
    assert not graphs.failure
    draft = tuple(copy.deepcopy(part) for part in pair_on_cpu(name)[2:])
    for assistant in (
        *(oracle(tokenizer, reference[0], share) for share in (1.0, 0.6, 0.0)),
        independent(tokenizer, (draft[0].to(DEVICE), draft[1])),
    ):
        check_equal(run(assistant, target, given), reference)
        assert graphs_for(target) is graphs
        assert not graphs.is_new
        assert assistant.stats.is_draft_independent
        assert not any("recorded" in reason for reason in assistant.stats.fallbacks)
    monkeypatch.setattr(ways, "graphs_of", lambda _: None)
    assistant = oracle(tokenizer, reference[0])
    output, _ = run(assistant, target, given)
    assert assistant.stats.is_draft_independent
    assert assistant.stats.num_candidate_tokens == 0
    if dtype is torch.float32:
        assert torch.equal(output.sequences, reference[0].sequences)
        torch.manual_seed(7)
        assert torch.equal(target.generate(**given), reference[0].sequences)


def test_cache_returned_by_a_recorded_target_stays_as_it_is() -> None:
    target, tokenizer = on_device()
    output, _ = run(independent(tokenizer), target, prompts() | GREEDY)
    cache = next(value for name, value in output.items() if "cache" in name or name == "past_key_values")
    before = cache.layers[0].keys.clone()
    run(independent(tokenizer), target, {"input_ids": torch.tensor([[9] * 5], device=DEVICE)} | GREEDY)
    assert torch.equal(cache.layers[0].keys, before)
    plain = target.generate(**prompts(), **GREEDY, return_dict_in_generate=True)
    expected = next(value for name, value in plain.items() if "cache" in name or name == "past_key_values")
    torch.testing.assert_close(before, expected.layers[0].keys)


def test_recorded_target_whose_weights_and_adapters_change() -> None:
    target, tokenizer = on_device()
    target = wrappers.lora(target.cpu(), names=("other",)).to(DEVICE)
    assistant, base = independent(tokenizer), target.get_base_model()
    seen = []
    for change in ("none", "adapter", "weights", "dtype"):
        if change == "adapter":
            target.set_adapter("other")
        elif change == "weights":
            for parameter in target.parameters():
                parameter.data = 1.3 * parameter.data  # at another address
        elif change == "dtype":
            target.to(torch.bfloat16)
        output = run(assistant, base, prompts() | GREEDY)
        assert not graphs_for(base).is_new
        check_equal(run(oracle(tokenizer, output[0]), base, prompts() | GREEDY), output)
        seen.append(output[0].logits[-1])
    assert len({tuple(logits.flatten().tolist()) for logits in seen}) == len(seen)


def test_recorded_target_in_and_out_of_inference_mode() -> None:
    target, tokenizer = on_device()
    given = prompts() | GREEDY
    expected = run(independent(tokenizer), target, given)
    recorded._kept.clear()
    for is_inference in (True, False):
        with torch.inference_mode(is_inference):
            check_equal(run(independent(tokenizer), target, given), expected)


def test_recorded_targets_in_threads() -> None:
    """Only one of the calls at a time has the kept passes; the others record their own."""
    target, tokenizer = on_device()
    expected = run(independent(tokenizer), target, prompts() | GREEDY)[0]
    found: list[Any] = []

    def call() -> None:
        for _ in range(2):
            found.append(oracle(tokenizer, expected).generate(target, **prompts(), **GREEDY, **WANTED))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    for output in found:
        assert torch.equal(output.sequences, expected.sequences)
        assert all(map(torch.equal, output.logits, expected.logits))


def test_recorded_target_is_freed_with_its_model() -> None:
    target, tokenizer = on_device()
    run(independent(tokenizer), target, prompts() | GREEDY)
    model, passes = weakref.ref(target), weakref.ref(recorded._kept[target])
    del target
    gc.collect()
    assert model() is None
    assert passes() is None


def test_hooks_and_caches_of_the_caller_are_not_recorded() -> None:
    target, tokenizer = on_device()
    assistant = independent(tokenizer, trust_changes=True)
    given = prompts() | GREEDY
    expected = run(independent(tokenizer), target, given)
    recorded._kept.clear()
    for options in ({"cache_implementation": "static", "disable_compile": True}, {}):
        handle = target.model.layers[0].register_forward_hook(lambda *_: None)
        output, state = run(assistant, target, given | options)
        assert torch.equal(output.sequences, expected[0].sequences)
        assert state == expected[1]
        assert assistant.stats.is_draft_independent
        handle.remove()
    assert not recorded._kept


@pytest.mark.parametrize(
    "change", [lambda logits: logits + int(logits.sum() > 1e9), lambda logits: logits + logits[logits > 1e9].sum()]
)
def test_no_wait_is_recorded(change: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    target, tokenizer = on_device()
    given = prompts() | GREEDY
    expected = run(independent(tokenizer), target, given)
    recorded._kept.clear()
    forward = RecordedTarget.forward
    monkeypatch.setattr(RecordedTarget, "forward", lambda self, **inputs: change(forward(self, **inputs)))
    assistant = oracle(tokenizer, expected[0])
    check_equal(run(assistant, target, given), expected)
    assert any("the target's passes are not recorded: a pass waits" in reason for reason in assistant.stats.fallbacks)


NOT_RECORDED = {"Falcon", "Mvp", "TrOCR", "XGLM"}
"""Classes whose passes wait for the device, without their endings; see docs/gpu.md."""


@pytest.mark.grid
@pytest.mark.parametrize(
    "class_name", [name for name in class_names() if name.endswith(("ForCausalLM", "LMHeadModel"))]
)
def test_target_class_is_recorded_or_named(class_name: str) -> None:
    """The output of every class that `draft_independent=True` does not refuse has the same bits with candidates."""
    try:
        target = tiny_of_class(class_name).to(DEVICE)
        assistant = independent(tiny_target("llama")[1], trust_changes=True)
        expected = run(assistant, target, prompts() | GREEDY)
    except (UnsupportedError, ValueError, AttributeError, StrictDataclassError) as error:
        pytest.skip(f"no such call: {error}")
    assistant = oracle(tiny_target("llama")[1], expected[0])
    check_equal(run(assistant, target, prompts() | GREEDY), expected)
    reasons = [reason for reason in assistant.stats.fallbacks if "a pass waits for the device" in reason]
    assert len(reasons) == (class_name.removesuffix("ForCausalLM").removesuffix("LMHeadModel") in NOT_RECORDED)
    assert reasons or not graphs_for(target).is_new
