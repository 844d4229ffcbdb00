"""The arguments of one call, created anew each time: prompts, options, and the caller's objects."""

import os
from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    DynamicCache,
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    StaticCache,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    SynthIDTextWatermarkingConfig,
)

from tests.fuzz.case import Case
from tests.fuzz.targets import vocabulary_size
from tests.support.callers import Puts
from tests.support.calls import left_padded
from uag.hf.cache.caches import CACHE

LONGEST = 40
"""Maximum number of tokens of a prompt."""

REFUSED = ("num_beams", "prompt_lookup_num_tokens")
"""Options that uag may refuse: it assists greedy decoding and sampling."""


class Counting(LogitsProcessor):
    """Favors a different id at each call, so it must be called once per output token."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        scores = scores.clone()
        scores[:, self.num_calls * 7 % scores.shape[1]] += 4.0
        return scores


class Looking(LogitsProcessor):
    """Favors an id that depends on all previous ids, so it must receive plain decoding's ids."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        favored = (input_ids.sum(dim=1) * 13 + input_ids.shape[1]) % scores.shape[1]
        return scores.scatter_add(1, favored[:, None], torch.full((scores.shape[0], 1), 4.0))


class Ending(StoppingCriteria):
    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids[:, -1] % 5 == 0


class Scaled(DynamicCache):
    def update(self, *args: Any, **kwargs: Any) -> Any:
        keys, values = super().update(*args, **kwargs)
        return keys, values * 0.6


class Evicting(DynamicCache):
    """Passes only the last eight tokens on to the next passes."""

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *args: Any, **kwargs: Any) -> Any:
        found = super().update(keys, values, layer, *args, **kwargs)
        own = self.layers[layer]
        if self.get_seq_length(layer) > 8:
            own.values = torch.cat([own.values[:, :, :-8] * 0.0, own.values[:, :, -8:]], dim=2)
        return found


class Rounding(DynamicCache):
    """Stores keys with one scale for a whole pass."""

    def update(self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        scale = keys.abs().amax((-1, -2), keepdim=True) / 3
        return super().update((keys / scale).round() * scale, values, *args, **kwargs)


def _replaced(model: Any) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    own = cache.update

    def update(*args: Any, **kwargs: Any) -> Any:
        keys, values = own(*args, **kwargs)
        return keys, values * 0.6

    cache.update = update
    return cache


CACHES: dict[str, Callable[[Any], Any]] = {
    "cache empty": lambda model: DynamicCache(config=model.config),
    "cache filled": lambda model: DynamicCache(config=model.config),
    "cache static": lambda model: StaticCache(config=model.config, max_cache_len=128),
    "cache scaled": lambda model: Scaled(config=model.config),
    "cache evicting": lambda model: Evicting(config=model.config),
    "cache rounding": lambda model: Rounding(config=model.config),
    "cache replaced": _replaced,
}
"""Caches that a caller passes."""

OBJECTS: dict[str, tuple[str, Callable[[], Any]]] = {
    "counting": ("logits_processor", lambda: LogitsProcessorList([Counting()])),
    "looking": ("logits_processor", lambda: LogitsProcessorList([Looking()])),
    "ending": ("stopping_criteria", lambda: StoppingCriteriaList([Ending()])),
    "forced": (
        "prefix_allowed_tokens_fn",
        lambda: lambda row, ids: [*range(3, 100)] if len(ids) % 5 == 0 else [3 + len(ids) % 30],
    ),
    "prefix": ("prefix_allowed_tokens_fn", lambda: lambda row, ids: list(range(3 + int(ids[-1]) % 2, 100, 2))),
    "streamer": ("streamer", Puts),
}
"""Maps a name to the argument of `generate` and the object."""

CRITERIA: dict[str, Callable[[Any], StoppingCriteria]] = {
    "own stop strings": lambda tokenizer: StopStringCriteria(tokenizer, ["e", " th"]),
    "own ends": lambda _: EosTokenCriteria(torch.arange(7, 649, 13)),
    "own length": lambda _: MaxLengthCriteria(16),
}
"""Criteria of transformers' classes that a caller passes; `generate` may make others of the same class."""

EXTRAS = (
    *("threads", *(["fork"] if hasattr(os, "fork") else []), *CRITERIA, "ends", "ends often", "config", "embeds"),
    *("synthid", "no mask", "generator", *OBJECTS, *CACHES),
)
"""The extras of a case, in addition to options that are plain data."""

ID_OPTIONS = ("eos_token_id", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias",
              "forced_eos_token_id", "forced_bos_token_id")  # fmt: skip


def _within(value: Any, size: int) -> Any:
    if isinstance(value, list):
        return [_within(each, size) for each in value]
    return value % size if isinstance(value, int) else value


def prompts(case: Case, model: Any, tokenizer: Any) -> dict[str, torch.Tensor]:
    size = vocabulary_size(model)
    rows = [tokenizer(r, add_special_tokens=False)["input_ids"] if isinstance(r, str) else r for r in case.rows]
    return left_padded([[i % size for i in row[:LONGEST]] for row in rows])


def arguments(case: Case, model: Any, tokenizer: Any) -> dict[str, Any]:
    kwargs: dict[str, Any] = {**prompts(case, model, tokenizer)}
    size = vocabulary_size(model)
    options = {"num_beams": 1} | case.options  # the configurations of some classes ask for beams
    if case.change == "offloaded":  # an error leaves weights in memory, and a static cache is where they are
        options.pop("cache_implementation", None)
    decoding = {n: _within(value, size) if n in ID_OPTIONS else value for n, value in options.items()}
    for step, name in ((19, "ends"), (4, "ends often")):
        if name in case.extras:  # at different steps of the rows
            decoding["eos_token_id"] = list(range(7, size, step))
    if "own ends" in case.extras:  # without one, `generate` raises a TypeError, and uag needs none
        decoding.setdefault("pad_token_id", 0)
    if "synthid" in case.extras:
        decoding["watermarking_config"] = SynthIDTextWatermarkingConfig(ngram_len=3, keys=list(range(30, 36)))
    if "stop_strings" in decoding:
        kwargs["tokenizer"] = tokenizer
    kwargs |= {"generation_config": GenerationConfig(**decoding)} if "config" in case.extras else decoding
    kwargs |= {name: make() for extra, (name, make) in OBJECTS.items() if extra in case.extras}
    own = [make(tokenizer) for extra, make in CRITERIA.items() if extra in case.extras]
    if own:
        kwargs["stopping_criteria"] = StoppingCriteriaList([*kwargs.get("stopping_criteria", ()), *own])
    if not model.config.is_encoder_decoder:
        _add_states(case, model, kwargs)
    if "no mask" in case.extras:
        del kwargs["attention_mask"]
    return kwargs


def _add_states(case: Case, model: Any, kwargs: dict[str, Any]) -> None:
    for extra in case.extras:
        if extra in CACHES:
            kwargs[CACHE] = CACHES[extra](model)
    if "cache filled" in case.extras and kwargs["input_ids"].shape[1] > 1:
        start = {name: kwargs[name][:, :-1] for name in ("input_ids", "attention_mask")}
        positions = (start["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
        with torch.no_grad():
            model(**start, position_ids=positions, **{CACHE: kwargs[CACHE]}, use_cache=True)
    if "embeds" in case.extras:
        kwargs["inputs_embeds"] = model.get_input_embeddings()(kwargs.pop("input_ids")).detach()
