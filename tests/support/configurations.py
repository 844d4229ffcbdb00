"""Configurations of every class: each field that can change how a token depends on others, alone and in drawn pairs.

`python -m tests.support.configurations docs/configurations.md` writes the table; `--seconds` and `--part` bound it.
"""

import argparse
import dataclasses
import random
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig

import uag
from tests.support.calls import seeded
from tests.support.models import spread
from tests.support.tiny_classes import class_names, tiny_config
from tests.support.walk import SharedDrafter, copied, inputs_for
from uag.hf import models

NEW = 20
"""New tokens of a call: more than the small windows, capacities and lengths below."""

_SKIPPED = re.compile(
    r".*(token_id|token_index|dropout|vocab|return_dict|output_|is_decoder|is_encoder|use_cache|torchscript|initializer"
    r"|gradient|loss|aux|hidden_act|tie_word|feed_forward|architectures|name|version|dtype|problem_type|_std|_eps).*"
)
_COUNTS = re.compile(
    r".*(window|chunk|capacity|context|index_topk|stride|kernel|compress|ratio|block|interval|floor|original"
    r"|interleave|sparse_step|top_?k|per_tok|group|shared_layers|fraction_layers).*"
)
_NUMBERS = re.compile(r".*(cap|fraction|limit|clip|jitter|scal|beta|alpha|threshold|multiplier).*")
_WORDS = {"second_expert_policy": ("random", "sampling"), "position_embedding_type": ("relative_key",)}
_OLD = 16
"""The original length of rotary factors that change with the length."""

_KINDS = ("equal, both", "equal, one-sided", "plain", "refused", "not built", "DIFFERENT")


def _ropes(parameters: dict[str, Any]) -> Iterator[dict[str, Any]]:
    theta = parameters.get("rope_theta", 1e4)
    base = {"factor": 4.0, "rope_theta": theta, "original_max_position_embeddings": _OLD}
    yield {"rope_parameters": base | {"rope_type": "dynamic"}, "max_position_embeddings": _OLD}
    yield {"rope_parameters": base | {"rope_type": "yarn"}}
    yield {"rope_parameters": base | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}}
    for size in (2, 4):
        factors = {"short_factor": [1.0] * size, "long_factor": [3.0] * size}
        yield {"rope_parameters": base | factors | {"rope_type": "longrope"}}


def variants(config: PreTrainedConfig) -> list[dict[str, Any]]:
    """Return options that each change one field of a tiny configuration."""
    found: list[dict[str, Any]] = []
    for field in dataclasses.fields(config) if dataclasses.is_dataclass(config) else ():
        name = field.name
        if not field.init or _SKIPPED.fullmatch(name):
            continue
        try:
            value = getattr(config, name)
        except Exception:  # noqa: BLE001 - of a class of its own: each layer has its own number
            continue
        if name == "rope_parameters" and isinstance(value, dict):
            found += _ropes(value)
        elif name in _WORDS:
            found += [{name: word} for word in _WORDS[name] if word != value]
        elif isinstance(value, bool):
            found.append({name: not value})
        elif _COUNTS.fullmatch(name) and (value is None or isinstance(value, int)):
            # With a window of one token, transformers' own cache keeps every position.
            smallest = 2 if re.search("window|chunk", name) else 1
            found += [{name: number} for number in (1, 2, 4) if smallest <= number != value]
        elif _NUMBERS.fullmatch(name) and (value is None or isinstance(value, float)):
            found.append({name: 0.5})
    return found + [{"_attn_implementation": name} for name in ("eager", "sdpa")]


def drawn(class_name: str, draws: random.Random, num_pairs: int) -> list[dict[str, Any]]:
    """Return a class's variants in random order, each alone, then some pairs of them."""
    alone = variants(tiny_config(_config_class(class_name)))
    draws.shuffle(alone)
    pairs = [draws.choice(alone) | draws.choice(alone) for _ in range(num_pairs)]
    return alone + pairs


def _config_class(class_name: str) -> Any:
    return getattr(transformers, class_name).config_class or CONFIG_MAPPING[class_names()[class_name]]


def _build(class_name: str, options: dict[str, Any]) -> Any:
    of_config = {name: value for name, value in options.items() if name != "_attn_implementation"}
    config = tiny_config(_config_class(class_name), **of_config)
    if "_attn_implementation" in options:
        config._attn_implementation = options["_attn_implementation"]
    torch.manual_seed(0)
    return spread(getattr(transformers, class_name)(config).float())


def examine(class_name: str, options: dict[str, Any], num_rows: int, do_sample: bool, share: float) -> tuple[str, str]:
    """Compare one call with plain decoding, and return what it was, of `_KINDS`, and the reason or the place."""
    try:
        model = _build(class_name, options)
        given: dict[str, Any] = {
            **inputs_for(class_name, num_rows), "max_new_tokens": NEW, "do_sample": do_sample,
            "eos_token_id": None, "pad_token_id": 0, "top_k": 0, "num_beams": 1,
        }  # fmt: skip
        expected = seeded(5, copied(model).generate, **given)
        if not isinstance(expected, torch.Tensor) or expected.dim() != 2:
            return "not built", "writes several ids per step"
    except Exception as error:  # noqa: BLE001 - transformers alone may raise anything for such a configuration
        return "not built", type(error).__name__
    state = torch.get_rng_state()
    drafter = SharedDrafter(expected[:, -NEW:].tolist(), models.head_size(model), share)
    assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=6)
    try:
        found = seeded(5, assistant.generate, copied(model), **given)
    except uag.errors.UagError as error:
        return "refused", str(error)
    except Exception as error:  # noqa: BLE001 - plain decoding did not raise
        return "DIFFERENT", f"{type(error).__name__}: {error}"
    if found.tolist() != expected.tolist() or not torch.equal(torch.get_rng_state(), state):
        return "DIFFERENT", f"{num_rows} rows, do_sample={do_sample}"
    stats = assistant.stats
    if not stats.num_candidate_tokens:
        return "plain", "; ".join(stats.fallbacks)
    is_both = 0 < stats.num_accepted_tokens < stats.num_candidate_tokens
    return ("equal, both" if is_both else "equal, one-sided"), "; ".join(stats.fallbacks)


def sweep(
    names: Sequence[str], seed: int, num_pairs: int, seconds: float = 1e9
) -> Iterator[tuple[str, dict[str, Any], str, str]]:
    """Yield (class, options, kind, reason) for every call, until the time is up."""
    draws, start = random.Random(seed), time.perf_counter()
    for name in names:
        try:
            chosen = drawn(name, draws, num_pairs)
        except Exception as error:  # noqa: BLE001 - a configuration may raise anything
            yield name, {}, "not built", type(error).__name__
            continue
        for options in chosen:
            for num_rows, do_sample, share in ((3, False, 0.75), (1, True, 0.9)):
                if time.perf_counter() - start > seconds:
                    return
                kind, reason = examine(name, options, num_rows, do_sample, share)
                yield name, options, kind, reason


_HEAD = """# Configurations of every class

[The walk over all classes](architectures.md) uses one tiny configuration for each class. This sweep changes every field
that can change how a token depends on others: experts, capacities, windows, chunks, numbers of keys, rotary factors
with a short original length, caps, attention implementations and policies, alone and in drawn pairs. Each call
generated {new} tokens with candidates of which 75 % or 90 % were correct, and was compared with plain `generate`: ids
and the generator's final state.

- **equal, both**: candidates were both accepted and rejected. **equal, one-sided**: only one of the two happened.
- **plain**: no candidates, for a reason that the statistics give. **refused**: an error of uag that gives the reason.
- **not built**: transformers alone does not build or run such a configuration.

transformers {transformers}, PyTorch {torch}, CPU, float32:

```sh
python -m tests.support.configurations docs/configurations.md
```

{summary}

| class | calls | equal, both | equal, one-sided | plain | refused | not built | different |
|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    """Run the sweep and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("INDEX", "PARTS"))
    parser.add_argument("--pairs", type=int, default=10, help="drawn pairs of a class")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    by_class: dict[str, Counter[str]] = {}
    for name, options, kind, reason in sweep(
        list(class_names())[given.part[0] :: given.part[1]], 0, given.pairs, given.seconds
    ):
        by_class.setdefault(name, Counter())[kind] += 1
        if kind in ("DIFFERENT", "refused"):
            sys.stderr.write(f"{kind} {name} {options} {reason}\n")
    total = sum(by_class.values(), Counter())
    summary = f"{total.total()} calls of {len(by_class)} classes: " + ", ".join(
        f"{total[k]} {k.lower()}" for k in _KINDS
    )
    lines = [
        f"| {name} | {counts.total()} | " + " | ".join(str(counts[kind]) for kind in _KINDS) + " |"
        for name, counts in by_class.items()
    ]
    head = _HEAD.format(
        new=NEW,
        transformers=transformers.__version__,
        torch=torch.__version__.partition("+")[0],
        summary=summary + ".",
    )
    given.page.write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
