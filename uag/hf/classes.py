"""Which target classes uag's tests cover.

These are almost all text-generation classes that the tested releases of transformers register:
`python -m tests.support.walk_table` compares the output of each with plain decoding. Any other target, and every target
in a later release, runs a trial on first use (`uag.decoding.block_trial`).
"""

import re
from collections.abc import Iterator
from typing import Any

from transformers.models.auto import modeling_auto

from uag.hf import foreign_code, names
from uag.hf.inspection import modules, per_call

_LENGTH = re.compile(r".*(position|length|window|chunk_size|context|seq_len|floor_scale).*")
_NO_LENGTH = re.compile(
    r"(mask_.*|.*_pattern|num|min|max_length|chunk_size_feed|.*token_id|.*_type|.*_offset|.*_layers).*"
)
_MAX_LENGTH = 1 << 24

_MAPPINGS = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
)  # fmt: skip

_NOT_TESTED = """
    Blip2ForConditionalGeneration BlipForConditionalGeneration DiaForConditionalGeneration
    DiffusionGemmaForBlockDiffusion Dots3NoteForConditionalGeneration FastVlmForConditionalGeneration
    FunAsrNanoForConditionalGeneration Gemma3nForConditionalGeneration Gemma4AssistantForCausalLM
    Gemma4UnifiedAssistantForCausalLM Granite4VisionForConditionalGeneration InklingForConditionalGeneration
    InstructBlipForConditionalGeneration InstructBlipVideoForConditionalGeneration Kosmos2ForConditionalGeneration
    KyutaiSpeechToTextForConditionalGeneration MoonshineStreamingForConditionalGeneration MusicgenForCausalLM
    MusicgenMelodyForCausalLM Nemotron3_5TranscribeForConditionalGeneration PI0ForConditionalGeneration
    PPFormulaNetForConditionalGeneration PerceptionLMForConditionalGeneration Pop2PianoForConditionalGeneration
    Qwen2_5OmniForConditionalGeneration Qwen3OmniMoeForConditionalGeneration SeamlessM4TForSpeechToText
    SeamlessM4Tv2ForSpeechToText VibeVoiceForConditionalGeneration xLSTMForCausalLM
"""
"""Classes that transformers registers for generating text and that the tests do not run."""


def _registered() -> Iterator[str]:
    for mapping in _MAPPINGS:
        for registered in getattr(modeling_auto, mapping, {}).values():
            yield from (registered,) if isinstance(registered, str) else registered


CLASSES = frozenset(_registered()).difference(_NOT_TESTED.split())
"""Classes whose assisted output the tests compare with plain decoding."""


@per_call
def untested(model: Any) -> str:
    """Return a description of a part of a model that uag's tests do not cover, or an empty string."""
    kind = type(model)
    if names.is_newer_release():
        return f"the class {kind.__name__} of transformers {names.VERSION}"
    if not kind.__module__.startswith("transformers.models.") or kind.__name__ not in CLASSES:
        return f"the class {kind.__name__}"
    for part in {type(module): module for module in modules(model)}.values():
        # A quantized linear layer is a matrix product, regardless of its package.
        if not foreign_code.is_of_tested_package(type(part)) and not hasattr(part, "in_features"):
            return f"a layer of the class {type(part).__name__}"
    return next((name for name, _ in foreign_code.layers_of_others(model)), "")


def shortest_length(model: Any) -> int:
    """Return the smallest length in a model's configuration; a trial is valid only up to it."""
    return min(_lengths(model.config.get_text_config(decoder=True).to_dict()), default=_MAX_LENGTH)


def _lengths(values: dict[Any, Any]) -> Iterator[int]:
    for key, value in values.items():
        name = str(key)
        if isinstance(value, dict):
            yield from _lengths(value)
        elif _LENGTH.fullmatch(name) and not _NO_LENGTH.fullmatch(name) and type(value) in (int, float):
            yield from [int(value)] if 1 < value <= _MAX_LENGTH and value == int(value) else []
