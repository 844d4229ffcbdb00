"""What uag gives on a GPU: exactness, costs of passes, speed with emulated acceptance, and memory.

    python benchmarks/gpu.py [--device cuda] [--small] [--part costs ...] [--target 8B ...] [--draft 0.1B ...]
        [--minutes 8]

Nothing is downloaded: large models have random weights. Each part first prints how long it takes, estimated from its
passes and graphs. What exceeds its share of the minutes is left out and named; `--part` gives them all to one part, and
`--target` to one target. `--device cpu --small` runs every part on tiny shapes. Parts:

    tests   the tests for a second device, with recorded drafts (skipped on a CPU)
    exact   how many outputs differ from plain decoding's: the demo pair, the Python pair, tiny models of ten classes
    speed   tokens per second, milliseconds of a round's parts, and peak memory, for 1 and 8 rows. A target with random
            weights accepts nothing, so acceptance is emulated: the draft runs its real passes, then each candidate is
            the target's next token with the given probability, else another one
    rows    whether a token in a block has the bits of the token alone, in bfloat16, for blocks of 2 to 16 tokens: in
            products, means, attention, and in passes, eager and recorded; with PyTorch's settings, and without split-K
    search  milliseconds of the host between passes (benchmarks/search.py)
    costs   milliseconds of a pass of targets and drafts: eager, with a static cache, recorded, compiled
"""

import argparse
import copy
import gc
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from statistics import mean, median
from typing import Any
from unittest.mock import patch

import common
import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache
from transformers.generation.candidate_generator import AssistedCandidateGenerator

import uag
from uag.bench.arms import timed
from uag.drafting import Ask, ModelDrafter
from uag.hf import passes
from uag.hf.cache import caches, static
from uag.hf.cache.caches import CACHE
from uag.hf.cache.recorded import GraphedModel
from uag.hf.devices import accelerator, empty_cache, graphs_of
from uag.proposal import Proposal

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
SHAPES = {
    "32B": (5120, 27648, 64, 40, 8),  # Qwen2.5-32B
    "8B": (4096, 14336, 32, 32, 8),  # Llama-3.1-8B
    "1B": (2048, 8192, 16, 32, 8),  # Llama-3.2-1B
    "0.5B": (896, 4864, 24, 14, 2),  # Qwen2.5-0.5B
    "0.1B": (576, 1536, 30, 9, 3),  # SmolLM2-135M
    "tiny": (64, 128, 2, 4, 2),
}
TARGETS = {"8B": ("0.1B", "0.5B", "1B"), "1B": ("0.1B",), "32B": ("0.5B", "1B", "0.1B")}  # with their drafts
CLASSES: dict[str, common.Row] = {
    **{name: {} for name in ("llama", "qwen2", "gpt2", "phi3", "gpt_neox", "olmo2", "starcoder2")},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": 16},
    "gemma3_text": {"head_dim": 16, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
}
ARMS = (
    *("uag", "uag, recorded target", "uag, recorded target, no draft", "uag, own choice"),
    *("transformers", "transformers, static + compiled"),
    *("uag, static + compiled", "uag, static + compiled, compiled draft"),  # these compile most
)
PLAIN = ("plain", "plain, static + compiled")
PROMPT_LENGTH, NUM_WARM = 128, 8  # the first passes compile and record
MODES = tuple(itertools.product(("dynamic", "static"), ("greedy", "sampled")))
SHARES = {"tests": 60, "exact": 80, "speed": 230, "rows": 50, "search": 10, "costs": 50}
"""Each part's share of the minutes. Increase one to measure more in this part and less in the others."""
SETUP_S, LAYER_S, BYTES_PER_S, COMPILED_LAYER_S = 0.3, 7e-4, 2e12, 1.0
"""Estimates: seconds before a measurement, of an eager layer, and of compiling one; bytes of weights read per second.
An H100 with 16 cores took about as long. Increase the seconds to leave out more; decrease them to use all minutes."""

COLUMNS = {
    "exact": {"differing outputs of": "{model}", "type": "{dtype}", "accepted": "{accepted:.0%}"}
    | {f"{cache}, {mode}": f"{{{cache}, {mode}}}" for cache, mode in MODES},
    "rows": {"model": "{model}", "settings": "{settings}", "what": "{what}", "type": "{dtype}"}
    | {"widths that differ": "{differing}", "largest difference": "{largest:.1e}"},
    "costs": {"model": "{model}", "rows": "{num_rows}", "form": "{form}", "width": "{width}", "ms": "{ms:.2f}"},
    "speed": {
        "pair": "{pair}",
        "rows": "{num_rows}",
        "acceptance": "{probability}",
        "arm": "{arm}",
        "tokens/s": "{speed:.1f}",
    }
    | {"tokens/pass": "{per_pass:.2f}", "target ms": "{target_ms:.2f}", "draft ms": "{draft_ms:.2f}"}
    | {"other ms/round": "{other_ms:.2f}", "equal": "{equal}", "peak GiB": "{gib:.1f}"},
}


def main() -> None:
    """Run the parts and print a table for each."""
    parser = common.make_parser(__doc__, minutes=8, trials=3, tokens=96, candidates=3)
    parser.add_argument("--device", default=str(accelerator() or "cpu"))
    parser.add_argument("--small", action="store_true", help="tiny shapes and few tokens")
    parser.add_argument("--part", nargs="+", default=list(SHARES), choices=list(SHARES))
    parser.add_argument("--target", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--draft", nargs="+", default=list(TARGETS["8B"]), choices=list(TARGETS["8B"]))
    arguments = common.parse(parser)
    arguments.tokens = 16 if arguments.small else arguments.tokens
    commands = {
        "tests": (
            "-m",
            "pytest",
            "-q",
            *(f"tests/integration/engines/test_{name}.py" for name in ("recorded", "recorded_targets", "devices")),
        ),
        "search": ("benchmarks/search.py", "--repeats", "4", "--tokens", str(arguments.tokens)),
    }
    measures = {"exact": _exact, "costs": _costs, "rows": _rows, "speed": _speed}
    output, failures, end_s = arguments.output, [], time.monotonic()
    for part in arguments.part:
        end_s += 60 * arguments.minutes * SHARES[part] / sum(SHARES[name] for name in arguments.part)
        plan, clock = Clock(None), Clock(end_s)
        seconds = max(end_s - clock.start_s, 1.0)
        if part in commands:
            print(f"{part}: at most {seconds:.0f} s", flush=True)
            device = {} if arguments.device == "cpu" else {"UAG_DEVICE": arguments.device.partition(":")[0]}
            command = ["timeout", str(seconds), sys.executable, *commands[part]]
            run = subprocess.run(command, env=os.environ | device, check=False)
            failures += [part] if run.returncode else []
        else:
            list(measures[part](arguments, plan))
            print(f"{part}: about {plan.estimated_s:.0f} s, at most {seconds:.0f} s", flush=True)
            arguments.output = output and output.with_stem(f"{output.stem}-{part}")
            common.show(arguments, part, COLUMNS[part], measures[part](arguments, clock))
            if clock.left_out:
                print(f"left out, for lack of time: {'; '.join(clock.left_out)}", flush=True)
    sys.exit(f"failed: {failures}" if failures else None)


class Clock:
    """Decides which measurements of a part still fit; without an end, only adds up their estimated seconds."""

    def __init__(self, end_s: float | None) -> None:
        self.end_s, self.start_s, self.estimated_s = end_s, time.monotonic(), 0.0
        self.left_out: list[str] = []

    def fits(self, name: str, num_passes: int, shape: Sequence[int], num_graphs: int = 0) -> bool:
        """Whether there is time for the passes of a model and for compiling its graphs; there is for the first."""
        hidden_size, inner_size, num_layers = shape[:3]
        layer_s = LAYER_S + 6 * (inner_size + hidden_size) * hidden_size / BYTES_PER_S
        seconds = SETUP_S + num_layers * (num_passes * layer_s + num_graphs * COMPILED_LAYER_S)
        if self.end_s is not None and self.estimated_s:
            elapsed_s = time.monotonic() - self.start_s
            slowness = max(1.0, elapsed_s / self.estimated_s)  # how far the estimates were off
            if self.start_s + elapsed_s + slowness * seconds > self.end_s:
                self.left_out.append(name)
                return False
        self.estimated_s += seconds
        return self.end_s is not None


def _model(model_type: str, shape: str, **options: Any) -> Any:
    sizes = dict(zip(SIZES, SHAPES[shape], strict=True)) | options
    config = AutoConfig.for_model(model_type, bos_token_id=None, eos_token_id=None, pad_token_id=0, **sizes)
    return AutoModelForCausalLM.from_config(config).eval()


@cache
def large_model(shape: str, device: str) -> Any:
    """Return a Llama in bfloat16 (on a CPU, in float32), whose next token is the last one despite rounding errors."""
    sizes = {"vocab_size": 512 if shape == "tiny" else 128_256, "tie_word_embeddings": True}
    with torch.device(device), torch.no_grad():
        model = _model("llama", shape, **sizes, dtype=torch.float32 if device == "cpu" else torch.bfloat16)
        model.get_input_embeddings().weight.mul_(1e3)  # far larger than what the layers add
    return model


def _free() -> None:
    for cached in (large_model, _emulated):
        cached.cache_clear()
    torch.compiler.reset()
    gc.collect()
    empty_cache()


def _exact(arguments: argparse.Namespace, clock: Clock) -> Iterator[common.Row]:
    pairs = {pair.name: pair for pair in common.demo_and_python(["demo<-demo", "py<-py"])}
    if "py<-py" not in pairs and clock.end_s is not None:
        print(f"py<-py: skipped, no models in {common.MODELS}")
    dtypes = ("float32",) if arguments.small else ("float32", "bfloat16", "float16")
    num_prompts, num_new = (1, 12) if arguments.small else (4, 24)
    for name, dtype in itertools.product([*pairs, *CLASSES], dtypes):
        shape = (256, 1024, 36) if name in pairs else SHAPES["tiny"]
        if not clock.fits(f"{name} in {dtype}", 2 * len(MODES) * num_prompts * num_new, shape):
            continue
        if name in pairs:
            pair = pairs[name].load(dtype=dtype, device=arguments.device)
            target, tokenizer, drafter = pair.target, pair.target_tokenizer, None
            models, texts = (pair.draft, pair.draft_tokenizer, tokenizer), common.python_texts(num_prompts)
            prompts = [tokenizer(text, return_tensors="pt")["input_ids"] for text in texts]
        else:
            target, draft = _similar_models(name, dtype, arguments.device)
            models, drafter = (None, None), ModelDrafter(draft, None)
            prompts = list(torch.randint(1, 500, (num_prompts, 1, 24), generator=torch.Generator().manual_seed(1)))
        assistant = uag.Assistant(*models, drafter=drafter, num_candidate_tokens=arguments.candidates)
        row, rates = {"model": name, "dtype": dtype}, []
        for cache_name, mode in MODES:
            options = {"do_sample": mode == "sampled", "cache_implementation": cache_name, "disable_compile": True}
            num_differing = 0
            for ids in (prompt.to(arguments.device) for prompt in prompts):
                torch.manual_seed(0)
                expected = target.generate(ids, **options, max_new_tokens=num_new)
                torch.manual_seed(0)
                output = assistant.generate(target, ids, **options, max_new_tokens=num_new)
                num_differing += not output.equal(expected)
                rates.append(assistant.stats.acceptance_rate)
            row[f"{cache_name}, {mode}"] = f"{num_differing}/{num_prompts}"
        yield row | {"accepted": mean(rates)}


def _similar_models(model_type: str, dtype: str, device: str) -> list[Any]:
    """Return a tiny target and a draft with similar weights."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 512, "max_position_embeddings": 256, "initializer_range": 0.3}
    target = _model(model_type, "tiny", **sizes, tie_word_embeddings=False, **CLASSES[model_type])
    draft = copy.deepcopy(target)
    for weight in draft.parameters():
        weight.data.add_(torch.randn_like(weight), alpha=0.02)
    return [model.to(device, getattr(torch, dtype)) for model in (target, draft)]


@contextmanager
def _without_split_k() -> Iterator[None]:
    """Let PyTorch sum each output of a product in one piece, with cuBLASLt, and attend without cuDNN."""
    matmul, cuda = torch.backends.cuda.matmul, torch.backends.cuda
    before = matmul.allow_bf16_reduced_precision_reduction, cuda.cudnn_sdp_enabled(), cuda.flash_sdp_enabled()
    library = cuda.preferred_blas_library() if torch.cuda.is_available() else None
    try:
        matmul.allow_bf16_reduced_precision_reduction = (False, False)
        cuda.enable_cudnn_sdp(False)
        cuda.enable_flash_sdp(False)
        if library is not None:
            cuda.preferred_blas_library("cublaslt")
        yield
    finally:
        matmul.allow_bf16_reduced_precision_reduction = before[0]
        cuda.enable_cudnn_sdp(before[1])
        cuda.enable_flash_sdp(before[2])
        if library is not None:
            cuda.preferred_blas_library(library)


def _rows(arguments: argparse.Namespace, clock: Clock) -> Iterator[common.Row]:
    """Compare each token of a block with the same token alone, bit for bit."""
    widths = (1, 2, 3, 4, 6, 8, 12, 16)
    settings = {"PyTorch's": nullcontext, "no split-K": _without_split_k}
    for shape, (name, context) in itertools.product(
        ("tiny",) if arguments.small else ("8B", "1B", "0.5B"), settings.items()
    ):
        if not clock.fits(f"{shape}, {name}", 3 * sum(widths), SHAPES[shape]):
            continue
        model = large_model(shape, arguments.device)
        with torch.inference_mode(), context():
            for what, run in _row_cases(model, shape):
                alone = torch.cat([run(index, 1) for index in range(max(widths))], dim=-2)
                errors = {width: (run(0, width) - alone[..., :width, :]).abs().max().item() for width in widths}
                differing = [width for width, error in errors.items() if error] or "none"
                row = {"model": shape, "settings": name, "what": what, "dtype": str(model.dtype)}
                yield row | {"differing": str(differing), "largest": max(errors.values())}
        _free()


def _row_cases(model: Any, shape: str) -> Iterator[tuple[str, Callable[[int, int], torch.Tensor]]]:
    """Return what computes `width` tokens of one row from the token `index` on."""
    device, dtype, (hidden, _, _, heads, kv_heads) = model.device, model.dtype, SHAPES[shape]
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn((1, 16, hidden), generator=generator, device=device, dtype=dtype)
    mlp = model.model.layers[0].mlp
    for name, weight in (("gate", mlp.gate_proj.weight), ("head", model.lm_head.weight)):
        yield (
            f"product, {name}",
            lambda index, width, weight=weight: functional.linear(x[:, index : index + width], weight).float(),
        )
    inner = functional.linear(x, mlp.gate_proj.weight)
    yield (
        "product, down",
        lambda index, width: functional.linear(inner[:, index : index + width], mlp.down_proj.weight).float(),
    )
    yield "mean", lambda index, width: x[:, index : index + width].float().pow(2).mean(-1, keepdim=True)
    sizes = (1, heads, 16, hidden // heads), (1, kv_heads, 512, hidden // heads)
    queries, keys = (torch.randn(size, generator=generator, device=device, dtype=dtype) for size in sizes)
    keys = keys.repeat_interleave(heads // kv_heads, dim=1)
    mask = torch.zeros((1, 1, 16, 512), device=device, dtype=dtype)
    mask[..., 400:] = torch.finfo(dtype).min

    def attend(index: int, width: int) -> torch.Tensor:
        own = slice(index, index + width)
        return functional.scaled_dot_product_attention(
            queries[:, :, own], keys, keys, attn_mask=mask[:, :, own]
        ).float()

    yield "attention", attend
    prompt = torch.randint(1, 500, (1, 16), generator=torch.Generator().manual_seed(1))
    for name, is_recorded in (("eager", False), ("recorded", True)):
        if not is_recorded or graphs_of(device) is not None:
            run = _static_passes(model, 1, is_recorded)
            yield (
                f"{name} pass",
                lambda index, width, run=run: run(prompt[:, index : index + width], index).float().clone(),
            )


def _static_passes(model: Any, num_rows: int, is_recorded: bool) -> Callable[[torch.Tensor, int], torch.Tensor]:
    """Return a function that runs tokens [num_rows, width] after the given number of slots, and returns logits."""

    class Passes(GraphedModel):
        def forward(self, ids: torch.Tensor, cache: Any) -> torch.Tensor:
            own = cache.layers[0].cumulative_length.to(ids.device) + torch.arange(ids.shape[1], device=ids.device)
            is_hidden = torch.arange(1024, device=ids.device) > own[:, None]
            mask = torch.zeros(is_hidden.shape, dtype=model.dtype, device=ids.device)
            mask = mask.masked_fill_(is_hidden, torch.finfo(model.dtype).min).expand(num_rows, 1, -1, -1)
            return model(ids, position_ids=own.expand(num_rows, -1), attention_mask=mask, **{CACHE: cache}).logits

    passes = Passes()
    with torch.inference_mode(mode=False):
        passes.renew((model.device,), static.static_cache(model, 1024))

    def run(ids: torch.Tensor, length: int) -> torch.Tensor:
        with torch.inference_mode(mode=False), torch.no_grad():
            static.set_length(passes.cache, length)
            if not is_recorded:
                return passes.forward(ids=ids.to(model.device), cache=passes.cache)
            logits, _ = passes.run({"ids": ids}, length)
            if passes.failure:
                raise RuntimeError(passes.failure)
            return logits

    return run


@torch.inference_mode()
def _costs(arguments: argparse.Namespace, clock: Clock) -> Iterator[common.Row]:
    shapes = ("tiny",) if arguments.small else (*arguments.target, "0.1B", "0.5B")
    sizes = itertools.product((1, 4, 8, 2, 16), (1,) if arguments.small else (1, 8), shapes)
    has_graphs = graphs_of(torch.device(arguments.device)) is not None
    forms = ("eager", "static", *(("recorded",) if has_graphs else ()), "compiled")
    cases = [(*size, form) for size in sizes for form in forms]
    # Compiled passes come last, in the order above; the others in an order that loads each model once.
    cases.sort(key=lambda case: (True, case[1]) if case[3] == "compiled" else (False, case[2]))
    last = ""
    for width, num_rows, shape, form in cases:
        if width > 1 and shape not in TARGETS:
            continue  # passes of drafts are narrow
        name, num_passes = f"{shape}, {num_rows} rows, {form}, width {width}", NUM_WARM + 2 * arguments.trials
        if clock.fits(name, num_passes, SHAPES[shape], int(form == "compiled")):
            if shape != last:
                _free()
            last, row = shape, {"model": shape, "num_rows": num_rows, "form": form, "width": width}
            yield row | _measure_pass(large_model(shape, arguments.device), form, num_rows, width, num_passes)


def _measure_pass(model: Any, form: str, num_rows: int, width: int, num_passes: int) -> common.Row:
    if form == "recorded":
        run, ids = _static_passes(model, num_rows, is_recorded=True), torch.ones((num_rows, width), dtype=torch.long)
        seconds = [timed(model.device, partial(run, ids, PROMPT_LENGTH))[1] for _ in range(num_passes)]
        return {"ms": 1e3 * median(seconds[NUM_WARM:]), "dtype": str(model.dtype)}
    is_static, size = form in ("static", "compiled"), PROMPT_LENGTH + width * num_passes
    keys = StaticCache(config=model.config, max_cache_len=size) if is_static else caches.dynamic_cache()
    ids = torch.ones((num_rows, PROMPT_LENGTH), dtype=torch.long, device=model.device)
    model(ids, **{CACHE: keys})
    forward = model.get_compiled_call(passes.compile_config()) if form == "compiled" else model
    seconds = []
    for _ in range(num_passes):
        inputs = model.prepare_inputs_for_generation(ids[:, :width], **{CACHE: keys})
        run = partial(passes.run, forward, inputs, has_own_graph=form == "compiled")
        seconds.append(timed(model.device, run)[1])
    return {"ms": 1e3 * median(seconds[NUM_WARM:]), "dtype": str(model.dtype)}


class _Emulated(ModelDrafter):
    """Runs a draft's real passes, then replaces each candidate by the target's next token with a probability."""

    next_id, probability, random = 0, 0.0, torch.Generator().manual_seed(0)

    def draw_id(self) -> int:
        is_right = float(torch.rand((), generator=self.random)) < self.probability
        return self.next_id if is_right else self.next_id + 1

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        return [[replace(proposal, target_id=self.draw_id()) for proposal in row] for row in super().propose(ask)]


_emulated = cache(_Emulated)  # what was compiled for a draft is used again


def _emulated_in_transformers(emulated: _Emulated) -> AbstractContextManager[Any]:
    get_candidates = AssistedCandidateGenerator.get_candidates

    def replaced(self: Any, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        candidate_ids, _ = get_candidates(self, input_ids, **kwargs)
        new = [emulated.draw_id() for _ in candidate_ids[0, input_ids.shape[1] :]]
        return torch.cat([input_ids, input_ids.new_tensor([new])], dim=1), None

    return patch.object(AssistedCandidateGenerator, "get_candidates", replaced)


def _speed(arguments: argparse.Namespace, clock: Clock) -> Iterator[common.Row]:
    """Measure plain decoding once for each target, then the other arms with each draft and acceptance."""
    probabilities, num_passes = (0.8, 0.0, 0.5), (2 + arguments.trials) * arguments.tokens
    compiled = {name: 1 + 3 * ("uag" in name) for name in (PLAIN[1], *ARMS) if "compiled" in name}
    for target in ("tiny",) if arguments.small else arguments.target:
        _free()
        drafts = [draft for draft in TARGETS.get(target, ("tiny",)) if draft in (*arguments.draft, "tiny")]
        assisted = list(itertools.product(probabilities[: 1 if arguments.small else 3], drafts))
        cases = [(num_rows, "-", "-", PLAIN[0]) for num_rows in (1, 8)]
        # First one row and one draft, what compiles most at the end.
        for num_rows, (probability, draft) in itertools.product((1, 8), assisted):
            cases += [(num_rows, probability, draft, arm) for arm in ARMS if arm not in compiled]
        cases += [(num_rows, "-", "-", PLAIN[1]) for num_rows in (1, 8)]
        cases += [(1, probability, draft, arm) for probability, draft in assisted for arm in ARMS if arm in compiled]
        cases = [case for case in cases if case[0] == 1 or not case[3].startswith("transformers")]  # batch 1 only
        for num_rows, probability, draft, arm in sorted(
            cases, key=lambda case: case[1:3] not in _FIRST[arguments.small]
        ):
            row = {"pair": f"{target} <- {draft}", "num_rows": num_rows, "probability": probability, "arm": arm}
            num_graphs = compiled.get(arm, 0) if probability in ("-", probabilities[0]) else 0
            if clock.fits(", ".join(map(str, row.values())), num_passes, SHAPES[target], num_graphs):
                yield row | _measure_arm((target, draft), num_rows, probability, arm, arguments)


_FIRST = {True: [("-", "-"), (0.8, "tiny")], False: [("-", "-"), (0.8, "0.1B")]}
"""The acceptance and the draft that are measured first, by whether shapes are tiny."""


def _measure_arm(
    shapes: tuple[str, str], num_rows: int, probability: Any, arm: str, arguments: argparse.Namespace
) -> common.Row:
    device, target = arguments.device, large_model(shapes[0], arguments.device)
    ids = torch.randint(500, (1, PROMPT_LENGTH), generator=torch.Generator().manual_seed(1)).to(target.device)
    ids = ids.expand(num_rows, -1)
    next_id = int(ids[0, -1])
    options: common.Row = {"max_new_tokens": arguments.tokens, "do_sample": False}
    if "static" in arm:
        # One cache for all calls, since CUDA graphs are recorded for its addresses.
        keys = StaticCache(config=target.config, max_cache_len=PROMPT_LENGTH + arguments.tokens + 16)
        options |= {CACHE: keys, "compile_config": passes.compile_config()}
    generate, replaced = partial(target.generate, ids, **options), nullcontext()
    if not arm.startswith("plain"):
        draft = large_model(shapes[1], device)
        emulated = _emulated(draft, None, compile_draft=arm.endswith("draft"))
        emulated.next_id, emulated.probability = next_id, probability
        num_candidates = None if arm.endswith("choice") else arguments.candidates
        independent = {"own_kernels": False, "draft_independent": True} if "recorded target" in arm else {}
        drafter = None if arm.endswith("no draft") else emulated
        assistant = uag.Assistant(None, None, drafter=drafter, num_candidate_tokens=num_candidates, **independent)
        generate = partial(assistant.generate, target, ids, **options)
    if arm.startswith("transformers"):
        schedule = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
        draft.generation_config.update(num_assistant_tokens=arguments.candidates, **schedule)
        generate = partial(target.generate, ids, **options, assistant_model=draft)
        replaced = _emulated_in_transformers(emulated)

    def run() -> Any:
        _Emulated.random.manual_seed(0)
        if "static" in arm:
            keys.reset()
        with replaced:
            return generate()

    run()
    is_equal = run()[:, PROMPT_LENGTH:].tolist() == [[next_id] * arguments.tokens] * num_rows
    row: common.Row = {"equal": is_equal, "dtype": str(target.dtype)}
    memory = getattr(torch, target.device.type)
    has_peak = hasattr(memory, "reset_peak_memory_stats")  # MPS and CPU have none
    if has_peak:
        memory.reset_peak_memory_stats()
    row["speed"] = num_rows * arguments.tokens / median(timed(target.device, run)[1] for _ in range(arguments.trials))
    if has_peak:
        row["gib"] = memory.max_memory_allocated() / 2**30
    if arm.startswith("uag"):
        stats = assistant.stats
        row |= {"fallbacks": stats.fallbacks, "recording_s": stats.recording_s}
        row["per_pass"] = arguments.tokens / stats.num_target_forwards
        row["target_ms"] = 1e3 * stats.target_s / stats.num_target_forwards
        if stats.num_draft_forwards:
            row["draft_ms"] = 1e3 * stats.draft_forward_s / stats.num_draft_forwards
        row["other_ms"] = 1e3 * (stats.total_s - stats.target_s - stats.draft_forward_s) / stats.num_rounds
    return row


if __name__ == "__main__":
    main()
