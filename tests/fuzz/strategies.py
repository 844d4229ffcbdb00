"""Hypothesis strategies, simplest choices first, because hypothesis shrinks towards the first."""

from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st

from tests.fuzz.around import AROUND, CASTS, MODES
from tests.fuzz.case import Case
from tests.fuzz.options import CACHES, EXTRAS, REFUSED
from tests.fuzz.sources import DRAFTS, SOURCES, drafts_of
from tests.fuzz.targets import CHANGES, CLASSES, TRAINED, WRAPPED, built
from tests.support.class_inputs import INPUTS
from tests.support.configurations import build, config_class, variants
from tests.support.models import ARCHITECTURES, STATEFUL
from tests.support.tiny_classes import class_names, tiny_config

_IDS = st.integers(3, 640)
_FEW_IDS = st.lists(_IDS, min_size=1, max_size=4)
_WORDS = ("Once upon a time", "def add(first, ", "the dog sleeps", "日本語のテ", "naïve 😀", "  \n\t", "don't")
TEXT = st.one_of(st.sampled_from(_WORDS), st.text(min_size=1, max_size=12))
ROW = st.one_of(st.lists(_IDS, min_size=1, max_size=12).map(tuple), TEXT)

_SIGN = st.sampled_from((1.5, -1.5, 5.0))

WARPERS: dict[str, Any] = {
    "temperature": st.sampled_from((0.7, 1.5, 0.1, 1e-3, 1e-4, 1e-5, 10.0)),
    "top_k": st.sampled_from((0, 1, 2, 5, 1000)),
    "top_p": st.sampled_from((0.9, 0.5, 0.05)),
    "min_p": st.sampled_from((0.05, 0.5)),
    "typical_p": st.sampled_from((0.9, 0.3)),
    "top_h": st.sampled_from((0.4, 0.8)),
    "epsilon_cutoff": st.just(3e-4),
    "eta_cutoff": st.just(3e-3),
}
"""Options of sampled calls."""

OPTIONS: dict[str, Any] = {
    "eos_token_id": st.one_of(_IDS, _FEW_IDS),
    "return_dict_in_generate": st.just(True),
    "output_scores": st.just(True),
    "output_logits": st.just(True),
    "output_hidden_states": st.just(True),
    "output_attentions": st.just(True),
    "stop_strings": st.lists(
        st.sampled_from(("e", " th", "qu", "ing", "1", "\n")), min_size=1, max_size=3, unique=True
    ),
    "repetition_penalty": st.sampled_from((1.3, 0.7)),
    "no_repeat_ngram_size": st.integers(1, 3),
    "encoder_repetition_penalty": st.just(1.3),
    "encoder_no_repeat_ngram_size": st.just(2),
    "bad_words_ids": st.lists(_FEW_IDS, min_size=1, max_size=3),
    "suppress_tokens": _FEW_IDS,
    "begin_suppress_tokens": _FEW_IDS,
    "sequence_bias": st.lists(st.tuples(_FEW_IDS, _SIGN).map(list), min_size=1, max_size=3),
    "min_new_tokens": st.integers(1, 20),
    "min_length": st.integers(1, 30),
    "max_length": st.one_of(st.integers(12, 40), st.just(24.0)),
    "forced_eos_token_id": _IDS,
    "forced_bos_token_id": _IDS,
    "exponential_decay_length_penalty": st.just((4, 1.3)),
    "renormalize_logits": st.just(True),
    "remove_invalid_values": st.just(True),
    "guidance_scale": st.sampled_from((1.5, 0.5)),
    "watermarking_config": st.just({"greenlist_ratio": 0.3, "bias": 2.0}),
    "use_cache": st.just(False),
    "cache_implementation": st.sampled_from(("dynamic", "static")),
    "prefill_chunk_size": st.integers(1, 4),
    "max_time": st.just(100.0),
    "output_router_logits": st.just(True),
    "logits_to_keep": st.just(1),
    "num_beams": st.just(2),
    "prompt_lookup_num_tokens": st.just(3),
}
"""Options of any call; those that uag refuses come last."""

_SETTINGS: dict[str, Any] = {
    "own_kernels": st.just(False),
    "min_confidence": st.sampled_from((0.3, 0.9)),
    "prompt_lookup": st.just(False),
    "draft_independent": st.just(True),
}


@st.composite
def _options(draw: st.DrawFn) -> dict[str, Any]:
    found: dict[str, Any] = {"max_new_tokens": draw(st.sampled_from((12, 12, 7, 18, 24, 12, 18, 24, 3, 1, 12.0)))}
    if draw(st.booleans()):
        found["do_sample"] = True
        for name in draw(st.lists(st.sampled_from(list(WARPERS)), max_size=2, unique=True)):
            found[name] = draw(WARPERS[name])
        if draw(_one_in(4)):
            found["num_return_sequences"] = draw(st.integers(2, 3))
    for name in draw(st.lists(st.sampled_from(list(OPTIONS)), max_size=4, unique=True)):
        found[name] = draw(OPTIONS[name])
    if any(name.startswith("output_") for name in found) and draw(_often(8)):
        found["return_dict_in_generate"] = True
    if "max_length" in found:
        del found["max_new_tokens"]
    if draw(st.booleans()):
        found["pad_token_id"] = draw(st.sampled_from((0, 5)))
    if "exponential_decay_length_penalty" in found:  # fails without
        found.setdefault("eos_token_id", 9)
    return found


def _one_in(number: int) -> st.SearchStrategy[bool]:
    return st.integers(0, number - 1).map(lambda drawn: drawn == number - 1)


def _often(number: int) -> st.SearchStrategy[bool]:
    return _one_in(number).map(lambda rare: not rare)


_CONFIGURED = [n for n, kind in class_names().items() if kind not in INPUTS and "BigBird" not in n]
"""Classes that read text; BigBird's first pass changes it."""


_MOST_PARAMETERS = 10_000_000
"""Largest size of a drawn class. Models are kept, and the smallest ones of a few classes take up to 4 GB (VibeVoice).
Increase to draw more classes; decrease to use less memory."""


def _is_large(class_name: str) -> bool:
    try:
        with torch.device("meta"):
            return bool(build(class_name, {}).num_parameters() > _MOST_PARAMETERS)
    except Exception:  # noqa: BLE001 - a configuration may raise anything
        return False


@cache
def _variants(class_name: str) -> list[dict[str, Any]]:
    try:
        return [] if _is_large(class_name) else variants(tiny_config(config_class(class_name)))
    except Exception:  # noqa: BLE001 - and so may its class
        return []


@cache
def _runs(target: str) -> bool:
    """Return whether a model generates, one id per step: Dia writes one for each codebook."""
    try:
        ids = built(target)[0].generate(torch.tensor([[5, 9, 14]]), max_new_tokens=2, num_beams=1)
    except Exception:  # noqa: BLE001 - and so may a model
        return False
    return bool(ids.dim() == 2)


@st.composite
def _configured(draw: st.DrawFn) -> str:
    class_name, numbers = draw(st.sampled_from(_CONFIGURED)), st.integers(0, 999)
    found = _variants(class_name)
    options: dict[str, Any] = {"sliding_window": 4} if draw(_one_in(4)) else {}
    for number in draw(st.lists(numbers, min_size=not options, max_size=2 - len(options))):
        options |= found[number % len(found)] if found else {}
    target = f"{class_name} {options!r}"
    return target if options and _runs(target) else "llama"


@st.composite
def _targets(draw: st.DrawFn) -> tuple[str, str]:
    """Draw a target and a change of it; half of the targets are unchanged, and the slow demo is rare."""
    if draw(_one_in(40)):
        return draw(st.sampled_from(TRAINED)), draw(st.sampled_from(("", *CHANGES)))
    if draw(_one_in(5)):
        return draw(_configured()), ""
    change = draw(st.sampled_from([*CHANGES, *WRAPPED])) if draw(_one_in(3)) else ""
    if change in WRAPPED:
        return "llama", change
    known, stories = list(ARCHITECTURES), [name for name in TRAINED if "stories" in name] or ["llama"]
    kinds = [["llama"], known, known, list(STATEFUL), list(CLASSES), stories, ["wide"]]
    return draw(st.sampled_from(draw(st.sampled_from(kinds)))), change


@st.composite
def _around(draw: st.DrawFn, *, is_repeated: bool) -> set[str]:
    """Draw what a call is in; autocast only where `rounding` can repeat the passes."""
    found: list[str] = draw(st.one_of(*3 * [st.just([])], st.lists(st.sampled_from(list(AROUND)), max_size=2)))
    return set(found) if is_repeated else set(found) - set(CASTS)


def _without_loss(options: dict[str, Any], num_rows: int) -> dict[str, Any]:
    """Drop the router's logits, whose training loss ends plain decoding, if a call has several rows."""
    is_single = num_rows * options.get("num_return_sequences", 1) == 1
    return {name: value for name, value in options.items() if is_single or name != "output_router_logits"}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a case that plain decoding and uag usually both accept."""
    target, change = draw(_targets())
    options = draw(_options())
    extras = set(draw(st.lists(st.sampled_from(EXTRAS), max_size=2, unique=True)))
    caches = sorted(extras & set(CACHES))
    extras -= set(caches[1:])  # one cache at most
    door = draw(st.sampled_from(("assistant", "assistant", "assistant", "custom_generate", "install")))
    sources = ("drafter",) * 15 + tuple(s for s in SOURCES if s not in DRAFTS) + 2 * drafts_of(target)
    source = draw(st.sampled_from(sources))
    if door == "install":
        extras.discard("generator")
        options = {name: value for name, value in options.items() if name not in REFUSED}  # not uag's: passed through
        source = draw(st.sampled_from(("prediction ids", "prediction", *drafts_of(target))))
    if target not in ARCHITECTURES or change or door == "install":
        extras.discard("threads")  # other models and changes keep state between passes; install is the process's
    if door == "custom_generate":  # transformers passes neither to a callable
        extras.discard("streamer")
        options.pop("stop_strings", None)
    if change.startswith("training") or "second_expert_policy" in target:
        extras.discard("generator")  # the target's own draws come from the default generator
    if "prompt_lookup_num_tokens" in options:
        extras.discard("own length")  # transformers' own assisted decoding may then never end
    settings: dict[str, Any] = {"num_candidate_tokens": draw(st.sampled_from((4, 1, 2, 7, None)))}
    for name in draw(st.lists(st.sampled_from(list(_SETTINGS)), max_size=1)):
        settings[name] = draw(_SETTINGS[name])
    if source in DRAFTS and door != "install":
        forms = ("int8", "int4") if source == "copy" else ("int8", "int4", "model")
        settings["draft_weights"] = draw(st.sampled_from(forms))
    around = draw(_around(is_repeated=not (change or "embeds" in extras or built(target)[0].config.is_encoder_decoder)))
    if around & set(MODES) and not (change or caches) and draw(st.booleans()):
        settings["trust_changes"] = True
    rows = tuple(draw(st.lists(ROW, min_size=1, max_size=draw(st.sampled_from((1, 1, 2, 4))))))
    options = _without_loss(options, len(rows))
    is_fresh = change not in WRAPPED and target not in TRAINED and draw(_one_in(8))
    right, seed = draw(st.sampled_from((0.7, 0.9, 1.0, 0.4))), draw(st.integers(0, 99))
    if draw(st.booleans()) and around:
        options |= {"output_logits": True, "return_dict_in_generate": True}  # bits differ more often than ids
    contexts = tuple(sorted(around))
    extra = tuple(sorted(extras))
    return Case(target, change, is_fresh, source, door, contexts, rows, options, extra, settings, right, seed)
