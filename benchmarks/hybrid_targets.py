"""Targets with linear-attention or convolution layers: which assisted output equals plain decoding's?

    python benchmarks/hybrid_targets.py [--tokens 48] [--prompts 4] [--output FILE]

The state of such a layer cannot be cropped after a rejected candidate. Targets are tiny models with random weights and
the demo target's tokenizer; the draft is the demo's. A cell shows how many greedy outputs equal plain `generate`'s, or
"refused"; the first difference or error of each arm is printed below. "accepted" and "rejected" count uag's candidates:
without both, equality would prove little.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import common
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from uag.bench import BenchOptions, build_arms, measure, read_prompts
from uag.loading import Pair, load_pair

LINEAR = {f"linear_{name}": size for name, size in (("num_key_heads", 2), ("num_value_heads", 2))}
LINEAR |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2} | ATTENTION
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
TARGETS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": LINEAR | {"layer_types": ["linear_attention", "full_attention"]},
    "qwen3_next": LINEAR | EXPERTS | {"layer_types": ["linear_attention", "full_attention"]},
    "olmo_hybrid": LINEAR | {"layer_types": ["linear_attention", "full_attention"]},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
}
ARMS = {"transformers": "transformers, assisted", "prompt-lookup": "transformers, prompt lookup", "uag": "uag"}
COLUMNS = {"target": "{target}"} | {title: f"{{{arm}}}" for arm, title in ARMS.items()}
COLUMNS |= {name: f"{{{name}}}" for name in ("accepted", "rejected")}


def main() -> None:
    """Compare all targets and print one row for each."""
    arguments = common.parse(common.make_parser(__doc__, tokens=48, prompts=4))
    title = f"greedy outputs equal to plain decoding's, {arguments.prompts} prompts x {arguments.tokens} tokens"
    common.show(arguments, title, COLUMNS, _compare(arguments), notes=lambda rows: [row["notes"] for row in rows])


def _compare(arguments: argparse.Namespace) -> Iterator[common.Row]:
    demo, prompts = load_pair(dtype="float32", device="cpu"), read_prompts(common.python_texts(arguments.prompts))
    options = BenchOptions(max_new_tokens=arguments.tokens, num_trials=1)
    for name, sizes in TARGETS.items():
        target = random_target(name, len(demo.target_tokenizer), sizes)
        pair = Pair(target, demo.target_tokenizer, name, demo.draft, demo.draft_tokenizer, "demo draft")
        records = list(measure(pair, prompts, options, arms=build_arms(pair, BenchOptions(arm_names=("plain", *ARMS)))))
        row: common.Row = {"target": name, "dtype": "float32", "notes": ""}
        for arm in ARMS:
            of_arm = [record for record in records if record.arm == arm]
            unequal = [record for record in of_arm if record.difference or record.refusal]
            is_refused = any(record.refusal and not record.difference for record in unequal)
            row[arm] = "refused" if is_refused else f"{len(of_arm) - len(unequal)} of {len(of_arm)}"
            row["notes"] += "".join(f"{name}, {arm}: {record.refusal or record.difference}\n" for record in unequal[:1])
            row["accepted"] = sum(record.num_accepted_tokens for record in of_arm)  # of uag, the last arm
            row["rejected"] = sum(record.num_candidate_tokens for record in of_arm) - row["accepted"]
        yield row


def random_target(name: str, vocab_size: int, sizes: dict[str, Any]) -> Any:
    """Return a model that generates few different tokens, so that some candidates are accepted and some rejected."""
    torch.manual_seed(0)
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = AutoConfig.for_model(name, vocab_size=vocab_size, tie_word_embeddings=False, **SMALL | sizes | ids)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for part, weight in model.named_parameters():
            if weight.dim() >= 2:
                weight.normal_(0.0, 1.0 if "embed" in part else weight.shape[-1] ** -0.5)
        model.get_output_embeddings().weight[24:] = 0.0
    return model


if __name__ == "__main__":
    main()
