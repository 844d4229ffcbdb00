"""What uag gives on a GPU: exactness, costs of passes, speed with emulated acceptance, and memory.

    python benchmarks/gpu.py [--device cuda] [--small] [--part exact costs speed ...] [--output FILE]

At most 9 minutes on one data-centre GPU. Nothing is downloaded: the models have random weights in the shapes of Llama.
`--device cpu --small` runs every part on tiny shapes, in float32. Parts:

    tests   the tests marked `gpu` (skipped on a CPU)
    exact   how many outputs of the demo pair and of tiny models differ from plain decoding's
    costs   milliseconds of a target or draft pass: eager, with a static cache, and compiled
    speed   tokens per second. A target with random weights accepts nothing, so acceptance is emulated: the draft runs
            its real passes, then each candidate is replaced by the target's next token with the given probability
"""

import argparse
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import common
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache
from transformers.generation.candidate_generator import AssistedCandidateGenerator

import uag
from uag.drafting import Ask, Drafter, ModelDrafter
from uag.hf import passes
from uag.loading import load_pair
from uag.proposal import Proposal

SHAPES = {
    "32B": (5120, 27648, 64, 40, 8),
    "8B": (4096, 14336, 32, 32, 8),
    "1B": (2048, 8192, 16, 32, 8),
    "0.5B": (1024, 4096, 24, 16, 4),
    "0.1B": (576, 1536, 12, 9, 3),
    "tiny": (64, 128, 2, 4, 2),
    "tiny draft": (32, 64, 1, 2, 1),
}
"""Hidden size, inner size, layers, heads and key-value heads."""
PROMPT_LENGTH, NUM_NEW, NUM_CANDIDATES = 128, 96, 4

COLUMNS = {
    "exact": {"model": "{model}", "type": "{dtype}", "cache": "{cache}", "mode": "{mode}", "differ": "{differ}"},
    "costs": {"model": "{model}", "rows": "{num_rows}", "form": "{form}", "width": "{width}", "ms": "{ms:.2f}"},
    "speed": {
        "pair": "{pair}",
        "acceptance": "{probability}",
        "arm": "{arm}",
        "tokens/s": "{speed:.1f}",
        "tokens/pass": "{per_pass:.2f}",
        "GiB": "{gib:.1f}",
    },
}


def main() -> None:
    """Run the parts and print a table for each."""
    parser = common.make_parser(__doc__, trials=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="tiny shapes and few tokens")
    parser.add_argument("--part", nargs="+", default=["tests", *COLUMNS], choices=["tests", *COLUMNS])
    arguments = common.parse(parser)
    if "tests" in arguments.part and arguments.device != "cpu":
        subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests"], check=False)
    for part, measure in {"exact": _exact, "costs": _costs, "speed": _speed}.items():
        if part in arguments.part:
            common.show(arguments, part, COLUMNS[part], measure(arguments))


# ---------------------------------------------------------------------- exactness


def _exact(arguments: argparse.Namespace) -> Iterator[common.Row]:
    dtypes = ["float32"] if arguments.small else ["float32", "bfloat16", "float16"]
    prompts, num_new = common.python_texts(1 if arguments.small else 8), 12 if arguments.small else 32
    for dtype in dtypes:
        pair = load_pair(dtype=dtype, device=arguments.device)
        assistant = uag.Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer)
        arms = pair.target.generate, partial(assistant.generate, pair.target)
        for cache, do_sample in itertools.product(("dynamic", "static"), (False, True)):
            options = {"do_sample": do_sample, "cache_implementation": cache, "disable_compile": True}
            differ = 0
            for prompt in prompts:
                inputs = pair.target_tokenizer(prompt, return_tensors="pt").to(arguments.device)
                outputs = []
                for generate in arms:
                    torch.manual_seed(0)
                    outputs.append(generate(**inputs, **options, max_new_tokens=num_new).tolist())
                differ += outputs[0] != outputs[1]
            mode = "sampled" if do_sample else "greedy"
            yield {"model": "demo", "dtype": dtype, "cache": cache, "mode": mode, "differ": f"{differ}/{len(prompts)}"}


# ---------------------------------------------------------------------- costs of passes


def random_model(shape: str, arguments: argparse.Namespace) -> Any:
    """Return a Llama with random weights: bfloat16, or float32 on a CPU."""
    hidden, inner, num_layers, num_heads, num_kv_heads = SHAPES[shape]
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        vocab_size=512 if arguments.small else 128_256,
        bos_token_id=None,
        eos_token_id=None,
    )
    dtype = torch.float32 if arguments.device == "cpu" else torch.bfloat16
    with torch.device(arguments.device):
        return LlamaForCausalLM._from_config(config, dtype=dtype).eval()


@torch.inference_mode()
def _costs(arguments: argparse.Namespace) -> Iterator[common.Row]:
    shapes = ["tiny"] if arguments.small else ["32B", "8B", "1B", "0.5B", "0.1B"]
    for shape in shapes:
        model = random_model(shape, arguments)
        widths = (4,) if arguments.small else passes.WIDTHS
        for num_rows, form in itertools.product((1,) if arguments.small else (1, 8), ("eager", "static", "compiled")):
            for width in widths if form != "compiled" or num_rows == 1 else ():
                ms = _pass_ms(model, form, num_rows, width, arguments)
                yield {"model": shape, "num_rows": num_rows, "form": form, "width": width, "ms": ms} | _dtype(model)


def _dtype(model: Any) -> common.Row:
    return {"dtype": str(model.dtype).removeprefix("torch.")}


def _pass_ms(model: Any, form: str, num_rows: int, width: int, arguments: argparse.Namespace) -> float:
    size = PROMPT_LENGTH + 64 * width
    cache = DynamicCache() if form == "eager" else StaticCache(config=model.config, max_cache_len=size)
    ids = torch.ones((num_rows, PROMPT_LENGTH), dtype=torch.long, device=model.device)
    model(ids, past_key_values=cache)
    forward = model.get_compiled_call(passes.compile_config()) if form == "compiled" else model
    seconds, block = [], ids[:, :width]
    for _ in range(8 + 2 * arguments.trials):
        inputs = model.prepare_inputs_for_generation(block, past_key_values=cache, next_sequence_length=width)
        run = partial(passes.run, forward, inputs, has_own_graph=form == "compiled")
        seconds.append(_timed(run, model.device))
    return 1e3 * median(seconds[8:])  # the first passes compile and record


def _timed(run: Callable[[], Any], device: torch.device) -> float:
    start_s = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start_s


# ---------------------------------------------------------------------- speed


class Emulated(Drafter):
    """Runs a draft's real passes, then replaces each candidate by the target's next token with a probability."""

    strategy = source = "emulated draft"

    def __init__(self, draft: ModelDrafter, output_ids: Sequence[int], probability: float) -> None:
        self.draft, self.output_ids, self.probability = draft, output_ids, probability

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        """Start the draft."""
        self.draft.start(prompts, source_ids)
        self._num_done, self._random = 0, torch.Generator().manual_seed(0)

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        """Return the draft's number of candidates."""
        (line,) = self.draft.propose(ask)
        known = self.output_ids[self._num_done : self._num_done + len(line)]
        return [[replace(p, target_id=self._id(token_id)) for p, token_id in zip(line, known, strict=False)]]

    def _id(self, token_id: int) -> int:
        is_right = float(torch.rand((), generator=self._random)) < self.probability
        return token_id if is_right else (token_id + 1) % 500

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:
        """Pass the output on."""
        self._num_done += len(output_ids)
        self.draft.accept(row, num_accepted, output_ids)

    def release(self) -> None:
        """Release the draft."""
        self.draft.release()


class EmulatedGenerator(AssistedCandidateGenerator):
    """transformers' own drafting with the same emulation."""

    emulated: Emulated

    def get_candidates(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        """Run the draft, then replace its candidates."""
        candidate_ids, _ = super().get_candidates(input_ids, **kwargs)
        start = input_ids.shape[1]
        known = self.emulated.output_ids[start - PROMPT_LENGTH :]
        new = [self.emulated._id(token_id) for token_id, _ in zip(known, candidate_ids[0, start:], strict=False)]
        return torch.cat([input_ids, input_ids.new_tensor([new])], dim=1), None


def _speed(arguments: argparse.Namespace) -> Iterator[common.Row]:
    pairs = [("tiny", "tiny draft")] if arguments.small else [("8B", "0.5B"), ("8B", "0.1B"), ("32B", "1B")]
    for target_shape, draft_shape in pairs:
        target, draft = random_model(target_shape, arguments), random_model(draft_shape, arguments)
        ids = torch.randint(0, 500, (1, PROMPT_LENGTH), generator=torch.Generator().manual_seed(1)).to(target.device)
        for probability in (0.65,) if arguments.small else (0.5, 0.65, 0.8):
            row = {"pair": f"{target_shape} <- {draft_shape}", "probability": probability} | _dtype(target)
            yield from (row | measured for measured in _arms(target, draft, ids, probability, arguments))


def _arms(
    target: Any, draft: Any, ids: torch.Tensor, probability: float, arguments: argparse.Namespace
) -> Iterator[common.Row]:
    eager: dict[str, Any] = {"max_new_tokens": 24 if arguments.small else NUM_NEW, "do_sample": False}
    compiled = eager | {"cache_implementation": "static", "compile_config": passes.compile_config()}
    draft.generation_config.num_assistant_tokens = NUM_CANDIDATES
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0

    for arm, options in (
        ("plain", eager),
        ("transformers", eager | {"assistant_model": draft}),
        ("uag", eager),
        ("plain, static + compiled", compiled),
        ("uag, static + compiled", compiled),
        ("uag, static + compiled, compiled draft", compiled),
    ):
        plain = {name: value for name, value in options.items() if name != "assistant_model"}
        expected = target.generate(ids, **plain)[0, PROMPT_LENGTH:].tolist()  # compiles, too
        drafter = Emulated(ModelDrafter(draft, None, compile_draft=arm.endswith("draft")), expected, probability)
        run = _runner(target, drafter, ids, options, arm)
        run()
        run()
        if arguments.device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        seconds = median(_timed(run, target.device) for _ in range(arguments.trials))
        gib = 0.0 if arguments.device == "cpu" else torch.cuda.max_memory_allocated() / 2**30
        stats = uag.last_stats(target) if arm.startswith("uag") else None
        per_pass = {} if stats is None else {"per_pass": len(expected) / max(stats.num_target_forwards, 1)}
        yield {"arm": arm, "speed": len(expected) / seconds, "gib": gib} | per_pass


def _runner(target: Any, drafter: Emulated, ids: torch.Tensor, options: dict[str, Any], arm: str) -> Callable[[], Any]:
    if arm.startswith("uag"):
        assistant = uag.Assistant(None, None, drafter=drafter, num_candidate_tokens=NUM_CANDIDATES)
        return lambda: assistant.generate(target, ids, **options)
    if arm != "transformers":
        return lambda: target.generate(ids, **options)

    def run() -> Any:
        def generator(**given: Any) -> Any:
            names = ("input_ids", "generation_config", "model_kwargs", "inputs_tensor", "logits_processor")
            made = EmulatedGenerator(assistant_model=given["assistant_model"], **{name: given[name] for name in names})
            made.emulated = drafter
            return made

        drafter._random = torch.Generator().manual_seed(0)
        target._get_candidate_generator = generator
        try:
            return target.generate(ids, **options)
        finally:
            del target._get_candidate_generator

    return run


if __name__ == "__main__":
    main()
