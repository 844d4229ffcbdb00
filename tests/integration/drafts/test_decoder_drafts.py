"""Drafts whose passes run in one call over a copy of their weights: outputs are plain decoding's; changes are seen."""

import copy
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch

import uag
from tests.support.calls import (
    GREEDY,
    PROMPTS,
    SAMPLED,
    TEXTS,
    assert_drafted,
    assistant_of,
    batch,
    compare,
    left_padded,
    pair,
)
from tests.support.forked import forked, needs_fork
from tests.support.grids import covering
from tests.support.models import tiny_target, twin
from tests.support.rollbacks import check_rollbacks
from uag.drafting.models.decoder import DecoderPasses
from uag.kernels import Cache, Decoder, kernel
from uag.kernels.decoders import decoder_of
from uag.projection import DraftRow, Feed, Node, link

pytestmark = pytest.mark.skipif(not kernel.LEVEL, reason="the kernels were not compiled here")

NEAR = 0.5
"""Least acceptance of a copy of the target. It cannot draft ids of the head that the tokenizer lacks, and weights in
8 bits change some of the first choices of so small a model."""

NAMES = ["llama", "gemma2", "gpt2", "phi", "qwen3"]


def passes(assistant: uag.Assistant) -> Any:
    drafter: Any = assistant._sessions[0].drafter
    return drafter.model


def how(assistant: uag.Assistant) -> str:
    return str(passes(assistant).counts.passes)


def of(draft: Any, tokenizer: Any, **options: Any) -> uag.Assistant:
    """Return an assistant whose draft shares the target's ids."""
    return uag.Assistant(draft, tokenizer, tokenizer, **{"num_candidate_tokens": 4} | options)


def acceptance(stats: uag.Stats) -> float:
    return stats.num_accepted_tokens / stats.num_candidate_tokens


@covering("name, num_rows, options, weights", NAMES, (1, 3), (GREEDY, SAMPLED), ("int8", "int4"))
def test_calls_equal_plain_decoding(name: str, num_rows: int, options: dict[str, Any], weights: str) -> None:
    target, tokenizer, draft, draft_tokenizer = pair(name)
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=4, draft_weights=weights)
    found = decoder_of(draft, weights)
    stats = compare(target, batch(tokenizer, num_rows) | options, assistant)
    if isinstance(found, Decoder):
        assert how(assistant) == f"in one call, {weights}"
    else:  # so wide are some of these weights
        assert weights == "int4"
        assert how(assistant).startswith("in PyTorch: the draft loses ")
    assert_drafted(stats)


def replace(model: Any, state: dict[str, Any]) -> None:
    for name, value in state.items():
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, torch.nn.Parameter(value.clone()))


def each_parameter(change: Callable[[Any, torch.Tensor], Any]) -> Callable[[Any, dict[str, Any]], Any]:
    return lambda model, state: [change(value, state[name]) for name, value in model.named_parameters()]


CHANGES: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "in place": torch.no_grad()(each_parameter(lambda value, new: value.copy_(new))),
    "data in place": each_parameter(lambda value, new: value.data.copy_(new)),
    "data": each_parameter(lambda value, new: setattr(value, "data", new.clone())),
    "load_state_dict": lambda model, state: model.load_state_dict(state),
    "load_state_dict(assign=True)": lambda model, state: model.load_state_dict(state, assign=True),
    "parameters": replace,
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_are_seen_by_the_next_call(change: str) -> None:
    target, tokenizer = tiny_target("llama")
    draft = tiny_target("llama", seed=7)[0]
    given, assistant = batch(tokenizer, 3) | GREEDY, of(draft, tokenizer)
    assert acceptance(compare(target, given, assistant)) < 0.3
    CHANGES[change](draft, target.state_dict())
    assert acceptance(compare(target, given, assistant)) > NEAR
    assert how(assistant) == "in one call, int8"


def test_an_adapter_is_seen_by_the_next_call() -> None:
    """PyTorch runs a model with an adapter; once it is merged, its weights are others."""
    target, tokenizer = tiny_target("llama")
    base, (tuned, _) = copy.deepcopy(target), tiny_target("llama")
    given, assistant = batch(tokenizer, 3) | GREEDY, of(base, tokenizer)
    config = peft.LoraConfig(target_modules=["q_proj", "down_proj"], init_lora_weights=False, lora_alpha=128)
    torch.manual_seed(1)
    with_adapter = peft.get_peft_model(tuned, config).eval()
    merged = copy.deepcopy(with_adapter).merge_and_unload().eval()
    assert acceptance(compare(merged, given, assistant)) < 0.4
    injected: Any = peft.get_peft_model(base, config).eval()  # into the draft's own modules
    injected.load_state_dict(with_adapter.state_dict())
    assert acceptance(compare(merged, given, assistant)) > NEAR
    assert how(assistant).startswith("in PyTorch: the draft ")
    injected.merge_and_unload()
    assert acceptance(compare(merged, given, assistant)) > NEAR
    assert how(assistant) == "in one call, int8"


Change = Callable[[Any], Any]
PYTORCH = "in PyTorch: the draft "


def with_hook(draft: Any) -> str:
    draft.handle = draft.model.layers[0].mlp.register_forward_hook(lambda *arguments: 2.0 * arguments[-1])
    return PYTORCH


def in_dtype(dtype: torch.dtype) -> Change:
    return lambda draft: draft.to(dtype) and "in one call, int8"


@pytest.mark.parametrize(
    "changes",
    [
        [in_dtype(torch.bfloat16), in_dtype(torch.float16), in_dtype(torch.float32)],
        2
        * [
            lambda draft: draft.train() and f"{PYTORCH}is in training mode",
            lambda draft: draft.eval() and "in one call",
        ],
        [with_hook, lambda draft: draft.handle.remove() or "in one call"],
    ],
    ids=["dtype", "mode", "hook"],
)
def test_what_changes_is_seen_by_the_next_call(changes: list[Change]) -> None:
    target, tokenizer = tiny_target("llama")
    draft = copy.deepcopy(target)
    given, assistant = batch(tokenizer, 3) | GREEDY, of(draft, tokenizer)
    for change in [lambda _: "in one call, int8", *changes]:
        expected = change(draft)
        stats = compare(target, given, assistant)
        assert how(assistant).startswith(expected)
        assert acceptance(stats) > NEAR or change is with_hook


def with_nan(place: str) -> Change:
    def change(draft: Any) -> None:
        with torch.no_grad():
            draft.get_submodule(place).weight[3] = torch.nan

    return change


@pytest.mark.parametrize(
    ("change", "options"),
    [
        *((with_nan(place), {}) for place in ("model.norm", "lm_head", "model.layers.1.mlp.down_proj")),
        (lambda draft: vars(draft.model.layers[1].self_attn).update(scaling=None), {}),  # PyTorch's own attention
        (lambda _: None, {"own_kernels": False}),
        (lambda _: None, {"library": None}),
    ],
)
def test_the_rest_is_left_to_pytorch(change: Change, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    target, tokenizer = tiny_target("llama")
    draft = copy.deepcopy(target)
    change(draft)
    if "library" in options:
        monkeypatch.setattr(kernel, "LEVEL", "")
        monkeypatch.setattr(kernel, "_library", options.pop("library"))
    assistant = of(draft, tokenizer, **options)
    compare(target, batch(tokenizer, 3) | GREEDY, assistant)
    assert how(assistant).startswith(PYTORCH)


def test_the_copy_is_freed_with_the_model() -> None:
    target, tokenizer = tiny_target("llama")
    draft = tiny_target("llama", seed=7)[0]
    assistant = of(draft, tokenizer)
    compare(target, batch(tokenizer, 1) | GREEDY, assistant)
    found = decoder_of(draft, "int8")
    assert isinstance(found, Decoder)
    freed = weakref.ref(draft), weakref.ref(found)
    del draft, assistant, found
    gc.collect()
    assert [reference() for reference in freed] == [None, None]


@pytest.mark.parametrize("weights", ["int8", "model"])
def test_a_draft_that_nobody_uses_is_freed_without_a_collection(weights: str) -> None:
    draft, tokenizer = tiny_target("llama", seed=7)
    gc.collect()
    gc.disable()
    try:
        reference, assistant = weakref.ref(draft), of(draft, tokenizer, draft_weights=weights)
        del draft, assistant
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("is_one", [True, False], ids=["one assistant", "two assistants"])
def test_threads_draft_at_once(is_one: bool) -> None:
    target, tokenizer = tiny_target("llama")
    draft, draft_tokenizer = twin(target, tokenizer)
    assistants = [uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=4) for _ in range(2)]
    prompts = [batch(tokenizer, 1), left_padded(PROMPTS)]
    expected = [target.generate(**prompt, **GREEDY).tolist() for prompt in prompts]
    barrier = threading.Barrier(4)

    def run(number: int) -> tuple[list[list[int]], int]:
        barrier.wait()
        assistant = assistants[0 if is_one else number % 2]
        output = [assistant.generate(target, **prompts[number // 2], **GREEDY) for _ in range(3)][-1]
        return output.tolist(), assistant.totals.num_accepted_tokens

    with ThreadPoolExecutor(4) as pool:
        for number, (output, num_accepted) in enumerate(pool.map(run, range(4))):
            assert output == expected[number // 2]
            assert num_accepted > 0
    assert "one call" in how(assistants[0])


@needs_fork
def test_a_forked_process_drafts() -> None:
    target, tokenizer, _, _ = pair("llama")
    assistant, given = assistant_of(), batch(tokenizer, 1) | GREEDY
    expected = assistant.generate(target, **given).tolist()
    found = forked(lambda: (assistant.generate(target, **given).tolist(), how(assistant)))
    assert found == (expected, "in one call, int8")


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_nan_weights_of_some_ids_do_not_end_drafting(weights: str) -> None:
    target, tokenizer = tiny_target("llama")
    draft, given = copy.deepcopy(target), batch(tokenizer, 3) | GREEDY
    before = compare(target, given, of(draft, tokenizer, draft_weights=weights))
    with torch.no_grad():
        draft.get_input_embeddings().weight[8] = torch.nan
    assistant = of(draft, tokenizer, draft_weights=weights)
    after = compare(target, given, assistant)
    assert how(assistant) == f"in one call, {weights}"
    assert after.num_accepted_tokens == before.num_accepted_tokens > 0
    assert_drafted(compare(target, left_padded(PROMPTS) | GREEDY, assistant))  # one of these has this id


def test_a_tokenizer_may_have_more_ids_than_the_draft() -> None:
    target, tokenizer = tiny_target("llama")
    draft = tiny_target("llama")[0]
    draft.resize_token_embeddings(60)
    draft.eval()
    given = left_padded([[5, 300, 14, 3, 410], [8, 6], [12, 40, 33, 200, 21, 9, 4]]) | GREEDY
    assistant = of(draft, tokenizer)
    assert compare(target, given, assistant).num_candidate_tokens > 0
    assert how(assistant) == "in one call, int8"


@pytest.mark.parametrize("num_rows", [1, 3])
def test_long_prompts_are_read_in_parts(num_rows: int) -> None:
    target, tokenizer = tiny_target("llama")
    rows = [tokenizer(text * 25, add_special_tokens=False)["input_ids"] for text in TEXTS[:num_rows]]
    given, assistant = left_padded(rows) | GREEDY, of(copy.deepcopy(target), tokenizer)
    assert given["input_ids"].shape[1] > 150
    assert acceptance(compare(target, given, assistant)) > NEAR
    assert how(assistant) == "in one call, int8"


class AsModel:
    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.config = SimpleNamespace(vocab_size=decoder.vocab_size)

    def __call__(self, ids: torch.Tensor) -> Any:
        logits = self.decoder.run(Cache(self.decoder, 1), ids.tolist(), ids.shape[1])
        return SimpleNamespace(logits=logits[None])


@covering("name, num_rows", NAMES, (1, 3), strength=1)
def test_every_token_sees_its_ancestors_only(name: str, num_rows: int) -> None:
    """Also where the search goes back by more tokens than distributions are kept, and in a cache of another call."""
    model, _ = tiny_target(name)
    own = DecoderPasses(model, None, "int8", is_static=True)
    found = decoder_of(model, "int8")
    assert isinstance(found, Decoder)
    for num_passes in (7, 3):
        check_rollbacks(own, AsModel(found), num_passes, 0.0, num_rows)
        own.release()


def test_normalizers_are_those_of_the_logits() -> None:
    model, _ = tiny_target("llama")
    own, row, ids = DecoderPasses(model, None, "int8", is_static=True), DraftRow(), [5, 9, 14]
    own.start([row])
    own.needs_normalizer = True
    own.feed([(0, Feed(0, link([Node(None, i, b"", 0) for i in ids])))])
    found = decoder_of(model, "int8")
    assert isinstance(found, Decoder)
    expected = AsModel(found)(torch.tensor([ids])).logits[0].logsumexp(-1)
    assert torch.allclose(torch.tensor([node.log_normalizer for node in row.path]), expected)


@pytest.mark.usefixtures("layer_by_layer")
def test_a_pass_without_memory_ends_drafting_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure is the operating system's, which cannot be made to happen here: the kernel's answer stands for it."""
    target, tokenizer, _, _ = pair("llama")
    assistant, given = assistant_of(), batch(tokenizer, 1) | GREEDY
    compare(target, given, assistant)
    with monkeypatch.context() as patch:
        patch.setattr(kernel._library, "rows_pass", lambda _: 1)
        stats = compare(target, given, assistant)
    assert any("no memory for a pass" in reason for reason in stats.fallbacks)
    assert_drafted(compare(target, given, assistant))
