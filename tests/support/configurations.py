"""Configurations of every class: each field that can change how a token depends on others, alone and in drawn pairs."""

import dataclasses
import itertools
import random
import re
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig

import uag
from tests.support.calls import seeded
from tests.support.models import spread
from tests.support.tiny_classes import class_names, tiny_config
from tests.support.walk import SharedDrafter, copied, options_for
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

KINDS = ("equal, both", "equal, one-sided", "plain", "refused", "not built", "DIFFERENT")


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
    """Return options that each change one field of a tiny configuration, or "part.field" of its decoder's part."""
    decoder = config.get_text_config(decoder=True)
    part = next((name for name in type(config).sub_configs if getattr(config, name, None) is decoder), "")
    found = _of_fields(config) + [
        {f"{part}.{name}": value for name, value in options.items()}
        for options in (_of_fields(decoder) if part else ())
    ]
    return found + [{"_attn_implementation": name} for name in ("eager", "sdpa")]


def _of_fields(config: PreTrainedConfig) -> list[dict[str, Any]]:
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
    return found


def config_class(class_name: str) -> Any:
    return getattr(transformers, class_name).config_class or CONFIG_MAPPING[class_names()[class_name]]


def build(class_name: str, options: dict[str, Any]) -> Any:
    """Build a tiny model of a class with options of `variants`; its output varies."""
    kind = config_class(class_name)
    own = {name: value for name, value in options.items() if "." not in name and name != "_attn_implementation"}
    config = tiny_config(kind, **own)
    of_part = {name.partition(".")[2]: value for name, value in options.items() if "." in name}
    for part in {name.partition(".")[0] for name in options if "." in name}:
        known = getattr(config, part)
        config = tiny_config(kind, **own, **{part: type(known)(**known.to_dict() | of_part).to_dict()})
    if "_attn_implementation" in options:
        config._attn_implementation = options["_attn_implementation"]
    torch.manual_seed(0)
    return spread(getattr(transformers, class_name)(config).float())


def examine(class_name: str, model: Any, num_rows: int, do_sample: bool, share: float) -> tuple[str, str]:
    """Compare one call with plain decoding, and return what it was, of `KINDS`, and the reason or the place."""
    try:
        given = options_for(class_name, num_rows, do_sample, NEW)
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


def sweep(class_name: str, seed: int, num_pairs: int) -> Iterator[tuple[str, dict[str, Any], str, str]]:
    """Yield (class, options, kind, reason) for each call: unchanged, then each variant, then pairs of those built."""
    draws = random.Random(f"{seed} {class_name}")
    alone: list[dict[str, Any]] = [{}]
    runs: list[dict[str, Any]] = []
    for options in alone:
        is_run = False
        for kind, reason in _calls(class_name, options):
            is_run |= kind != "not built"
            yield class_name, options, kind, reason
        if is_run and not options:
            alone += draws.sample(found := variants(tiny_config(config_class(class_name))), len(found))
        elif is_run:
            runs.append(options)
    pairs = [one | other for one, other in itertools.combinations(runs, 2) if not one.keys() & other.keys()]
    for options in draws.sample(pairs, min(num_pairs, len(pairs))):
        for kind, reason in _calls(class_name, options):
            yield class_name, options, kind, reason


def _calls(class_name: str, options: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the kind and the reason of a greedy call with three rows, then of a sampled one with one row."""
    try:
        model = build(class_name, options)
    except Exception as error:  # noqa: BLE001 - a configuration may raise anything
        yield "not built", type(error).__name__
        return
    for num_rows, do_sample, share in ((3, False, 0.75), (1, True, 0.9)):
        kind, reason = examine(class_name, model, num_rows, do_sample, share)
        yield kind, reason
        if kind == "not built":
            return
