"""Recorded drafts have the distributions of drafts that are not recorded, and calls the output of plain decoding.

UAG_DEVICE=standin pytest tests/integration/engines/test_recorded.py     # or cuda, xpu
"""

import copy
import random
import threading
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

import uag
from tests.support import wrappers
from tests.support.calls import GREEDY, PROMPTS, ROWS, compare, left_padded
from tests.support.calls import pair as pair_on_cpu
from tests.support.device import DEVICE
from tests.support.forked import ringing
from tests.support.grids import ROWS_AND_MODES, covering
from tests.support.models import tiny_draft, tiny_model, tiny_of_class
from tests.support.tiny_classes import class_names
from uag.drafting import TorchPasses, check_draft
from uag.drafting.models import graphed
from uag.drafting.models.graphed import StaticPasses
from uag.drafting.models.open_draft import open_passes
from uag.errors import UnsupportedError
from uag.hf.cache import recorded, static
from uag.hf.devices import graphs_of
from uag.projection import Feed, Node, link

HAS_GRAPHS = DEVICE is not None and graphs_of(torch.device(DEVICE)) is not None
pytestmark = pytest.mark.skipif(not HAS_GRAPHS, reason="needs a device that records graphs: set UAG_DEVICE")
WITH_WINDOWS = ("gemma3_text", "mistral", "gpt_oss")
on_standin = pytest.mark.skipif(DEVICE != "standin", reason="on a GPU, some of these faults end the process")


def llama() -> Any:
    return copy.deepcopy(tiny_draft("llama")[0]).to(DEVICE)


def opened(draft: Any, weights: str = "int8") -> Any:
    check_draft(draft)
    return open_passes(draft, weights=weights)


def distributions(passes: Any, num_rows: int = 1, num_rounds: int = 8, first: int = 5) -> torch.Tensor:
    """Run passes of 1 to 6 tokens per row after a prompt, with rollbacks, and return all distributions."""
    draws = random.Random(3)
    rows: list[Any] = [SimpleNamespace(path=[]) for _ in range(num_rows)]
    passes.start(rows, None)
    found = []
    for number in range(num_rounds):
        requests = []
        for index in range(num_rows):
            path = rows[index].path
            keep = max(0, len(path) - draws.randrange(3))
            if number and index and not draws.randrange(3):
                continue  # a row without a request
            width = draws.choice((1, 1, 2, 3, 4, 6)) if number else first + index
            nodes = [Node(None, draws.randrange(1, passes.vocab_size), b"", 0) for _ in range(width)]
            requests.append((index, Feed(keep, link(nodes, path[keep - 1] if keep else None))))
        passes.feed(requests)
        found += [node.probs for _, request in requests for node in request.nodes if node.probs is not None]
    passes.release()
    return torch.from_numpy(np.stack(found))


def usual(draft: Any, num_rows: int = 1, **options: Any) -> torch.Tensor:
    return distributions(TorchPasses(draft), num_rows, **options)


def check(passes: Any, num_rows: int = 1, **options: Any) -> None:
    torch.testing.assert_close(distributions(passes, num_rows, **options), usual(passes.model, num_rows, **options))
    assert passes.counts.fall_backs == []
    assert not passes._static.is_new


# With rows of different lengths, usual passes count slots, not positions, within a window.
@pytest.mark.parametrize(
    ("name", "num_rows"), [("llama", 1), ("llama", 3), ("gpt2", 1), ("gpt2", 3), *((name, 1) for name in WITH_WINDOWS)]
)
def test_recorded_passes_have_the_distributions_of_usual_ones(name: str, num_rows: int) -> None:
    draft = tiny_model(name, 90, seed=2, **({"sliding_window": 8} if name in WITH_WINDOWS else {})).to(DEVICE)
    passes = opened(draft)
    for _ in range(2):
        check(passes, num_rows)


def assistants(target_name: str = "llama") -> tuple[Any, uag.Assistant, uag.Assistant]:
    target, tokenizer, draft, draft_tokenizer = pair_on_cpu(target_name)
    target, on_device = copy.deepcopy(target).to(DEVICE), copy.deepcopy(draft).to(DEVICE)
    both = (
        uag.Assistant(each, draft_tokenizer, tokenizer, num_candidate_tokens=4, draft_weights="model")
        for each in (on_device, copy.deepcopy(draft))
    )
    return target, *both


def prompts(num_rows: int) -> dict[str, Any]:
    return {name: ids.to(DEVICE) for name, ids in left_padded(PROMPTS[:num_rows]).items()}


@ROWS_AND_MODES
def test_call_with_a_recorded_draft_equals_plain_decoding(num_rows: int, options: dict[str, Any]) -> None:
    target, on_device, on_cpu = assistants()
    given = prompts(num_rows) | options
    compare(target, given, on_cpu)
    for is_first in (True, False):
        stats = compare(target, given, on_device)
        assert (stats.num_draft_forwards, stats.num_accepted_tokens) == (
            on_cpu.stats.num_draft_forwards,
            on_cpu.stats.num_accepted_tokens,
        )
        assert 0 < stats.num_accepted_tokens < stats.num_candidate_tokens
        assert stats.fallbacks == []
        # The graphs of the first call serve the second one.
        assert (0.0 < stats.recording_s < stats.draft_s) == is_first
        assert (" s of it recording)" in str(stats)) == is_first


@ROWS
def test_recorded_passes_while_the_cache_grows(num_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed, "_SMALLEST", 16)
    passes = opened(llama())
    check(passes, num_rows, num_rounds=30)
    assert static.capacity(passes._static.cache) >= 64
    check(passes, num_rows, first=2)  # the grown cache and its graphs are used again


def test_recorded_draft_with_adapters_that_are_switched_scaled_merged_and_disabled() -> None:
    draft = wrappers.lora(tiny_draft("llama")[0], names=("other",)).to(DEVICE)
    passes = opened(draft)
    seen = []
    for change in (
        lambda: None,
        lambda: draft.set_adapter("other"),
        lambda: [module.scale_layer(2.0) for module in draft.modules() if hasattr(module, "scale_layer")],
        draft.merge_adapter,
        draft.unmerge_adapter,
        lambda: draft.set_adapter("default"),
        draft.base_model.disable_adapter_layers,
    ):
        change()
        check(passes)
        seen.append(distributions(passes))
    has_changed = [not torch.allclose(one, other, atol=1e-4) for one, other in pairwise(seen)]
    assert has_changed == [True, True, False, False, True, True]  # merging changes only rounding


def test_recorded_draft_whose_weights_change() -> None:
    draft = llama()
    passes = opened(draft)
    check(passes)
    for parameter in draft.parameters():
        parameter.data = 1.3 * parameter.data  # at another address
    check(passes)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.mul_(0.8)  # in place, as an optimizer does; the graphs read the new values
    graphs = passes._static._passes
    check(passes)
    assert passes._static._passes is graphs
    check(passes, num_rows=2)
    draft.to(torch.bfloat16)
    distributions(passes)
    assert passes._static._passes is not graphs
    assert not passes._static.is_new


def test_recorded_drafts_in_threads() -> None:
    """They share the draft; each has its own graphs, and one records at a time."""
    draft = llama()
    expected = usual(draft)
    results: dict[int, list[torch.Tensor]] = {}
    drafts = [opened(draft) for _ in range(3)]

    def run(index: int) -> None:
        results[index] = [distributions(drafts[index]) for _ in range(2)]

    threads = [threading.Thread(target=run, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, passes in enumerate(drafts):
        assert passes.counts.fall_backs == []
        for found in results[index]:
            torch.testing.assert_close(found, expected)
    torch.testing.assert_close(distributions(drafts[0]), expected)  # in a thread that recorded nothing


def test_autocast_hooks_and_wrappers_are_not_recorded() -> None:
    draft = llama()
    device = torch.device(draft.device)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert "autocast" in recorded.refusal(draft, device)
    assert "compiled" in recorded.refusal(wrappers.compiled_forward(draft), device)
    assert "not all on" in recorded.refusal(draft, torch.device("cpu" if DEVICE == "cpu" else DEVICE, 1))
    draft.model.layers[0].register_forward_hook(lambda *_: None)
    passes = opened(draft)
    torch.testing.assert_close(distributions(passes), usual(draft))
    assert not passes._static.kind
    assert "not recorded, because it has hooks, which a graph would not call" in passes.counts.advice
    assert passes.counts.fall_backs == []


def seed(monkeypatch: pytest.MonkeyPatch, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change the ids and positions at the start of each pass."""
    call = StaticPasses.forward
    monkeypatch.setattr(
        StaticPasses, "forward", lambda self, tokens, *more, **kw: call(self, change(tokens), *more, **kw)
    )


WAITING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "waits": lambda tokens: tokens + int(tokens.sum() * 0),
    "copies": lambda tokens: tokens + torch.tensor(0, device=tokens.device),
    "selects": lambda tokens: tokens + tokens[tokens < 0].sum(),
}


@covering("change, is_found_before", WAITING, (True, False), strength=1)
def test_pass_that_waits_is_not_recorded(change: str, is_found_before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found before it is recorded; if it were not, the recording would fail."""
    if not is_found_before:
        monkeypatch.setattr(recorded, "_WithoutWaits", nullcontext)
    seed(monkeypatch, WAITING[change])
    draft = llama()
    passes, module = opened(draft), graphs_of(torch.device(DEVICE))
    before = module.current_stream()
    for _ in range(2):
        torch.testing.assert_close(distributions(passes), usual(draft))
        assert len(passes.counts.fall_backs) == 1
        assert ("waits for the device" in passes.counts.fall_backs[0]) == is_found_before
        assert passes._static.failure
    assert module.current_stream() == before
    draft.cpu()
    distributions(passes)
    assert passes.counts.fall_backs == []
    target, assistant, _ = assistants()
    compare(target, prompts(1) | GREEDY, assistant)
    assert any("the draft's passes are not recorded: " in reason for reason in assistant.stats.fallbacks)


def bake_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of slots is a number of the host, not of the device."""
    call, run = StaticPasses.forward, StaticPasses.run_book
    lengths: list[int] = []

    def running(self: Any, book: Any, inputs: Any, kept: int) -> Any:
        lengths.append(book.num_slots - inputs.shape[-1])
        return run(self, book, inputs, kept)

    def baked(self: Any, tokens: torch.Tensor, in_use: torch.Tensor, cache: Any, kept: int = 0) -> torch.Tensor:
        if not cache.is_initialized:
            return call(self, tokens, in_use, cache, kept)
        before = [layer.cumulative_length for layer in cache.layers]
        for layer in cache.layers:
            layer.cumulative_length = layer.cumulative_length * 0 + lengths[-1]
        logits = call(self, tokens, in_use, cache, kept)
        for layer, length in zip(cache.layers, before, strict=True):
            layer.cumulative_length = length
        return logits

    monkeypatch.setattr(StaticPasses, "forward", baked)
    monkeypatch.setattr(StaticPasses, "run_book", running)


def fill_one_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first replay, the slots in use are not copied to their buffer."""
    fill = recorded._fill
    filled: list[Any] = []

    def filling(buffers: Any, inputs: Any) -> None:
        fill(buffers if all(buffers is not each for each in filled) else {"tokens": buffers["tokens"]}, inputs)
        filled.append(buffers)

    monkeypatch.setattr(recorded, "_fill", filling)


def move_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys get another address before a pass."""
    set_length = static.set_length

    def moving(cache: Any, length: int) -> None:
        for layer in cache.layers:
            if layer.is_initialized and length > 20:
                layer.keys = layer.keys.clone()
        set_length(cache, length)

    monkeypatch.setattr(static, "set_length", moving)


def keep_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are kept although the weights have moved."""
    monkeypatch.setattr(recorded, "state_of", lambda model: (model.dtype,))


def keep_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The length is not set before a replay."""
    set_length = static.set_length
    monkeypatch.setattr(graphed, "static", SimpleNamespace(**vars(static) | {"set_length": lambda *_: None}))
    run = recorded.GraphedModel.run

    def running(self: Any, inputs: Any, length: int) -> Any:
        if not self._passes.get(tuple(tensor.shape for tensor in inputs.values())):
            set_length(self.cache, length)
        return run(self, inputs, length)

    monkeypatch.setattr(recorded.GraphedModel, "run", running)


def keep_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits of the replay before are used, as if they had been copied too early."""
    run = recorded.GraphedModel.run
    last: dict[Any, torch.Tensor] = {}

    def running(self: Any, *args: Any) -> Any:
        before = last.get(self)
        logits, is_special = run(self, *args)
        last[self] = logits.clone()
        return logits if is_special or before is None or before.shape != logits.shape else before, is_special

    monkeypatch.setattr(recorded.GraphedModel, "run", running)


@on_standin
@pytest.mark.parametrize("fault", [bake_length, fill_one_input, move_cache, keep_graphs, keep_length, keep_logits])
def test_seeded_fault_in_recorded_passes_is_found(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = llama()
    passes = opened(draft)
    check(passes, num_rounds=20)
    fault(monkeypatch)
    expected = usual(draft, num_rounds=20)
    passes = opened(draft)
    found = distributions(passes, num_rounds=20)
    if fault is keep_graphs:
        torch.testing.assert_close(found, expected)
        for parameter in draft.parameters():
            parameter.data = 1.3 * parameter.data
        found, expected = distributions(passes, num_rounds=20), usual(draft, num_rounds=20)
    assert passes.counts.fall_backs == []  # nothing else noticed
    assert not torch.allclose(found, expected, atol=1e-4)


@on_standin
def test_a_callers_time_limit_that_rings_during_a_recording_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with ringing() as ring:
        monkeypatch.setattr(recorded.GraphedModel, "_record", lambda *_: ring())
        with pytest.raises(TimeoutError):
            distributions(opened(llama()))


@on_standin
def test_number_of_the_host_is_found_by_the_first_replay_of_recorded_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A length that the cache itself keeps as a number, as sliding layers of transformers do."""
    set_length = static.set_length
    lengths: list[int] = []

    def noting(cache: Any, length: int) -> None:
        lengths.append(length)
        set_length(cache, length)

    monkeypatch.setattr(static, "set_length", noting)
    seed(monkeypatch, lambda tokens: tokens + (lengths[-1] == 0))
    passes = opened(llama())
    distributions(passes)
    (reason,) = passes.counts.fall_backs
    assert "the first replay computed other logits" in reason


ENDINGS = ("ForCausalLM", "LMHeadModel")
NO_POSITIONS = "its forward has no position_ids"
NO_STATIC_CACHE = "transformers does not support static caches for its class"
WAITS = "a pass waits for the device"
NOT_RECORDED: dict[str, str] = {
    **dict.fromkeys(("Bart", "BigBirdPegasus", "Blenderbot", "BlenderbotSmall", "Bloom", "MBart", "Marian", "Mpt",
                     "Mvp", "PLBart", "Pegasus", "RoFormer", "TrOCR", "Whisper"), NO_POSITIONS),
    **dict.fromkeys(("AriaText", "Bert", "CTRL", "Camembert", "Data2VecText", "Dbrx", "Electra", "Ernie", "Fuyu",
                     "GPTNeo", "JetMoe", "LongcatFlash", "MegatronBert", "RemBert", "RoCBert", "Roberta",
                     "RobertaPreLayerNorm", "XLMRoberta", "XLMRobertaXL", "Xmod"), NO_STATIC_CACHE),
    "Gemma3n": "its cache has layers of kind DummyLayer",
    "Llama4": "its forward takes no masks by layer",
    **dict.fromkeys(("Falcon", "Phimoe", "XGLM"), WAITS),
}  # fmt: skip
"""Classes whose drafts are not recorded, without their endings, and a part of the reason; see docs/gpu.md."""


@pytest.mark.grid
@pytest.mark.parametrize(
    "class_name", [name for name in class_names() if name.endswith(("ForCausalLM", "LMHeadModel"))]
)
def test_class_is_recorded_or_named(class_name: str) -> None:
    try:
        draft = tiny_of_class(class_name).to(DEVICE)
        passes = opened(draft)
    except (UnsupportedError, ValueError, AttributeError, StrictDataclassError) as error:  # no small model of some
        pytest.skip(f"no draft: {error}")
    if passes._static is None:
        pytest.skip("keeps a state")
    torch.testing.assert_close(distributions(passes, first=6), usual(draft, first=6), atol=1e-4, rtol=1e-3)
    name = next(class_name.removesuffix(ending) for ending in ENDINGS if class_name.endswith(ending))
    graphs = passes._static
    is_recorded = bool(graphs.kind) and not (graphs.is_new or graphs.failure)
    assert is_recorded == (name not in NOT_RECORDED)
    reasons = [*passes.counts.fall_backs, passes.counts.advice] if not is_recorded else [""]
    assert NOT_RECORDED.get(name, "") in reasons[0] + reasons[-1]
