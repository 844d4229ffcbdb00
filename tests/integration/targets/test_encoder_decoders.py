"""Encoder-decoders with their own `generate`, or several samples per prompt."""

from functools import cache
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import uag
from tests.support.callers import EndsAt
from tests.support.calls import NEW, PROMPTS, SAMPLED, compare, left_padded, seeded
from tests.support.class_inputs import inputs_of
from tests.support.grids import covering, mostly_grid
from tests.support.models import spread, tiny_draft, tiny_of_class, tiny_target
from tests.support.tiny_classes import tiny_config
from tests.support.tokenizers import small_tokenizer
from tests.support.walk import SharedDrafter


@cache
def whisper() -> tuple[Any, Any]:
    tokenizer = small_tokenizer("byte_level")
    torch.manual_seed(0)
    options = {
        "max_source_positions": 20, "max_target_positions": 64, "decoder_start_token_id": 2, "pad_token_id": 0,
        "bos_token_id": 0, "eos_token_id": 1, "begin_suppress_tokens": None, "suppress_tokens": None,
    }  # fmt: skip
    config = tiny_config(WhisperConfig, vocab_size=len(tokenizer) + 5, **options)
    return spread(WhisperForConditionalGeneration(config)), tokenizer


@covering("door, num_rows", ("custom_generate", "generate"), (1, 2), strength=1)
def test_whisper(door: str, num_rows: int) -> None:
    """Whisper has its own `generate`, which forwards a callable."""
    target, tokenizer = whisper()
    draft, draft_tokenizer = tiny_draft("gpt2")
    features = torch.randn(num_rows, 8, 40, generator=torch.Generator().manual_seed(1))
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3)
    stats = compare(target, {"input_features": features, "max_new_tokens": NEW}, assistant, door=door)
    assert stats.num_candidate_tokens > 0


@covering("name, num_return_sequences", ("t5", "bart"), (3, 1), strength=1)
def test_encoder_decoders_with_several_samples_each(name: str, num_return_sequences: int) -> None:
    target, tokenizer = tiny_target(name)
    draft, draft_tokenizer = tiny_draft(name)
    given = {**left_padded(PROMPTS), **SAMPLED, "num_return_sequences": num_return_sequences}
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3)
    compare(target, given, assistant)
    assert assistant.stats.batch_size == 3 * num_return_sequences
    assert assistant.stats.num_candidate_tokens > 0


@pytest.mark.parametrize("draft_name", ["t5", "gpt2"])
def test_encoder_outputs_of_the_callers_own(draft_name: str) -> None:
    target, tokenizer = tiny_target("t5")
    draft, draft_tokenizer = tiny_draft(draft_name)
    ids = torch.tensor([[5, 9, 14, 3, 27, 7], [8, 6, 3, 4, 9, 2]])
    given: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NEW, "do_sample": False}
    with torch.no_grad():
        read = target.get_encoder()(input_ids=ids, return_dict=True)
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3)
    assert compare(target, given | {"encoder_outputs": read}, assistant).num_candidate_tokens > 0


@pytest.mark.parametrize("seed", [5, 6])
def test_nothing_follows_an_id_that_takes_no_position_in_a_block(seed: int) -> None:
    """Padding in the output advances positions as a single token, but not in a block (M2M-100, SpeechT5, Kosmos)."""
    target = tiny_of_class("SpeechT5ForSpeechToText")
    padding = 1
    given: dict[str, Any] = {
        **inputs_of("speecht5", 1), "max_new_tokens": 40, "do_sample": True, "top_k": 0, "temperature": 3.0,
        "suppress_tokens": list(range(6, 300)), "eos_token_id": None,
    }  # fmt: skip
    written = seeded(seed, target.generate, **given)[0, -40:].tolist()
    assert 0 < written.count(padding) < 40
    assert compare(target, given, seed=seed).num_accepted_tokens > 0


@pytest.mark.parametrize("decoder", mostly_grid(["roberta", "xlm-roberta", "camembert", "xmod"], ["roberta", "xmod"]))
def test_a_decoder_whose_positions_begin_after_the_padding_id(decoder: str) -> None:
    """Of 42 positions, 40 are left, all of which plain decoding writes."""
    sizes = {"vocab_size": 400, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
             "intermediate_size": 64}  # fmt: skip
    more: dict[str, Any] = {
        "max_position_embeddings": 42,
        "pad_token_id": 1,
        "is_decoder": True,
        "add_cross_attention": True,
    }
    if decoder == "xmod":
        more |= {"languages": ("en_XX",), "default_language": "en_XX"}
    config = EncoderDecoderConfig.from_encoder_decoder_configs(
        AutoConfig.for_model("bert", **sizes), AutoConfig.for_model(decoder, **sizes, **more)
    )
    torch.manual_seed(0)
    model = spread(EncoderDecoderModel(config))
    model.generation_config.decoder_start_token_id, model.generation_config.pad_token_id = 0, 1
    given = {"input_ids": torch.tensor([[5, 9, 14, 3, 27, 2]]), "max_new_tokens": 39, "do_sample": False}
    output = model.generate(**given)[0, 1:].tolist()
    assert len(output) == 39
    assistant = uag.Assistant(None, drafter=SharedDrafter([output + 8 * [7]], 400, 1.0), num_candidate_tokens=4)
    given |= {"max_new_tokens": 200, "stopping_criteria": [EndsAt(40)]}
    assert compare(model, given, assistant).num_accepted_tokens > 0
