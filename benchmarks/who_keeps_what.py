"""Who keeps what: the output, the seed, the distribution and the bits of plain decoding, method by method.

    python benchmarks/who_keeps_what.py [--prompts 6] [--tokens 48] [--samples 2000] [--output FILE]

The methods: transformers' assisted generation across tokenizers as text (greedy), with a static cache too, and over the
shared vocabulary (sampled); prompt lookup; and uag. The models are the demo pair. Columns:

- greedy: outputs in float32 that equal plain `generate`'s;
- seed: sampled outputs in float32 that equal plain `generate`'s after the same seed;
- distance: the total variation of the first token, in samples of a tiny model, from the target's exact distribution;
  as many samples of plain `generate` have the distance in parentheses;
- bits: greedy outputs in bfloat16 whose ids and logits equal, bit for bit, those without a draft: plain `generate`'s,
  and for uag those of `uag.Assistant(None)`.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import common
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import uag
from uag.loading import Pair, encode, load_pair

COLUMNS = {
    "method": "{method}",
    "greedy": "{greedy}",
    "seed": "{seed}",
    "distance (plain)": "{distance:.3f} ({plain:.3f})",
    "bits in bfloat16": "{bits}",
    "note": "{note}",
}
TOP_K = 6
"""Tokens that a sample of the tiny model is drawn from. Decrease to show smaller faults with as many samples."""


@dataclass
class Method:
    """A way to generate, and the same without a draft; both take the arguments of `generate`."""

    name: str
    generate: Callable[..., Any]
    plain: Callable[..., Any]
    samples: bool = True
    is_greedy: bool = True


def main() -> None:
    """Measure each method, and print one row for each."""
    arguments = common.parse(common.make_parser(__doc__, prompts=6, tokens=48, samples=2000))
    common.show(arguments, "who keeps what", COLUMNS, _measure(arguments))


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    pairs = [load_pair(dtype=dtype, device="cpu") for dtype in ("float32", "bfloat16")]
    inputs = [encode(pairs[0], [text]) for text in common.python_texts(arguments.prompts)]
    tiny = _tiny(pairs[0])
    methods = [_methods(pair) for pair in (*pairs, tiny)]
    distances: dict[str, float] = {}
    for full, half, small in zip(*methods, strict=True):
        row: dict[str, Any] = {"method": full.name, "dtype": "float32, bfloat16", "note": ""}
        sampled = {"do_sample": True, "max_new_tokens": arguments.tokens}
        greedy = {"do_sample": False, "max_new_tokens": arguments.tokens}
        try:
            if full.is_greedy:
                row["greedy"] = _num_equal(full.generate, pairs[0].target.generate, inputs, greedy)
                row["bits"] = _num_equal(half.generate, half.plain, inputs, greedy, has_logits=True)
            if full.samples:
                row["seed"] = _num_equal(full.generate, pairs[0].target.generate, inputs, sampled)
                if not distances:
                    distances["plain"] = _distance(tiny.target.generate, tiny, arguments.samples, seed=1)
                row |= distances | {"distance": _distance(small.generate, tiny, arguments.samples, seed=2)}
        except Exception as error:  # noqa: BLE001 - what a method cannot do is a result
            row["note"] = f"{type(error).__name__}: {error}"[:100]
        yield row


def _methods(pair: Pair) -> list[Method]:
    target, both = pair.target, {"tokenizer": pair.target_tokenizer, "assistant_tokenizer": pair.draft_tokenizer}
    theirs = partial(target.generate, assistant_model=pair.draft, **both)
    static = partial(theirs, cache_implementation="static")
    lookup = partial(target.generate, prompt_lookup_num_tokens=5)
    assistant = uag.Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer, num_candidate_tokens=4)
    without = uag.Assistant(None, None, pair.target_tokenizer)
    plain = target.generate
    ours, reference = partial(assistant.generate, target), partial(without.generate, target)
    return [
        Method("transformers, text", theirs, plain, samples=False),
        Method("transformers, text, static", static, partial(plain, cache_implementation="static"), samples=False),
        Method("transformers, shared vocabulary", theirs, plain, is_greedy=False),
        Method("prompt lookup", lookup, plain),
        Method("uag", ours, reference),
    ]


def _num_equal(
    generate: Callable[..., Any],
    plain: Callable[..., Any],
    inputs: list[dict[str, torch.Tensor]],
    options: dict[str, Any],
    *,
    has_logits: bool = False,
) -> str:
    """Return how many outputs are equal, with their logits if `has_logits`."""
    options |= {"return_dict_in_generate": True, "output_logits": has_logits, "pad_token_id": 0}
    num_equal = 0
    for seed, given in enumerate(inputs):
        outputs = []
        for each in (plain, generate):
            torch.manual_seed(seed)
            output = each(**given, **options)
            logits = torch.stack(output.logits).float() if has_logits else torch.zeros(0)
            outputs.append((output.sequences, logits))
        num_equal += all(map(torch.equal, *outputs))
    return f"{num_equal} of {len(inputs)}"


def _distance(generate: Callable[..., Any], pair: Pair, num_samples: int, seed: int) -> float:
    """Return the total variation of the first token of many samples from the target's distribution."""
    given = encode(pair, ["a b c a b c a b"])
    with torch.no_grad():
        values, ids = pair.target(**given).logits[0, -1].double().topk(TOP_K)
    exact = dict(zip(ids.tolist(), torch.softmax(values, -1).tolist(), strict=True))
    torch.manual_seed(seed)
    counts = Counter[int]()
    for _ in range(num_samples):
        output = generate(**given, do_sample=True, top_k=TOP_K, max_new_tokens=4, pad_token_id=0)
        counts[int(output[0, given["input_ids"].shape[1]])] += 1
    return sum(abs(counts[i] / num_samples - exact.get(i, 0.0)) for i in {*counts, *exact}) / 2


def _tiny(pair: Pair) -> Pair:
    """Return models of one layer for the pair's tokenizers."""
    models = []
    for seed, model in enumerate((pair.target, pair.draft)):
        torch.manual_seed(seed)
        size = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        tiny = LlamaForCausalLM(LlamaConfig(vocab_size=model.config.vocab_size, initializer_range=0.4, **size)).eval()
        tiny.generation_config.eos_token_id = tiny.config.eos_token_id = None
        models.append(tiny)
    target, draft = models
    return Pair(target, pair.target_tokenizer, "tiny", draft, pair.draft_tokenizer, "tiny")


if __name__ == "__main__":
    main()
