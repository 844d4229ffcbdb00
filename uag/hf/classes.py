"""Which target classes uag's tests cover.

These are almost all text-generation classes that the tested releases of transformers register:
`python -m tests.support.walk_table` compares the output of each with plain decoding. Any other target runs a trial on
first use (`uag.decoding.block_trial`), and so does every target in a later release.
"""

import re
from collections.abc import Iterator
from typing import Any

from uag.hf import foreign_code
from uag.hf.inspection import modules, per_call

_LENGTH = re.compile(r".*(position|length|window|chunk_size|context|seq_len|floor_scale).*")
_NO_LENGTH = re.compile(
    r"(mask_.*|.*_pattern|num|min|max_length|chunk_size_feed|.*token_id|.*_type|.*_offset|.*_layers).*"
)
_MAX_LENGTH = 1 << 24

_TESTED = {
    "ForCausalLM": """
        AXK1 AXK2 Afmoe Apertus Apertus1p5Text Arcee AriaText BailingHybrid Bamba Bart Beam BigBird BigBirdPegasus
        BioGpt BitNet Blenderbot BlenderbotSmall Bloom Blt Camembert CodeGen Cohere Cohere2 Cohere2Moe CohereCompass
        CpmAnt Cwm Data2VecText Dbrx DeepseekV2 DeepseekV3 DeepseekV32 DeepseekV4 DiffLlama Doge Dots1 Dots3Note Electra
        Emu3 Ernie Ernie4_5 Ernie4_5_Moe Exaone4 ExaoneMoe Falcon FalconH1 FalconMamba FlexOlmo Flint Fuyu GPTBigCode
        GPTJ GPTNeo GPTNeoX GPTNeoXJapanese Gemma Gemma2 Gemma3 Gemma3n Gemma4 Gemma4Unified Git Glm Glm4 Glm4Moe
        Glm4MoeLite GlmMoeDsa GptOss Granite GraniteMoe GraniteMoeHybrid GraniteMoeSWA GraniteMoeShared GraniteSWA HYV3
        HYV4 Helium HrmText HunYuanDenseV1 HunYuanMoEV1 HyperCLOVAX Inkling Inkling2 Inkling2Loop Jais2 Jamba JetMoe
        KimiLinear Kolibri1 Kosmos2Text Laguna LaraMini Lfm2 Lfm2Moe Lfm3 Llama Llama4 LongcatFlash MBart Mamba Mamba2
        Marian MegatronBert Mellum MiMoV2Flash MiniCPM3 MiniMax MiniMaxM2 MiniMaxM3VL Ministral Ministral3 Mistral
        Mistral4 Mixtral Mllama ModernBertDecoder Moshi Mpt Mvp NanoChat Nemotron NemotronH OPT Olmo Olmo2 Olmo3
        OlmoHybrid Olmoe PLBart Pegasus Persimmon Phi Phi3 Phi4Multimodal Phimoe ProphetNet Qwen2 Qwen2Moe Qwen3
        Qwen3Moe Qwen3Next Qwen3_5 Qwen3_5Moe Qwen4Exp RecurrentGemma RemBert RoCBert RoFormer Roberta
        RobertaPreLayerNorm Rwkv SeedOss SmolLM3 SolarOpen StableLm Starcoder2 TrOCR VaultGemma Whisper XGLM XLMRoberta
        XLMRobertaXL Xmod Youtu Zamba Zamba2 Zaya
    """,
    "ForConditionalGeneration": """
        Aria AudioFlamingo3 AyaVision Bart BigBirdPegasus Blenderbot BlenderbotSmall Canary Chameleon Cohere2Vision
        CohereAsr CohereCompass Cosmos3Edge Cosmos3Omni DeepseekOcr2 DeepseekVL DeepseekVLHybrid Emu3 Ernie4_5_VLMoe
        Exaone4_5_ FSMT Florence2 Gemma3 Gemma4 Gemma4Unified Glm46V Glm4v Glm4vMoe Glm5Next GlmAsr GlmOcr GotOcr2
        GraniteDocling GraniteSpeech GraniteSpeechPlus HunYuanVL HyperCLOVAXVisionV2 Idefics2 Idefics3 Inkling2
        Inkling2Loop InternVL Janus Kimi_K25 Kosmos2 Kosmos2_5 LED Lfm2Vl Lfm3Vl LightOnOcr Llama4 Llava LlavaNext
        LlavaNextVideo LlavaOnevision LongT5 M2M100 MBart MT5 MiniCPMOcr MiniCPMV4_6 MiniCPMV4_7 MiniMaxM3Sparse
        Mistral3 MistralLarge4 Mllama Molmo2 Moonshine MossTranscribeDiarize MuseGlimmer MuseSpark MusicFlamingo Mvp
        NllbMoe OmniASR Ovis2 PLBart PaddleOCRVL PaliGemma Pegasus PegasusX Pix2Struct ProphetNet QianfanOCR Qwen2Audio
        Qwen2VL Qwen2_5OmniThinker Qwen2_5_VL Qwen3ASR Qwen3OmniMoeThinker Qwen3VL Qwen3VLMoe Qwen3_5 Qwen3_5Moe
        Qwen4Exp SmolVLM Speech2Text Step3p7 SwitchTransformers T5 T5Gemma T5Gemma2 UMT5 Udop UnlimitedOcr VibeVoiceAsr
        VideoLlama3 VideoLlava VipLlava Voxtral VoxtralRealtime Whisper
    """,
    "": """
        BertGenerationDecoder BertLMHeadModel CTRLLMHeadModel EncoderDecoderModel EvollaForProteinText2Text
        GPT2LMHeadModel IdeficsForVisionText2Text MarianMTModel NemotronH_Omni_Reasoning_V3 OpenAIGPTLMHeadModel
        ReformerModelWithLMHead SeamlessM4TForTextToText SeamlessM4Tv2ForTextToText SpeechEncoderDecoderModel
        SpeechT5ForSpeechToText VisionEncoderDecoderModel XLMWithLMHeadModel XLNetLMHeadModel
    """,
}
"""The names of tested classes, without their ends."""

CLASSES = frozenset(stem + end for end, stems in _TESTED.items() for stem in stems.split())
"""Classes whose assisted output the tests compare with plain decoding."""


@per_call
def untested(model: Any) -> str:
    """Return a description of a part of a model that uag's tests do not cover, or an empty string."""
    kind = type(model)
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
