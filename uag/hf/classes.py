"""Which targets the tests of uag have compared block by block, and what an untested one calls for.

`_NAMES` lists every class that transformers 5.23 registers for generating text and that the architecture tests build.
`python -m tests.support.walk` compares them all; the class of a later release is tried at its first use instead.
"""

import re
from collections.abc import Iterator
from typing import Any

from uag.hf import models, own
from uag.hf.layers import modules, per_call

_ROTARY = frozenset(("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "mrope"))
"""Kinds of rotary factors that `uag.hf.positions` knows."""

_LENGTH = re.compile(r".*(position|length|window|chunk_size|context|seq_len|floor_scale).*")
_NO_LENGTH = re.compile(
    r"(mask_.*|.*_pattern|num|min|max_length|chunk_size_feed|.*token_id|.*_type|.*_offset|.*_layers).*"
)
_MAX_LENGTH = 1 << 24

_NAMES = """
    AXK1ForCausalLM AXK2ForCausalLM AfmoeForCausalLM ApertusForCausalLM ArceeForCausalLM
    AriaForConditionalGeneration AriaTextForCausalLM AudioFlamingo3ForConditionalGeneration
    AyaVisionForConditionalGeneration BailingHybridForCausalLM BambaForCausalLM BartForCausalLM
    BartForConditionalGeneration BeamForCausalLM BertGenerationDecoder BertLMHeadModel BigBirdForCausalLM
    BigBirdPegasusForCausalLM BigBirdPegasusForConditionalGeneration BioGptForCausalLM BitNetForCausalLM
    BlenderbotForCausalLM BlenderbotForConditionalGeneration BlenderbotSmallForCausalLM
    BlenderbotSmallForConditionalGeneration BloomForCausalLM BltForCausalLM CTRLLMHeadModel CamembertForCausalLM
    CanaryForConditionalGeneration CodeGenForCausalLM Cohere2ForCausalLM Cohere2MoeForCausalLM
    Cohere2VisionForConditionalGeneration CohereAsrForConditionalGeneration CohereForCausalLM
    Cosmos3EdgeForConditionalGeneration Cosmos3OmniForConditionalGeneration CpmAntForCausalLM CwmForCausalLM
    Data2VecTextForCausalLM DeepseekV2ForCausalLM DeepseekV32ForCausalLM DeepseekV3ForCausalLM DeepseekV4ForCausalLM
    DeepseekVLForConditionalGeneration DeepseekVLHybridForConditionalGeneration DiffLlamaForCausalLM DogeForCausalLM
    Dots3NoteForCausalLM ElectraForCausalLM Emu3ForCausalLM EncoderDecoderModel Ernie4_5ForCausalLM
    Ernie4_5_MoeForCausalLM ErnieForCausalLM EvollaForProteinText2Text Exaone4ForCausalLM
    Exaone4_5_ForConditionalGeneration ExaoneMoeForCausalLM FSMTForConditionalGeneration FalconForCausalLM
    FalconH1ForCausalLM FalconMambaForCausalLM FlexOlmoForCausalLM FlintForCausalLM
    Florence2ForConditionalGeneration FuyuForCausalLM GPT2LMHeadModel GPTBigCodeForCausalLM GPTJForCausalLM
    GPTNeoForCausalLM GPTNeoXForCausalLM GPTNeoXJapaneseForCausalLM Gemma2ForCausalLM Gemma3ForCausalLM
    Gemma3ForConditionalGeneration Gemma3nForCausalLM Gemma4ForCausalLM Gemma4ForConditionalGeneration
    Gemma4UnifiedForCausalLM Gemma4UnifiedForConditionalGeneration GemmaForCausalLM GitForCausalLM
    Glm46VForConditionalGeneration Glm4ForCausalLM Glm4MoeForCausalLM Glm4MoeLiteForCausalLM
    Glm4vForConditionalGeneration Glm4vMoeForConditionalGeneration GlmAsrForConditionalGeneration GlmForCausalLM
    GlmMoeDsaForCausalLM GlmOcrForConditionalGeneration GotOcr2ForConditionalGeneration GptOssForCausalLM
    GraniteDoclingForConditionalGeneration GraniteForCausalLM GraniteMoeForCausalLM GraniteMoeHybridForCausalLM
    GraniteMoeSWAForCausalLM GraniteMoeSharedForCausalLM GraniteSWAForCausalLM GraniteSpeechForConditionalGeneration
    GraniteSpeechPlusForConditionalGeneration HYV3ForCausalLM HYV4ForCausalLM HeliumForCausalLM HrmTextForCausalLM
    HunYuanDenseV1ForCausalLM HunYuanMoEV1ForCausalLM HyperCLOVAXForCausalLM
    HyperCLOVAXVisionV2ForConditionalGeneration Idefics2ForConditionalGeneration Idefics3ForConditionalGeneration
    IdeficsForVisionText2Text Inkling2ForCausalLM Inkling2ForConditionalGeneration InklingForCausalLM
    InternVLForConditionalGeneration Jais2ForCausalLM JambaForCausalLM JanusForConditionalGeneration
    JetMoeForCausalLM KimiLinearForCausalLM Kimi_K25ForConditionalGeneration Kolibri1ForCausalLM
    Kosmos2_5ForConditionalGeneration LEDForConditionalGeneration LagunaForCausalLM Lfm2ForCausalLM
    Lfm2MoeForCausalLM Lfm2VlForConditionalGeneration Lfm3ForCausalLM Lfm3VlForConditionalGeneration
    LightOnOcrForConditionalGeneration Llama4ForCausalLM Llama4ForConditionalGeneration LlamaForCausalLM
    LlavaForConditionalGeneration LlavaNextForConditionalGeneration LlavaNextVideoForConditionalGeneration
    LlavaOnevisionForConditionalGeneration LongT5ForConditionalGeneration LongcatFlashForCausalLM
    M2M100ForConditionalGeneration MBartForCausalLM MBartForConditionalGeneration MT5ForConditionalGeneration
    Mamba2ForCausalLM MambaForCausalLM MarianForCausalLM MarianMTModel MegatronBertForCausalLM MellumForCausalLM
    MiMoV2FlashForCausalLM MiniCPM3ForCausalLM MiniCPMOcrForConditionalGeneration
    MiniCPMV4_6ForConditionalGeneration MiniCPMV4_7ForConditionalGeneration MiniMaxForCausalLM MiniMaxM2ForCausalLM
    MiniMaxM3SparseForConditionalGeneration MiniMaxM3VLForCausalLM Ministral3ForCausalLM MinistralForCausalLM
    Mistral3ForConditionalGeneration Mistral4ForCausalLM MistralForCausalLM MistralLarge4ForConditionalGeneration
    MixtralForCausalLM MllamaForCausalLM MllamaForConditionalGeneration ModernBertDecoderForCausalLM
    MoonshineForConditionalGeneration MoshiForCausalLM MossTranscribeDiarizeForConditionalGeneration MptForCausalLM
    MuseGlimmerForConditionalGeneration MusicFlamingoForConditionalGeneration MvpForCausalLM
    MvpForConditionalGeneration NanoChatForCausalLM NemotronForCausalLM NemotronHForCausalLM
    NemotronH_Omni_Reasoning_V3 NllbMoeForConditionalGeneration OPTForCausalLM Olmo2ForCausalLM Olmo3ForCausalLM
    OlmoForCausalLM OlmoHybridForCausalLM OlmoeForCausalLM OpenAIGPTLMHeadModel Ovis2ForConditionalGeneration
    PLBartForCausalLM PLBartForConditionalGeneration PaddleOCRVLForConditionalGeneration
    PaliGemmaForConditionalGeneration PegasusForCausalLM PegasusForConditionalGeneration
    PegasusXForConditionalGeneration PersimmonForCausalLM Phi3ForCausalLM Phi4MultimodalForCausalLM PhiForCausalLM
    PhimoeForCausalLM Pix2StructForConditionalGeneration ProphetNetForCausalLM ProphetNetForConditionalGeneration
    QianfanOCRForConditionalGeneration Qwen2AudioForConditionalGeneration Qwen2ForCausalLM Qwen2MoeForCausalLM
    Qwen2VLForConditionalGeneration Qwen2_5_VLForConditionalGeneration Qwen3ASRForConditionalGeneration
    Qwen3ForCausalLM Qwen3MoeForCausalLM Qwen3NextForCausalLM Qwen3OmniMoeThinkerForConditionalGeneration
    Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration Qwen3_5ForCausalLM
    Qwen3_5ForConditionalGeneration Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration
    RecurrentGemmaForCausalLM ReformerModelWithLMHead RemBertForCausalLM RoCBertForCausalLM RoFormerForCausalLM
    RobertaForCausalLM RobertaPreLayerNormForCausalLM RwkvForCausalLM SeamlessM4TForTextToText
    SeamlessM4Tv2ForTextToText SeedOssForCausalLM SmolLM3ForCausalLM SmolVLMForConditionalGeneration
    SolarOpenForCausalLM Speech2TextForConditionalGeneration SpeechEncoderDecoderModel SpeechT5ForSpeechToText
    StableLmForCausalLM Starcoder2ForCausalLM SwitchTransformersForConditionalGeneration T5ForConditionalGeneration
    T5Gemma2ForConditionalGeneration T5GemmaForConditionalGeneration TrOCRForCausalLM UMT5ForConditionalGeneration
    UdopForConditionalGeneration UnlimitedOcrForConditionalGeneration VaultGemmaForCausalLM
    VibeVoiceAsrForConditionalGeneration VideoLlama3ForConditionalGeneration VideoLlavaForConditionalGeneration
    VipLlavaForConditionalGeneration VisionEncoderDecoderModel VoxtralForConditionalGeneration
    VoxtralRealtimeForConditionalGeneration WhisperForCausalLM WhisperForConditionalGeneration XGLMForCausalLM
    XLMRobertaForCausalLM XLMRobertaXLForCausalLM XLMWithLMHeadModel XLNetLMHeadModel XmodForCausalLM
    YoutuForCausalLM Zamba2ForCausalLM ZambaForCausalLM ZayaForCausalLM
"""

CLASSES = frozenset(_NAMES.split())


@per_call
def untested(model: Any) -> str:
    """Describe what in a model the tests of uag do not cover; an empty string where they cover all of it."""
    kind = type(model)
    if not kind.__module__.startswith("transformers.models.") or kind.__name__ not in CLASSES:
        return f"the class {kind.__name__}"
    config = model.config.get_text_config(decoder=True)
    rotary = _rotary_kinds([getattr(config, name, None) for name in ("rope_parameters", "rope_scaling")])
    if not rotary <= _ROTARY:
        return f"rotary factors of the kind {', '.join(sorted(rotary - _ROTARY))}"
    for part in {type(module): module for module in modules(model)}.values():
        # A quantized linear layer computes a product whatever its package.
        if not own.is_of_tested_package(type(part)) and not hasattr(part, "in_features"):
            return f"a layer of the class {type(part).__name__}"
    attention = models.attention_of(model)
    return f"the attention {attention!r}" if own.is_attention_of_others(attention) else ""


def _rotary_kinds(values: Any) -> set[str]:
    """Collect the kinds that rotary parameters name, at any depth."""
    if isinstance(values, list):
        return set().union(*map(_rotary_kinds, values))
    if not isinstance(values, dict):
        return set()
    kinds = {str(values["rope_type"])} if values.get("rope_type") is not None else set()
    return kinds | _rotary_kinds(list(values.values()))


def shortest_length(model: Any) -> int:
    """Return the shortest length that a model's configuration names; up to it, a trial holds."""
    return min(_lengths(model.config.get_text_config(decoder=True).to_dict()), default=_MAX_LENGTH)


def _lengths(values: dict[Any, Any]) -> Iterator[int]:
    for key, value in values.items():
        name = str(key)
        if isinstance(value, dict):
            yield from _lengths(value)
        elif _LENGTH.fullmatch(name) and not _NO_LENGTH.fullmatch(name) and type(value) in (int, float):
            yield from [int(value)] if 1 < value <= _MAX_LENGTH and value == int(value) else []
