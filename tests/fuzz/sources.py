"""The sources of candidates (drafts, drafters, predictions, text), and the entry points that accept them."""

import copy
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from transformers import GenerationMixin

import uag
from tests.fuzz.case import Case
from tests.fuzz.targets import TRAINED, built, vocabulary_size
from tests.support.models import ARCHITECTURES, tiny_draft, twin
from tests.support.trained import PAIRS, trained
from tests.support.walk import SharedDrafter
from uag.drafting import TextDrafter
from uag.kernels import decoder_of

DRAFTS = ("draft", "twin", "same", "copy")
SOURCES = ("drafter", "garbage", "lookup", "memory", "prediction ids", "prediction", "text", *DRAFTS, "none")


def use(model: Any) -> None:
    """Assist a target once, so that uag has cached state about it before it is changed."""
    ids = torch.tensor([[5, 9, 14, 3]])
    drafter = SharedDrafter([[9, 14, 3, 5]], vocabulary_size(model), 1.0)
    assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=3)
    assistant.generate(model, ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, num_beams=1)


@cache
def draft_of(target: str, kind: str) -> tuple[Any, Any]:
    """Return a draft for a target, and its tokenizer: of another family, with shuffled ids, or with the same ids."""
    model, tokenizer = built(target)
    if kind == "copy":
        return kind, None
    if kind == "draft":
        return trained(dict(PAIRS)[target]) if target in TRAINED else tiny_draft(target)
    if kind == "twin":
        return twin(model, tokenizer)
    draft = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter += 0.05 * parameter.std() * torch.randn(parameter.shape, generator=generator)
    return draft, tokenizer


def drafts_of(target: str) -> tuple[str, ...]:
    copies = () if isinstance(decoder_of(built(target)[0], "int4"), str) else ("copy",)
    if target in ("t5", "bart") or target not in (*ARCHITECTURES, *TRAINED):
        return copies
    is_twin = target in ARCHITECTURES and ARCHITECTURES[target][2].startswith(("byte_level", "llama"))
    return ("draft", "same", *(["twin"] if is_twin else []), *copies)


def _spoiled_text(case: Case, tokenizer: Any, ids: Sequence[int]) -> str:
    draws = random.Random(case.seed)
    try:
        words: list[str] = tokenizer.decode(ids).split(" ")
    except ValueError:  # a byte tokenizer has no text for the ids of a larger head
        words = [str(token_id) for token_id in ids]
    return " ".join(word if draws.random() < case.right else f"{word}x" for word in words)


def _predicted(case: Case, tokenizer: Any, outputs: list[list[int]]) -> Any:
    if case.source == "prediction":
        found: list[Any] = [_spoiled_text(case, tokenizer, row) for row in outputs]
    else:
        found = list(SharedDrafter(outputs, 100, case.right, case.seed).outputs)
    return found if len(found) > 1 else (found or [None])[0]


def _assistant(case: Case, model: Any, tokenizer: Any, outputs: list[list[int]]) -> uag.Assistant:
    settings = dict(case.settings)
    if "generator" in case.extras:
        settings["generator"] = torch.Generator()
    if case.source in DRAFTS:
        return uag.Assistant(*draft_of(case.target, case.source), tokenizer, **settings)
    if case.source == "lookup":
        return uag.Assistant.from_prompt_lookup(tokenizer, **settings)
    if case.source in ("drafter", "garbage"):
        share = case.right if case.source == "drafter" else 0.0
        settings["drafter"] = SharedDrafter(outputs, vocabulary_size(model), share, case.seed)
    elif case.source == "memory":
        settings["memory"] = uag.Memory()
        for row in SharedDrafter(outputs, vocabulary_size(model), case.right, case.seed).outputs:
            settings["memory"].add(row)
    elif case.source == "text":
        known = _spoiled_text(case, tokenizer, outputs[0] if outputs else [])
        known = known or "the"
        settings["drafter"] = TextDrafter(lambda text: known.partition(text[-3:] or known)[2] or known)
    return uag.Assistant(None, None, tokenizer, **settings)


Door = tuple[Callable[..., Any], Callable[[Any], uag.Stats], torch.Generator | None]


def door_of(case: Case, model: Any, tokenizer: Any, outputs: list[list[int]]) -> Door:
    """Return how a case calls uag, how to get the statistics, and the generator that it samples from."""
    more = {"prediction": _predicted(case, tokenizer, outputs)} if case.source.startswith("prediction") else {}
    if case.door == "install":
        if case.source in DRAFTS:
            draft, draft_tokenizer = draft_of(case.target, case.source)
            more = {"assistant_model": draft, "assistant_tokenizer": draft_tokenizer}

        def installed(model: Any, **kwargs: Any) -> Any:
            uag.install()
            try:
                return model.generate(**{"tokenizer": tokenizer} | kwargs | more)
            finally:
                uag.uninstall()

        usual = GenerationMixin.generate

        def stats_of(model: Any) -> uag.Stats:
            if getattr(type(model), "generate", usual) is usual:
                return uag.last_stats(model)
            return uag.Stats(fallbacks=["the class overrides generate"])

        return installed, stats_of, None
    assistant = _assistant(case, model, tokenizer, outputs)
    if case.door == "custom_generate":
        assistant.options.prediction = more.get("prediction")

        def custom(model: Any, **kwargs: Any) -> Any:
            return model.generate(custom_generate=assistant, **kwargs)

        return custom, lambda model: assistant.stats, assistant.options.generator

    def direct(model: Any, **kwargs: Any) -> Any:
        return assistant.generate(model, **kwargs, **more)

    return direct, lambda model: assistant.stats, assistant.options.generator
