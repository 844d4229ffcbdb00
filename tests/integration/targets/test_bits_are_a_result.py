"""Whatever makes PyTorch compute what the trial saw uag's kernels compute, or compute more, is seen and named."""

import copy
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from time import perf_counter
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.testing._internal.two_tensor import TwoTensor
from transformers import LlamaConfig, LlamaForCausalLM, MixtralForCausalLM
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import repeat_kv
from transformers.models.mixtral import modeling_mixtral

import uag
from tests.support.calls import GREEDY, PROMPTS, left_padded
from tests.support.forked import elsewhere, interrupted
from tests.support.grids import covering
from tests.support.kernels import needs_kernels
from tests.support.models import HYBRID_DRAFTS, tiny_model
from tests.support.walk import SharedDrafter
from tests.support.wrappers import Around
from uag.decoding import trial
from uag.hf.cache.caches import CACHE
from uag.kernels import Watch, kernel, operations, recurrences, watching

pytestmark = needs_kernels
NEW = 14
WANTED: dict[str, Any] = GREEDY | {"max_new_tokens": NEW, "return_dict_in_generate": True, "output_logits": True}
PROMISE = {"draft_independent": True}


def run(
    target: Any, share: float | None = None, num_rows: int = 1, known: Any = None, **options: Any
) -> tuple[Any, Any]:
    """Generate without candidates, or with a share of right ones, and return the output and the statistics.

    `known` is the output without candidates, which is else computed.
    """
    given = left_padded(PROMPTS[:num_rows]) | WANTED
    if share is None:
        assistant = uag.Assistant(None, **options)
    else:
        known = run(target, None, num_rows)[0] if known is None else known
        drafter = SharedDrafter(known.sequences[:, -NEW:].tolist(), target.config.vocab_size, share)
        assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=7, **options)
    return assistant.generate(target, **given), assistant.stats


def check_kept(target: Any, reason: str = "", num_rows: int = 1) -> uag.Stats:
    """Check that `draft_independent=True` keeps its promise for right and wrong candidates."""
    expected, _ = run(target, None, num_rows, **PROMISE)
    for share in (1.0, 0.5):
        found, stats = run(target, share, num_rows, expected, **PROMISE)
        assert torch.equal(found.sequences, expected.sequences)
        assert all(map(torch.equal, found.logits, expected.logits))
        assert stats.is_draft_independent
        assert reason in "; ".join(stats.fallbacks)
    kept: uag.Stats = stats
    return kept


def llama(kind: type = LlamaForCausalLM, dtype: torch.dtype = torch.bfloat16, attention: str = "sdpa") -> Any:
    target = copy.deepcopy(tiny_model("llama", 700)).to(dtype)
    target.set_attn_implementation(attention)
    target.__class__ = kind
    return target


def test_autocast_is_seen_before_the_call() -> None:
    target = llama()
    run(target, 1.0)  # its trial
    with torch.autocast("cpu", torch.bfloat16):
        assert "autocast" in run(target, 1.0)[1].draft_dependence
        stats = check_kept(target, "autocast")
    assert stats.num_candidate_tokens == 0
    assert run(target, 1.0)[1].is_draft_independent


class Norm(torch.nn.Module):
    """An RMS norm in half precision, whose `rsqrt` rounds a vector's values otherwise than single ones."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


@covering("dtype, num_rows", (torch.float32, torch.bfloat16, torch.float16), (1, 3), strength=1)
def test_functions_that_round_by_place_are_found_however_narrow_the_trial(dtype: torch.dtype, num_rows: int) -> None:
    target = llama(dtype=dtype)
    for layer in target.model.layers:
        layer.input_layernorm = Norm(target.config.hidden_size).to(dtype)
    stats = run(target, 1.0, num_rows)[1]
    assert stats.is_draft_independent == (dtype is torch.float32)
    assert ("aten::rsqrt" in stats.draft_dependence) == (dtype is not torch.float32)
    check_kept(target, "" if dtype is torch.float32 else "aten::rsqrt", num_rows)


def test_sums_over_other_strides_are_found() -> None:
    by_layout = []
    for x in (torch.ones(1, 9, 8), torch.ones(1, 1, 8), torch.ones(1, 8, 9).mT, torch.ones(1, 8, 1).mT):
        with watching() as seen:
            x.mean(-1)
        by_layout.append(seen.sizes)
    adjacent, alone, strided, strided_alone = by_layout
    assert adjacent == alone == strided_alone != strided


@pytest.mark.parametrize(
    ("function", "is_even"),
    [
        (lambda x: torch.stack([x, x]).softmax(0), False),
        (lambda x: torch.stack([x, x]).log_softmax(0), False),
        (lambda x: torch.stack([x, x]).mean(0), False),
        (lambda x: x.mT.contiguous().logsumexp(1), False),
        (lambda x: x.mT.logsumexp(1), True),
        (lambda x: x.mT.contiguous().std(1), False),
        (lambda x: x.unflatten(-1, (2, 4)).softmax(-2), False),  # shared out among threads at any place
        (lambda x: x.unflatten(-1, (2, 4)).sum(-2), True),
        (lambda x: x.mT.unflatten(1, (2, 4)).mean(1), False),  # loops go by the strides, those over tokens first
        (lambda x: x[:, :, None].expand(-1, -1, 3, -1).mean(2), False),
        (lambda x: x.unflatten(-1, (2, 4)).mean((-2, -1)), True),
        (lambda x: x.softmax(-1).norm(dim=2), True),
        (lambda x: x.std(-1), True),
        (lambda x: x.double().std(-1), False),
        (lambda x: x.double().var(-1), False),
        (lambda x: x.amax(-1), True),
        (lambda x: x.max(), False),  # of all tokens
        (lambda x: x.abs().amax(), False),
    ],
)
def test_sums_side_by_side_are_found(function: Callable[[torch.Tensor], torch.Tensor], is_even: bool) -> None:
    """PyTorch computes as many as fit into a vector at once, and the others otherwise."""
    by_width = []
    for width in (1, 9):
        with watching() as seen:
            function(torch.ones(1, width, 8))
        by_width.append(seen.sizes)
    assert (by_width[0] == by_width[1]) == is_even


class Branches(Norm):
    """Weighs a layer's branches by a softmax over them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = torch.stack([x * factor for factor in (0.3, 0.7, 1.1)]).log_softmax(0)
        return self.weight * shares[1]


def test_a_softmax_over_branches_is_found() -> None:
    target = llama(dtype=torch.float32)
    target.model.norm = Branches(target.config.hidden_size)
    assert "aten::_log_softmax" in run(target, 1.0)[1].draft_dependence
    check_kept(target, "aten::_log_softmax")


@pytest.mark.parametrize(
    ("size", "num_threads", "is_split"), [(40_000, 2, True), (40_000, 1, False), (30_000, 2, False)]
)
def test_a_long_sum_that_threads_divide_is_found(
    size: int, num_threads: int, is_split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    by_width = []
    for width in (1, 9):
        with watching() as seen:
            torch.ones(1, width, size).mean(-1)
            torch.ones(1, width, size).softmax(-1)
        by_width.append(seen.sizes)
    assert {name for name, _ in by_width[0] ^ by_width[1]} == ({"aten::mean.dim"} if is_split else set())


@pytest.mark.parametrize("name", ["qwen3_5", "mamba2"])
def test_a_recurrence_that_computes_blocks_otherwise_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial must reach a single token, although a pass after a rejected candidate reads accepted ones again."""
    model_type, options = HYBRID_DRAFTS[name]
    target = tiny_model(model_type, 700, **options)
    assert run(target, 0.5)[1].is_draft_independent
    monkeypatch.setattr(recurrences, "stepped", lambda _: None)
    target = tiny_model(model_type, 700, **options)
    assert "aten::cumsum" in run(target, 0.5)[1].draft_dependence
    check_kept(target, "aten::cumsum")


@pytest.mark.parametrize(
    ("function", "dtype", "is_even"),
    [
        (functional.mish, torch.float32, False),
        (functional.elu, torch.float32, False),
        (lambda x: torch.add(x, x, alpha=0.3), torch.bfloat16, False),
        (lambda x: x.pow(-0.5), torch.bfloat16, False),
        (lambda x: torch.cdist(x, x), torch.float32, False),
        (lambda x: torch._foreach_pow([x], -0.5), torch.bfloat16, False),
        (lambda x: x[0].index_put((torch.tensor([0, 0, 1]),), x[0], accumulate=True), torch.float32, False),
        (lambda x: x[0].index_put((torch.tensor([0, 2, 1]),), x[0]), torch.float32, True),
        (lambda x: TwoTensor(x, x).abs(), torch.bfloat16, False),  # type: ignore[no-untyped-call]
        (lambda x: functional.silu(torch.nested.nested_tensor(list(x))), torch.bfloat16, False),
        (lambda x: torch.nested.nested_tensor(list(x)).softmax(-1), torch.float32, False),
        (lambda x: torch.add(x, x), torch.bfloat16, True),
        (lambda x: x.pow(2) * 0.3 - x / 7, torch.float16, True),
        (lambda x: x.cos() + x.exp() + x.sqrt() + x.abs().masked_fill(x > 0, -1e4), torch.float32, True),
        (lambda x: x.clone().add_(x).mul_(2), torch.bfloat16, True),
    ],
)  # fmt: skip
def test_rounds_by_place(function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype, is_even: bool) -> None:
    with watching() as seen:
        function(torch.ones(1, 3, 8, dtype=dtype))
    assert bool(seen.sizes) != is_even


class Switched(LlamaForCausalLM):
    """Reads an attribute that other code switches on: one more operation, after the trial."""

    extra: Any = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        if self.extra is not None:
            output.logits = output.logits + 1e-3 * self.extra(output.logits)
        return output


@pytest.mark.parametrize("extra", [functional.mish, functional.elu])
def test_an_operation_that_is_switched_on_after_the_trial_is_tried_again(extra: Any) -> None:
    target = llama(Switched, torch.float32)
    assert run(target, 1.0)[1].is_draft_independent
    target.extra = extra
    stats = run(target, 1.0)[1]
    assert not stats.is_draft_independent
    assert "in PyTorch, which may round by the number of tokens" in stats.draft_dependence
    assert check_kept(target, "round by the number of tokens").num_accepted_tokens == 0


class Steered(LlamaForCausalLM):
    """Adds a vector, which other code sets after the first call, to the last token of a pass."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output, vector = super().forward(*args, **kwargs), getattr(self, "steer", None)
        vector = vector[0] if isinstance(vector, list) and vector else vector
        vector = self.vectors[vector] if isinstance(vector, str) else vector
        if isinstance(vector, torch.Tensor):
            output.logits[:, -1] += vector
        return output


@pytest.mark.parametrize("kind", ["attribute", "list", "names", "buffer"])
def test_a_tensor_that_is_set_after_the_trial_is_tried_again(kind: str) -> None:
    target = llama(Steered, torch.float32)
    if kind == "buffer":
        target.register_buffer("steer", None)
    elif kind == "list":
        target.steer = []
    elif kind == "names":
        target.steer, target.vectors = ["none"], {"none": None}
    assert run(target, 1.0)[1].num_accepted_tokens
    vector = torch.randn(target.config.vocab_size, generator=torch.Generator().manual_seed(0))
    if kind == "list":
        target.steer.append(vector)
    elif kind == "names":
        target.vectors["some"] = vector
        target.steer[:] = ["some"]
    else:
        target.steer = vector
    assert check_kept(target, "computes different logits for a block").num_candidate_tokens == 0


def counted_tries(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    tries, try_once = list[Any](), trial._try
    monkeypatch.setattr(trial, "_try", lambda *args: [tries.append(args), try_once(*args)][1])  # type: ignore[func-returns-value]
    return tries


class Controller:
    def __init__(self) -> None:
        self.is_on, self.num_calls = False, 0


SWITCHES: list[str] = []  # variables that a class reads
CONTROLLER = Controller()
name = ""  # one that it does not read, although an attribute has this name


class Steerable(torch.nn.Module):
    base, is_on = "", False

    @property
    def by_variable(self) -> bool:
        return bool(SWITCHES)

    @staticmethod
    def by_controller() -> bool:
        CONTROLLER.num_calls += 1
        return CONTROLLER.is_on


class Layer(Steerable):
    """Adds a vector to the last token of a pass, if a switch of some kind is on; counts and times its passes."""

    def __init__(self, block: Any, config: Any) -> None:
        super().__init__()
        self.block, self.mode, self.names, self.own = block, 0, {"some"}, SimpleNamespace(scale=0.0)
        self.by_name: dict[str, Any] = {"on": False, "name": "none", "calls": 0}
        self.vector = 2 * torch.randn(block.weight.shape, generator=torch.Generator().manual_seed(0))
        self.width, self.num_passes, self.left, self.texts, self.times = 0, 0, 1000, list[str](), {"first": 0.0}
        self.log, self.own.name, self.config = SimpleNamespace(last=""), "", config
        self.widths = dict[str, int]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block(x)
        self.width, self.num_passes, self.left = x.shape[1], (self.num_passes + 1) % 5, self.left - 1
        self.texts.append(str(x.shape) + self.own.name)
        self.by_name["calls"] += 1
        self.times[str(x.shape)] = self.log.last = perf_counter()
        is_steered: Any = self.mode or self.by_variable or self.base or self.is_on or "other" in self.names
        if "later" not in vars(self):
            self.later, self.flag = None, False
        self.widths[str(x.shape)] = self.widths.get(str(x.shape), 0) + 1
        is_steered = is_steered or self.by_controller() or self.config.is_steered or self.later or self.flag
        if is_steered or self.by_name["on"] or self.by_name["name"] == "vector" or self.own.scale:
            x = x.clone()
            x[:, -1] += self.vector
        return x


SWITCHING: dict[str, Callable[[Layer, pytest.MonkeyPatch], object]] = {
    "integer": lambda layer, _: setattr(layer, "mode", 1),
    "flag in a dictionary": lambda layer, _: layer.by_name.update(on=True),
    "string in a dictionary": lambda layer, _: layer.by_name.update(name="vector"),
    "number of an object": lambda layer, _: setattr(layer.own, "scale", 1.0),
    "name in a set": lambda layer, _: layer.names.add("other"),
    "attribute of a class": lambda _, patch: patch.setattr(Layer, "is_on", True),
    "attribute of a base": lambda _, patch: patch.setattr(Steerable, "base", "on"),
    "variable": lambda _, patch: patch.setitem(globals(), "SWITCHES", ["on"]),
    "variable beside a counter": lambda _, patch: patch.setattr(CONTROLLER, "is_on", True),
    "attribute that passes make": lambda layer, _: setattr(layer, "later", "on"),
    "flag that passes make": lambda layer, _: setattr(layer, "flag", True),
    "configuration": lambda layer, _: setattr(layer.config, "is_steered", True),
}


@pytest.mark.parametrize("kind", SWITCHING)
def test_a_switch_of_any_kind_is_tried_again_and_what_passes_change_is_not(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = llama(dtype=torch.float32).eval()
    target.config.is_steered = False
    target.model.norm = layer = Layer(target.model.norm, target.config).eval()
    tries = counted_tries(monkeypatch)
    for share, text in ((1.0, "one"), (0.5, "other"), (1.0, "last")):
        monkeypatch.setitem(globals(), "name", text)
        assert run(target, share)[1].num_accepted_tokens
    assert len(tries) == 1
    SWITCHING[kind](layer, monkeypatch)
    assert check_kept(target, "computes different logits for a block").num_candidate_tokens == 0


def test_a_switch_back_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    target, tries = llama(Switched), counted_tries(monkeypatch)
    for extra in (None, functional.relu, None, functional.relu):
        target.extra = extra
        run(target)
    assert len(tries) == 2


class Strange:
    """An object that raises errors when it is read."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class StrangeList(list[int]):
    def __bool__(self) -> bool:
        raise RuntimeError


def test_attributes_that_cannot_be_read_are_no_errors() -> None:
    target = llama(Switched)
    target.strange, target.strange_list = Strange(), StrangeList([1])
    assert run(target, 1.0)[1].num_accepted_tokens


def test_arguments_of_transformers_own_classes_are_known_beside_layers_of_others() -> None:
    target = copy.deepcopy(tiny_model("gpt2", 600, add_cross_attention=True))
    target.transformer.h[0] = Around(target.transformer.h[0])
    states = torch.randn(1, 3, target.config.hidden_size, generator=torch.Generator().manual_seed(0))
    given: dict[str, Any] = left_padded(PROMPTS[:1]) | WANTED | {"encoder_hidden_states": states}
    expected = target.generate(**given).sequences
    drafter = SharedDrafter(expected[:, -NEW:].tolist(), target.config.vocab_size, 1.0)
    assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=7)
    assert torch.equal(assistant.generate(target, **given).sequences, expected)
    assert assistant.stats.num_accepted_tokens


def test_calls_that_overlap_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    target, tries = llama(Switched), counted_tries(monkeypatch)

    def slow(wait: Callable[[], None]) -> None:
        def waiting(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            wait()
            return scores

        given: dict[str, Any] = left_padded(PROMPTS[:1]) | WANTED
        uag.Assistant(None).generate(target, **given, logits_processor=[waiting])

    run(target)
    for _ in range(2):
        with elsewhere(slow):
            run(target)
    assert len(tries) == 1


class Keyword(LlamaForCausalLM):
    """Adds an argument of `generate` to the logits."""

    def forward(self, *args: Any, steer: Any = None, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        if steer is not None:
            output.logits = output.logits + steer
        return output


class Prompted(Keyword):
    """Reads the argument in the prompt's pass only, which it knows by its cache, as others read pictures."""

    def prepare_inputs_for_generation(self, input_ids: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        prepared = super().prepare_inputs_for_generation(input_ids, attention_mask=attention_mask, **kwargs)
        is_first = kwargs[CACHE].get_seq_length() == 0
        return prepared if is_first else prepared | {"steer": None}


class Counting(Keyword):
    """The same, known by a count of its preparations."""

    num_prepared = 0

    def prepare_inputs_for_generation(self, input_ids: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        prepared = super().prepare_inputs_for_generation(input_ids, attention_mask=attention_mask, **kwargs)
        self.num_prepared += 1
        return prepared if self.num_prepared == 1 else prepared | {"steer": None}


class Scheduled(Keyword):
    """Reads another vector in each pass."""

    num_prepared = 0

    def prepare_inputs_for_generation(self, input_ids: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        prepared = super().prepare_inputs_for_generation(input_ids, attention_mask=attention_mask, **kwargs)
        self.num_prepared += 1
        return (
            prepared if kwargs.get("steer") is None else prepared | {"steer": self.num_prepared % 3 * kwargs["steer"]}
        )


@pytest.mark.parametrize(
    ("kind", "options", "is_plain"),
    [
        (Keyword, {}, True),
        (Keyword, {"trust_changes": True}, False),
        (Prompted, {}, False),
        (Counting, {}, False),
        (Scheduled, {}, True),
    ],
)
def test_arguments_that_the_trial_lacks_are_trusted_or_refused(
    kind: type, options: dict[str, Any], is_plain: bool
) -> None:
    target = llama(kind, torch.float32)
    vector = torch.randn(target.config.vocab_size, generator=torch.Generator().manual_seed(0))
    given: dict[str, Any] = left_padded(PROMPTS[:1]) | WANTED | {"steer": vector}
    expected = copy.deepcopy(target).generate(**given).sequences
    drafter = SharedDrafter(expected[:, -NEW:].tolist(), target.config.vocab_size, 1.0)
    assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=7, **options)
    assert torch.equal(assistant.generate(target, **given).sequences, expected)
    assert getattr(target, "num_prepared", 0) in (0, assistant.stats.num_target_forwards)
    assert (assistant.stats.num_accepted_tokens == 0) == is_plain
    assert ("takes 'steer' in every pass" in "; ".join(assistant.stats.fallbacks)) == is_plain


class Late(LlamaForCausalLM):
    """Runs one more operation when the text gets longer than in the trial."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        if output.past_key_values.get_seq_length() > 15:
            output.logits = functional.mish(output.logits)
        return output


def test_an_operation_that_begins_after_the_widest_pass_is_seen() -> None:
    target = llama(Late, torch.float32)
    stats = run(target, 0.9)[1]
    assert "ran aten::mish in PyTorch, unlike in its trial" in stats.draft_dependence
    check_kept(target, "ran aten::mish in PyTorch, unlike in its trial")


class Compiled(Norm):
    """Calls a function that is compiled, in which PyTorch may divide one token's sum among its threads."""

    normalize = staticmethod(torch.compile(lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)), backend="eager"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.weight * self.normalize(x)
        return output


class Nested(Norm):
    """Passes a tensor that has no shape to a linear layer."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.linear = torch.nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.nested.nested_tensor(list(x))
        return self.weight * functional.silu(self.linear(rows)).to_padded_tensor(0.0)


@pytest.mark.parametrize(
    ("kind", "reason"), [(Compiled, "may call functions that are compiled"), (Nested, "nested_tensor")]
)
def test_layers_that_the_watch_cannot_see_through(kind: type, reason: str) -> None:
    target = llama(dtype=torch.float32)
    target.model.norm = kind(target.config.hidden_size)
    expected = target.generate(**left_padded(PROMPTS[:1]) | WANTED).sequences
    for share in (None, 1.0):
        found, stats = run(target, share)
        assert torch.equal(found.sequences, expected)
    assert reason in stats.draft_dependence
    check_kept(target)


@pytest.mark.parametrize("kind", ["no bias", "tensor as bias", "coo", "csr", "negative", "zero"])
def test_weights_that_the_kernels_cannot_read_are_left_to_pytorch(kind: str) -> None:
    target = llama(dtype=torch.float32)
    layer = target.model.layers[0].mlp.down_proj
    weight = layer.weight.detach()
    if "bias" in kind:
        del layer.bias
        layer.bias = None if kind == "no bias" else torch.ones(layer.out_features)
    else:
        of_kind = {
            "coo": weight.to_sparse,
            "csr": weight.to_sparse_csr,
            "negative": lambda: torch._neg_view(weight.clone()),
            "zero": lambda: torch._efficientzerotensor(weight.shape),
        }
        layer.weight = torch.nn.Parameter(of_kind[kind](), requires_grad=False)
    expected = target.generate(**left_padded(PROMPTS[:1]) | WANTED).sequences
    assert not kernel.can_read(layer.weight) or "bias" in kind
    for share in (None, 1.0):
        assert torch.equal(run(target, share)[0].sequences, expected)
    check_kept(target)


@pytest.mark.parametrize("is_norm", [False, True])
def test_weights_that_become_plain_attributes_after_a_call_are_read(is_norm: bool) -> None:
    target = llama(dtype=torch.float32)
    layer = target.model.norm if is_norm else target.model.layers[0].mlp.down_proj
    name = "weight" if is_norm else "bias"
    given = left_padded(PROMPTS[:1]) | WANTED
    run(target)
    value = torch.zeros(layer.out_features) if not is_norm else layer.weight.detach().clone()
    delattr(layer, name)
    setattr(layer, name, value)
    for _ in range(2):
        value += torch.randn(len(value), generator=torch.Generator().manual_seed(0))
        assert torch.equal(run(target)[0].sequences, target.generate(**given).sequences)


def test_each_pass_of_unknown_code_is_looked_at() -> None:
    """A class may compute longer blocks, or the same operation over another layout, in another way."""
    with watching() as seen:
        torch.ones(1, 4, 8).mean(-1)
    watch = Watch(seen.counts, looks_closely=True)
    found = []
    for width, function in (
        (4, lambda x: x.mean(-1)),
        (12, functional.mish),
        (8, lambda x: x.mean(-1)),
        (9, functional.mish),
        (25, lambda x: x.mT.contiguous().mean(1)),
        (26, lambda x: x.mean(-1)),
    ):
        with watch.over(width) as is_close:
            function(torch.ones(1, width, 8))
        assert is_close == (width not in (8, 9))
        found.append(watch.found)
    assert ["aten::mish" in found[1], "aten::mish" in found[3], "aten::mean.dim" in found[4]] == [True] * 3
    assert [found[0], found[2], found[5]] == [""] * 3


def test_after_an_interrupt_nothing_is_counted() -> None:
    def work() -> None:
        with Watch(Counter(), looks_closely=True).over(2):
            torch.ones(2).add(1)

    def left() -> set[Any]:
        return {operations.state.passed_on for _ in interrupted(work)}

    with ThreadPoolExecutor(1) as pool:  # an interrupt within PyTorch's own code leaves its mode in the thread
        assert pool.submit(left).result() == {None}


@pytest.mark.usefixtures("layer_by_layer")
def test_kernels_that_raise_errors_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any) -> Any:
        raise TypeError(f"no kernel for {len(args)} arguments")

    monkeypatch.setattr(kernel, "linear", failing)
    target = llama(dtype=torch.float32)
    expected = target.generate(**left_padded(PROMPTS[:1]) | WANTED).sequences
    for share in (None, 1.0):
        found, stats = run(target, share)
        assert torch.equal(found.sequences, expected)
    assert "with uag's kernels, or fails" in stats.draft_dependence
    assert stats.num_accepted_tokens


@pytest.mark.usefixtures("layer_by_layer")
@pytest.mark.parametrize("name", ["linear", "attention"])
def test_a_kernel_that_steps_aside_in_a_call_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, own = llama(), getattr(kernel, name)
    assert run(target, 1.0)[1].is_draft_independent
    calls = []

    @kernel._or_none
    def failing(*args: Any) -> Any:
        calls.append(name)
        if len(calls) > 20 and args[0].shape[-2] > 1:
            raise RuntimeError("no storage")
        return own(*args)

    monkeypatch.setattr(kernel, name, failing)
    stats = run(target, 1.0)[1]
    assert not stats.is_draft_independent
    assert "in PyTorch, unlike in its trial" in stats.draft_dependence
    calls.clear()
    check_kept(target)


def _doubled(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float, dropout: float = 0.0, **_: Any
) -> Any:
    """Compute what transformers' function does, by the same names, with another factor."""
    key, value = repeat_kv(key, module.num_key_value_groups), repeat_kv(value, module.num_key_value_groups)
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling * 2
    weights = torch.softmax(scores + attention_mask, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


@pytest.mark.parametrize("share", [None, 0.5])
def test_attention_of_another_meaning_is_found(share: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a later release of transformers."""
    doubled = FunctionType(_doubled.__code__, vars(modeling_llama), name := "eager_attention_forward", (0.0,))
    monkeypatch.setattr(modeling_llama, name, doubled)
    target = llama(dtype=torch.float32, attention="eager")
    assert operations._known_attention(doubled)
    found, stats = run(target, share)
    assert torch.equal(found.sequences, target.generate(**left_padded(PROMPTS[:1]) | WANTED).sequences)
    assert stats.draft_dependence == "the target computes other logits with uag's kernels, or fails"
    check_kept(target, "computes other logits")


def test_a_function_that_is_replaced_after_the_trial_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where passes run in one call, which does not call it."""
    torch.manual_seed(0)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    target = LlamaForCausalLM(LlamaConfig(vocab_size=700, eos_token_id=None, **size)).eval()
    assert run(target, 1.0)[1].is_draft_independent
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda q, k, *_, **__: (3 * q, 3 * k))
    expected = target.generate(**left_padded(PROMPTS[:1]) | WANTED).logits
    for share in (None, 1.0):
        for found, logits in zip(run(target, share)[0].logits, expected, strict=True):
            torch.testing.assert_close(found, logits, atol=1e-4, rtol=1e-4)


def test_arguments_of_attention_that_uag_does_not_know_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not swallowed; and PyTorch computes them, by products that uag's kernels replace."""
    eager = modeling_llama.eager_attention_forward
    seen = []

    def forward(self: Any, hidden_states: torch.Tensor, **kwargs: Any) -> Any:
        return of_class(self, hidden_states, **kwargs, tilt=0.5)

    def tilted(module: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs.pop("tilt"))
        return eager(module, *args, **kwargs)

    of_class = modeling_llama.LlamaAttention.forward
    target = llama(dtype=torch.float32, attention="eager")
    kind = type("Tilted", (modeling_llama.LlamaAttention,), {"forward": forward, "__module__": modeling_llama.__name__})
    for layer in target.model.layers:
        layer.self_attn.__class__ = kind
    monkeypatch.setattr(modeling_llama, "eager_attention_forward", tilted)
    tilted.__name__, tilted.__module__ = "eager_attention_forward", modeling_llama.__name__
    found, _ = run(target, 0.5)
    assert seen
    assert torch.equal(found.sequences, target.generate(**left_padded(PROMPTS[:1]) | WANTED).sequences)


class ByPosition(modeling_llama.LlamaAttention):
    """Passes the scaling by position, as transformers' functions allow."""

    def forward(self, hidden_states: torch.Tensor, position_embeddings: Any, attention_mask: Any, **kwargs: Any) -> Any:
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q, k, v = (p(hidden_states).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = modeling_llama.apply_rotary_pos_emb(q, k, *position_embeddings)
        cache = next((kwargs[name] for name in ("cache", "past_key_values") if kwargs.get(name) is not None), None)
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        function = modeling_llama.ALL_ATTENTION_FUNCTIONS.get_interface("eager", modeling_llama.eager_attention_forward)
        output, weights = function(self, q, k, v, attention_mask, self.scaling)
        return self.o_proj(output.flatten(2)), weights


class ByName(modeling_mixtral.MixtralSparseMoeBlock):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        _, shares, chosen = self.gate(flat)
        output: torch.Tensor = self.experts(hidden_states=flat, top_k_index=chosen, top_k_weights=shares)
        return output.view_as(x)


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_arguments_by_position_and_by_name(name: str) -> None:
    target = llama(dtype=torch.float32, attention="eager")
    if name == "mixtral":
        target = copy.deepcopy(tiny_model("mixtral", 700))
        target.__class__ = type("OwnMixtral", (MixtralForCausalLM,), {})
    for layer in target.model.layers:
        if name == "llama":
            layer.self_attn.__class__ = ByPosition
        else:
            layer.mlp.__class__ = ByName
    expected = target.generate(**left_padded(PROMPTS[:1]) | WANTED).sequences
    for share in (None, 1.0):
        found, stats = run(target, share)
        assert torch.equal(found.sequences, expected)
        assert stats.is_draft_independent
        assert not stats.fallbacks
    assert stats.num_accepted_tokens


class Extra(torch.nn.Module):
    """Calls functions of PyTorch with arguments that uag's replacements do not have."""

    def __init__(self, mlp: torch.nn.Module, function: Any, size: int) -> None:
        super().__init__()
        self.mlp, self.function = mlp, function
        self.weight = torch.nn.Parameter(torch.randn(size, size) / size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.mlp(x) + self.function(x, self.weight)
        return output


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: torch.bmm(x, mat2=w.expand(len(x), -1, -1)),
        lambda x, w: torch.bmm(input=x, mat2=w.expand(len(x), -1, -1)),
        lambda x, w: torch.matmul(x, w, out=x.new_empty(0)),
        lambda x, w: functional.linear(x, w) + x * functional.linear(x, w[0])[..., None],
        lambda x, w: torch.softmax(functional.linear(x, w), -1, out=x.new_empty(0)),
        lambda x, w: torch.sigmoid(functional.linear(input=x, weight=w), out=x.new_empty(0)),
    ],
)
def test_functions_with_other_arguments_are_pytorchs(function: Any) -> None:
    target = llama(dtype=torch.float32)
    target.model.layers[0].mlp = Extra(target.model.layers[0].mlp, function, target.config.hidden_size)
    found, stats = run(target, 0.7)
    assert torch.equal(found.sequences, target.generate(**left_padded(PROMPTS[:1]) | WANTED).sequences)
    assert not stats.fallbacks
    check_kept(target)


@pytest.mark.parametrize("setting", ["medium", "high", "bf16"])
def test_float32_that_pytorch_may_round_is_left_to_it(setting: str) -> None:
    target, half = llama(dtype=torch.float32), llama()
    matmul: Any = getattr(torch.backends.mkldnn, "matmul", None)
    if setting == "bf16" and matmul is None:
        pytest.skip("this PyTorch has no such setting")
    try:
        if setting == "bf16":
            matmul.fp32_precision = setting
        else:
            torch.set_float32_matmul_precision(setting)
        assert "float32" in run(target, 1.0)[1].draft_dependence
        check_kept(target, "float32")
        assert run(half, 1.0)[1].is_draft_independent
    finally:
        if setting == "bf16":
            matmul.fp32_precision = "none"
        else:
            torch.set_float32_matmul_precision("highest")
    assert run(target, 1.0)[1].is_draft_independent


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode, nullcontext])
def test_settings_of_gradients_keep_the_promise(mode: Any) -> None:
    target = llama()
    with mode():
        assert check_kept(target).num_accepted_tokens
