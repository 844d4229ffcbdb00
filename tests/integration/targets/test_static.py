"""Static caches, compiled and not: the output equals plain decoding with the same cache and compile settings."""

from collections import Counter
from typing import Any

import pytest
from torch.overrides import TorchFunctionMode
from transformers import CompileConfig, StaticCache

from tests.support import wrappers
from tests.support.calls import GREEDY, assert_drafted, assistant_of, batch, compare, pair, seeded
from tests.support.grids import covering
from tests.support.models import tiny_target
from uag.decoding import trial
from uag.hf import passes
from uag.hf.cache.caches import CACHE

CLASSES = ("llama", "qwen2", "qwen3", "mistral", "gemma3", "gpt2")
WITH_WINDOWS = ("mistral", "gemma3")
STATIC: dict[str, Any] = {"cache_implementation": "static"}
SAMPLED: dict[str, Any] = {"max_new_tokens": 16, "do_sample": True, "temperature": 0.9, "top_k": 20}


def compiled(backend: Any = "eager") -> dict[str, Any]:
    """Return options that compile on a CPU; the backend "eager" traces graphs and does not optimize them."""
    config = CompileConfig(backend=backend, mode="default" if backend == "inductor" else None)
    config._compile_all_devices = True
    return STATIC | {"compile_config": config}


def test_a_static_cache_that_is_not_used() -> None:
    target, tokenizer = tiny_target("llama")
    given = batch(tokenizer) | GREEDY | {"use_cache": False}
    given[CACHE] = StaticCache(target.config, max_cache_len=400)
    assert "keeps no cache that can be rewound" in compare(target, given).fallbacks[0]


@covering("name, options, num_rows", CLASSES, (GREEDY, SAMPLED), (1, 3))
def test_static_caches(name: str, options: dict[str, Any], num_rows: int) -> None:
    """The prompts are longer than the windows of Mistral and Gemma 3, whose layers shift their slots in every pass."""
    target, tokenizer = tiny_target(name)
    stats = compare(target, batch(tokenizer, num_rows) | options | STATIC)
    assert_drafted(stats)
    assert stats.compile_s == 0.0
    in_lockstep = "rows advance in lockstep: the rows of a static cache have the same length"
    assert stats.fallbacks == ([in_lockstep] if num_rows > 1 else [])


@covering("name, num_tokens, spoil", WITH_WINDOWS, (1, 2, 4, 7), (1.5, 3, 5), strength=2)
def test_a_window_that_fills_up_during_the_call(name: str, num_tokens: int, spoil: float) -> None:
    target, tokenizer = tiny_target(name)
    ids = batch(tokenizer)["input_ids"][:, -num_tokens:]
    assert_drafted(compare(target, {"input_ids": ids} | GREEDY | STATIC, spoil=spoil))


@pytest.mark.parametrize(
    ("name", "num_rows", "options"), [("mistral", 1, GREEDY), pytest.param("llama", 3, SAMPLED, marks=pytest.mark.slow)]
)
def test_compiled_passes(name: str, num_rows: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Few graphs, which can be replayed as CUDA graphs: inputs keep their sizes, and the cache its addresses.

    Also near the end of the cache, where fewer candidates fit than the next width has, and where a window fills up:
    then masks have two sizes, for the passes before and after. Tracing takes most of the time, so there is one layer.
    """
    target, tokenizer = tiny_target(name, num_hidden_layers=1)
    window = getattr(target.config, "sliding_window", None) or 0
    given = batch(tokenizer, num_rows)
    if window:
        given = {key: value[:, -window // 2 :] for key, value in given.items()}
    integers: list[int] = []  # inputs of a graph: a CUDA graph is recorded for each of their values
    shapes: dict[int, set[Any]] = {}
    addresses = set()
    run = passes.run

    def backend(graph: Any, _: Any) -> Any:
        def replayed(*inputs: Any) -> Any:
            integers.extend(value for value in inputs if isinstance(value, int))
            return graph(*inputs)

        return replayed

    def recorded(forward: Any, inputs: dict[str, Any], *, has_own_graph: bool) -> Any:
        integers.clear()
        result = run(forward, inputs, has_own_graph=has_own_graph)
        if forward is target:  # the pass over the prompt
            return result
        masks = inputs["attention_mask"]
        tensors = [inputs["position_ids"], *(masks.values() if isinstance(masks, dict) else [masks])]
        sizes = (*(tensor.shape for tensor in tensors), *integers)
        shapes.setdefault(inputs["input_ids"].shape[1], set()).add(sizes)
        layers = inputs[CACHE].layers
        kept = [tensor for layer in layers for tensor in (layer.keys, layer.values, layer.cumulative_length)]
        addresses.add(tuple(tensor.data_ptr() for tensor in kept))
        return result

    given |= options | compiled(backend)
    with monkeypatch.context() as patch:
        patch.setattr(trial, "run", lambda *_, **__: trial.Trial())  # its cache is smaller
        patch.setattr(passes, "run", recorded)
        first = compare(target, given)
    assert_drafted(first)
    assert {8} < set(shapes) <= {1, 2, 4, 8, 16}
    assert max(map(len, shapes.values())) == (2 if window else 1)
    assert len(addresses) == 1
    assert 0.0 < first.compile_s < first.target_s
    assert compare(target, given).compile_s == 0.0


class Reads(TorchFunctionMode):
    """Counts calls that read a tensor's values. On a GPU, each copies them to the host, and waits for the device."""

    NAMES = ("__bool__", "__float__", "__index__", "__int__", "cpu", "equal", "item", "nonzero", "tolist")

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in self.NAMES:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_copies_to_the_host(options: dict[str, Any]) -> None:
    """One of a draft pass, of a sampled candidate's noise, and of a target pass, as docs/gpu.md says."""
    target, tokenizer = pair()[:2]
    assistant = assistant_of()
    assistant.options.trust_changes = True  # the mode
    calls = []
    for num_new in (1, 1, 24):  # the first call of a process copies more; the difference has no copies of the prompt
        with Reads() as reads:
            assistant.generate(target, **batch(tokenizer) | options | STATIC | {"max_new_tokens": num_new})
        calls.append((reads.counts, assistant.stats))
    _, (before, _), (counts, stats) = calls
    counts.subtract(before)
    num_noise = stats.num_candidate_tokens if options is SAMPLED else 0
    assert counts.pop("cpu") == stats.num_draft_forwards + num_noise
    assert counts.pop("tolist") == stats.num_target_forwards - 1
    # transformers' mask asks whether the cache is empty, and uag whether candidates overflowed, after the pass.
    assert 8 < counts.pop("__bool__") <= 2 * stats.num_rounds
    assert not any(counts.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_passes_compiled_by_inductor(name: str) -> None:
    target, tokenizer = tiny_target(name)
    for num_rows in (1, 3):
        for options in (SAMPLED, GREEDY):  # the longer one first, so that both use caches of one length
            assert_drafted(compare(target, batch(tokenizer, num_rows) | options | compiled("inductor")))


@pytest.mark.parametrize("wrap", [pytest.param(wrappers.compiled_forward, marks=pytest.mark.slow), wrappers.lora])
def test_wrapped_targets(wrap: Any) -> None:
    target, tokenizer = pair()[:2]
    assert compare(wrap(target), batch(tokenizer, 3) | GREEDY | STATIC, assistant_of()).num_accepted_tokens > 0


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_rows_that_end_early_and_lag_behind(options: dict[str, Any]) -> None:
    target, tokenizer = tiny_target("llama")
    given = batch(tokenizer, 3) | STATIC | options | {"max_new_tokens": 40}
    expected = seeded(3, target.generate, **given)
    eos_ids = [row[-30].item() for row in expected[:2]]
    for spoil in (1.5, 3):
        assert_drafted(compare(target, given | {"eos_token_id": eos_ids, "pad_token_id": 0}, spoil=spoil))
