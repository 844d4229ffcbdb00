"""On a second device: the output and the generators' final states of plain decoding there.

    UAG_DEVICE=standin pytest tests/integration/engines/test_devices.py     # or cuda, mps, xpu

`standin` is built from `tests/support/standin.cpp`; see `tests/support/device.py`.
"""

import copy
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor
from transformers.generation.utils import DeferredStopCheck

import uag
from tests.integration.drafts.test_faults import replace_clocks
from tests.support.callers import OracleDrafter, Puts
from tests.support.calls import GREEDY, MODES, PROMPTS, ROWS, SAMPLED, draft_in_one_call, left_padded
from tests.support.calls import pair as pair_on_cpu
from tests.support.device import DEVICE, random_state
from tests.support.grids import ROWS_AND_MODES, covering
from tests.support.kernels import needs_kernels
from tests.support.models import HYBRID_DRAFTS, tiny_model, twin
from tests.support.tokenizers import small_tokenizer
from uag.drafting import Ask
from uag.errors import OptionError
from uag.hf.devices import default_generator, graphs_of, synchronize
from uag.kernels import operations
from uag.proposal import Proposal
from uag.sampling import multinomial_is_argmax

pytestmark = pytest.mark.skipif(DEVICE is None, reason="needs a second device: set UAG_DEVICE")
STATIC = {"cache_implementation": "static", "disable_compile": True}
NEAR = ("batches", "rows advance in lockstep", "keeps a state")


def pair(
    name: str = "llama", draft_device: Any = DEVICE, eos: bool = False, is_compiled: bool = False
) -> tuple[Any, uag.Assistant]:
    """Return a target on the device, and an assistant with a draft that mostly agrees with it."""
    target, tokenizer, draft, draft_tokenizer = pair_on_cpu(name, eos)
    draft = copy.deepcopy(draft).to(draft_device)
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=4, compile_draft=is_compiled)
    return copy.deepcopy(target).to(DEVICE), assistant


def on_device(num_rows: int, **options: Any) -> dict[str, Any]:
    return {name: ids.to(DEVICE) for name, ids in left_padded(PROMPTS[:num_rows]).items()} | options


def check(target: Any, given: dict[str, Any], assistant: uag.Assistant, reasons: tuple[str, ...] = ()) -> uag.Stats:
    """Run plain decoding, then the assistant twice (the first call runs trials), and compare."""
    results = []
    for generate in (target.generate, *[lambda **options: assistant.generate(target, **options)] * 2):
        torch.manual_seed(3)
        ids = generate(**given)
        assert ids.device.type == torch.device(DEVICE).type
        results.append((ids.tolist(), random_state()))
    assert results[1] == results[0]
    assert results[2] == results[0]
    assert all(any(known in reason for known in reasons) for reason in assistant.stats.fallbacks)
    return assistant.stats


@covering(
    "draft, cache, num_rows, options", (DEVICE, "cpu", "compiled"), ({}, STATIC), (1, 3), (GREEDY, SAMPLED), strength=2
)
def test_call_equals_plain_decoding(draft: Any, cache: dict[str, Any], num_rows: int, options: dict[str, Any]) -> None:
    """On CUDA, a compiled draft runs CUDA graphs, and so does the target with a static cache."""
    is_compiled = draft == "compiled"
    if is_compiled and DEVICE != "cuda":
        pytest.skip("CUDA graphs")
    target, assistant = pair(draft_device=DEVICE if is_compiled else draft, is_compiled=is_compiled)
    given = on_device(num_rows, **options, **(cache | {"disable_compile": False} if is_compiled and cache else cache))
    stats = check(target, given, assistant, ("the rows of a static cache have the same length",) if cache else ())
    assert 0 < stats.num_accepted_tokens < stats.num_candidate_tokens


@covering("name, options", ("mistral", "gemma3", "gpt2", "mixtral"), (GREEDY, SAMPLED), strength=1)
def test_other_classes_on_device_equal_plain_decoding(name: str, options: dict[str, Any]) -> None:
    target, assistant = pair(name)
    assert check(target, on_device(3, **options), assistant, NEAR).num_accepted_tokens > 0


@covering("name, options", ("qwen3_next", "lfm2"), (GREEDY, SAMPLED), strength=1)
def test_hybrid_target_on_device_equals_plain_decoding(name: str, options: dict[str, Any]) -> None:
    kind, own = HYBRID_DRAFTS[name]
    tokenizer = small_tokenizer("byte_level")
    target = tiny_model(kind, len(tokenizer), **own)
    draft, draft_tokenizer = twin(target, tokenizer)
    assistant = uag.Assistant(draft.to(DEVICE), draft_tokenizer, tokenizer, num_candidate_tokens=4)
    assert check(target.to(DEVICE), on_device(1, **options), assistant, NEAR).num_accepted_tokens > 0


def test_target_on_cpu_with_draft_on_device_equals_plain_decoding() -> None:
    target, assistant = pair()
    inputs = left_padded(PROMPTS) | SAMPLED
    torch.manual_seed(3)
    expected = target.cpu().generate(**inputs).tolist()
    torch.manual_seed(3)
    assert assistant.generate(target, **inputs).tolist() == expected
    assert assistant.stats.num_accepted_tokens > 0


@pytest.mark.parametrize("is_plain", [False, True])
def test_own_generator_on_device_leaves_the_default_one(is_plain: bool) -> None:
    target, assistant = pair()
    torch.manual_seed(3)
    expected = target.generate(**on_device(3, **SAMPLED)).tolist()
    for _ in range(2):
        assistant.options.generator = torch.Generator(DEVICE).manual_seed(3)
        before = random_state()
        options = on_device(3, **SAMPLED) | ({"use_cache": False} if is_plain else {})
        assert assistant.generate(target, **options).tolist() == expected
        assert random_state() == before
    assert bool(assistant.stats.fallbacks) == is_plain


def test_generator_on_another_device_is_refused() -> None:
    target, assistant = pair()
    assistant.options.generator = torch.Generator()
    with pytest.raises(OptionError, match="The generator is on 'cpu'"):
        assistant.generate(target, **on_device(1, **SAMPLED))


@covering("place, num_rows, options", (DEVICE, "cpu"), (1, 3), (GREEDY, SAMPLED))
def test_default_device_changes_nothing(place: Any, num_rows: int, options: dict[str, Any]) -> None:
    """Many notebooks call `torch.set_default_device("cuda")`; uag's own tensors must not depend on it."""
    target, assistant = pair(draft_device=place)
    given = {name: ids.to(place) for name, ids in left_padded(PROMPTS[:num_rows]).items()} | options
    results = []
    multinomial_is_argmax.cache_clear()
    with torch.device(DEVICE):
        for generate in (target.to(place).generate, partial(assistant.generate, target)):
            streamer = Puts()
            torch.manual_seed(3)
            results.append((generate(**given, streamer=streamer).tolist(), random_state(), streamer.puts))
    assert results[1] == results[0]
    assert assistant.stats.num_accepted_tokens > 0


@needs_kernels
@covering("draft, num_rows, is_opened_there", ("copy", "model", "file"), (1, 3), (True, False))
def test_default_device_leaves_drafts_of_the_kernels_on_the_cpu(
    draft: str, num_rows: int, is_opened_there: bool, tmp_path: Path
) -> None:
    target, tokenizer, *_ = pair_on_cpu()
    given, drafts = left_padded(PROMPTS[:num_rows]) | GREEDY, draft_in_one_call(draft, tmp_path)
    expected = target.generate(**given)
    with torch.device(DEVICE) if is_opened_there else nullcontext():
        assistant = uag.Assistant(*drafts, tokenizer, num_candidate_tokens=4)
    with torch.device(DEVICE):
        ids = assistant.generate(target, **given)
    assert torch.equal(ids, expected)
    assert assistant.stats.num_accepted_tokens > 0
    assert assistant.stats.draft_passes.startswith("in one call")


def test_causal_mask_is_where_the_query_is() -> None:
    query = torch.zeros(1, 1, 2, 8)
    with torch.device(DEVICE):
        assert operations.causal_mask(query, query).device == query.device


@pytest.mark.parametrize("draft_device", [DEVICE, "cpu"])
def test_slow_draft_is_named_with_what_keeps_it_slow(draft_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_clocks(monkeypatch, 0.02, 0.5)
    target, assistant = pair(draft_device=draft_device)
    assistant.draft.register_forward_hook(lambda *_: None)
    assistant = uag.Assistant(assistant.draft, *pair_on_cpu()[3:0:-2], prompt_lookup=False)
    for _ in range(2):
        assistant.generate(target, **on_device(1, **GREEDY))
    assert assistant.stats.not_drafting.startswith("a candidate ")
    has_graphs = graphs_of(torch.device(draft_device)) is not None
    assert ("not recorded, because it has hooks" in assistant.stats.not_drafting) == has_graphs


@pytest.mark.parametrize("is_compiled", [False, True])
def test_draft_that_is_moved_after_a_call_goes_on_drafting(is_compiled: bool) -> None:
    if is_compiled and DEVICE != "cuda":
        pytest.skip("CUDA graphs")
    target, assistant = pair(draft_device="cpu", is_compiled=is_compiled)
    for device in ("cpu", DEVICE, "cpu"):
        assistant.draft.to(device)
        check(target, on_device(1, **GREEDY), assistant)
        assert assistant.stats.num_accepted_tokens > 0


class Draws(OracleDrafter):
    """Draws from both default generators in each round."""

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        torch.rand(1)
        torch.rand(1, device=DEVICE)
        return [[] for _ in ask.budgets]


@MODES
def test_drafter_that_draws_leaves_the_generators_of_plain_decoding(options: dict[str, Any]) -> None:
    target, _ = pair()
    check(target, on_device(1, **options), uag.Assistant(None, drafter=Draws([[]], 1)))


class Noisy(LogitsProcessor):
    """Draws from the device's generator, as plain decoding lets it."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + 0.3 * torch.randn(scores.shape, device=scores.device)


@ROWS_AND_MODES
def test_processor_that_draws_gets_the_draws_of_plain_decoding(num_rows: int, options: dict[str, Any]) -> None:
    target, assistant = pair()
    check(target, on_device(num_rows, **options, logits_processor=[Noisy()]), assistant, ("Noisy may keep state",))


def test_target_with_dropout_falls_back_without_a_draw_of_its_trial() -> None:
    target, assistant = pair()
    for module in target.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.1
    target.train()
    check(target, on_device(1, **GREEDY), assistant, ("draws random numbers in its passes in training mode",))


def test_rejection_sampling_runs_without_float64_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPS has no float64."""
    monkeypatch.setattr(torch.Tensor, "double", _without_float64(torch.Tensor.double))
    target, tokenizer, _, _ = pair_on_cpu()
    target = copy.deepcopy(target).to(DEVICE)
    assistant = uag.Assistant(
        target, tokenizer, tokenizer, sampling="rejection", num_candidate_tokens=3, trust_changes=True
    )
    assistant.generate(target, **on_device(3, **SAMPLED))
    assert assistant.stats.num_accepted_tokens > 0


def _without_float64(double: Any) -> Any:
    def refusing(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu":
            raise TypeError("the device has no float64")
        result: torch.Tensor = double(tensor)
        return result

    return refusing


@ROWS
def test_device_that_stops_late_ends_with_the_plain_generator(num_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers does on MPS since 5.23."""
    monkeypatch.setattr(DeferredStopCheck, "is_supported", staticmethod(lambda *args, **kwargs: True))
    target, assistant = pair(eos=True)
    for max_new_tokens in (3, 60):
        check(target, on_device(num_rows, **SAMPLED | {"max_new_tokens": max_new_tokens}), assistant)


def test_doors_on_device() -> None:
    target, assistant = pair()
    given = on_device(1, **GREEDY)
    expected = target.generate(**given).tolist()
    assert target.generate(**given, custom_generate=assistant).tolist() == expected
    assert uag.last_stats(target).num_accepted_tokens > 0
    uag.install()
    try:
        options = {"assistant_model": assistant.draft, "assistant_tokenizer": assistant.draft_tokenizer}
        options |= {"tokenizer": assistant.tokenizer, "num_assistant_tokens": 4}
        output = target.generate(**given, **options, num_assistant_tokens_schedule="constant")
        assert output.tolist() == expected
        assert uag.last_stats(target).num_accepted_tokens > 0
    finally:
        uag.uninstall()


def test_pass_is_timed_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the launch alone is timed, and drafting seems not to pay."""
    waited = []

    def wait(device: torch.device) -> None:
        waited.append(device)
        synchronize(device)

    monkeypatch.setattr("uag.decoding.target.synchronize", wait)
    target, assistant = pair()
    assistant.generate(target, **on_device(1, **GREEDY))  # with a trial
    waited.clear()
    assistant.generate(target, **on_device(1, **GREEDY))
    assert len(waited) == assistant.stats.num_target_forwards
    assert {device.type for device in waited} == {torch.device(DEVICE).type}


def test_default_generator_is_the_one_that_torch_draws_from() -> None:
    device = torch.empty(0, device=DEVICE).device
    generator = default_generator(device)
    assert generator is not None
    torch.manual_seed(5)
    state = generator.get_state()
    drawn = torch.rand(3, device=device)
    assert not torch.equal(generator.get_state(), state)
    assert torch.equal(torch.rand(3, device=device, generator=torch.Generator(device).manual_seed(5)), drawn)
    assert multinomial_is_argmax(device) or device.type == "mps"
