"""What plain `generate` gives besides ids, calls and takes: streams, criteria, caches, other kinds of targets."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CLIPVisionConfig,
    DynamicCache,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LogitsProcessor,
    LogitsProcessorList,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    StaticCache,
    StoppingCriteria,
    StoppingCriteriaList,
    TextIteratorStreamer,
    TextStreamer,
    WhisperConfig,
    WhisperForConditionalGeneration,
    pipeline,
)
from transformers.cache_utils import DynamicLayer
from transformers.generation import stopping_criteria as criteria_module
from transformers.generation.streamers import BaseStreamer

import uag
from tests.support.calls import OracleDrafter, left_padded
from tests.support.models import tiny_draft, tiny_model, tiny_target, twin
from tests.support.tokenizers import small_tokenizer
from uag.decoding import stopping
from uag.errors import UnsupportedError

NEW = 20
GREEDY: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
SAMPLED: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": True, "top_k": 0, "pad_token_id": 0}
PROMPTS = [[5, 9, 14, 3, 27], [8, 6], [12, 40, 33, 18, 21, 9, 4]]
EOS_IDS = list(range(7, 649, 19))


@cache
def pair(name: str = "llama", eos: bool = False) -> tuple[Any, Any, Any, Any]:
    """A target, its tokenizer, and a draft with other ids that writes much the same."""
    target, tokenizer = tiny_target(name, eos_id=EOS_IDS if eos else None)
    return target, tokenizer, *twin(target, tokenizer)


def assistant_of(name: str = "llama", eos: bool = False, length: int | None = 4) -> uag.Assistant:
    _, tokenizer, draft, draft_tokenizer = pair(name, eos)
    return uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=length)


def seeded(seed: int, generate: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    torch.manual_seed(seed)
    return generate(*arguments, **options)


# ---------------------------------------------------------------------- streams


class Puts(BaseStreamer):
    """Records every call, raises at the `fail_at`-th put."""

    def __init__(self, fail_at: int = -1) -> None:
        self.puts: list[tuple[list[Any], torch.dtype, str]] = []
        self.num_ends = 0
        self.fail_at = fail_at

    def put(self, value: torch.Tensor) -> None:
        if len(self.puts) == self.fail_at:
            raise ConnectionError("the reader has gone")
        self.puts.append((value.tolist(), value.dtype, value.device.type))

    def end(self) -> None:
        self.num_ends += 1


class Watches(StoppingCriteria):
    """A criterion of the user that ends nothing: it makes rows go in step."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


@pytest.mark.parametrize("in_step", [False, True])
@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("eos", [False, True])
def test_the_same_puts_in_the_same_order(eos: bool, num_rows: int, options: dict[str, Any], in_step: bool) -> None:
    target = pair(eos=eos)[0]
    given = {**left_padded(PROMPTS[:num_rows]), **options}
    if in_step:
        given["stopping_criteria"] = StoppingCriteriaList([Watches()])
    expected, found = Puts(), Puts()
    ids = seeded(3, target.generate, **given, streamer=expected)
    output = seeded(3, assistant_of(eos=eos).generate, target, **given, streamer=found)
    assert output.tolist() == ids.tolist()
    assert found.puts == expected.puts
    assert len(found.puts) == ids.shape[1] - given["input_ids"].shape[1] + 1
    assert found.num_ends == expected.num_ends == 1


class ProcessorFails(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] >= 12:
            raise ValueError("the user's own error")
        return scores


class CriterionFails(StoppingCriteria):
    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        if input_ids.shape[1] >= 12:
            raise ValueError("the user's own error")
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("place", ["logits_processor", "stopping_criteria", "streamer"])
def test_a_stream_ends_once_whoever_fails(place: str, num_rows: int) -> None:
    target = pair()[0]
    inputs = left_padded(PROMPTS[:num_rows])
    assistant = assistant_of()
    expected, found = Puts(6 if place == "streamer" else -1), Puts(6 if place == "streamer" else -1)
    for generate, streamer in ((target.generate, expected), (assistant.generate, found)):
        given: dict[str, Any] = {**inputs, **GREEDY, "streamer": streamer}
        if place == "logits_processor":
            given[place] = LogitsProcessorList([ProcessorFails()])
        elif place == "stopping_criteria":
            given[place] = StoppingCriteriaList([CriterionFails()])
        arguments = () if streamer is expected else (target,)
        with pytest.raises((ValueError, ConnectionError), match=r"the user's own error|the reader has gone"):
            generate(*arguments, **given)
    assert found.puts == expected.puts
    assert found.num_ends == 1
    assert_next_call_is_right(assistant)


def assert_next_call_is_right(assistant: uag.Assistant) -> None:
    target = pair()[0]
    inputs = left_padded(PROMPTS)
    assert assistant.generate(target, **inputs, **GREEDY).tolist() == target.generate(**inputs, **GREEDY).tolist()


def test_text_streamers(capsys: pytest.CaptureFixture[str]) -> None:
    target, tokenizer, _, _ = pair()
    inputs = left_padded(PROMPTS[:1])
    target.generate(**inputs, **GREEDY, streamer=TextStreamer(tokenizer))
    expected = capsys.readouterr().out
    assistant_of().generate(target, **inputs, **GREEDY, streamer=TextStreamer(tokenizer))
    assert capsys.readouterr().out == expected
    streamer = TextIteratorStreamer(tokenizer, timeout=60)
    arguments = {**inputs, **GREEDY, "streamer": streamer}
    thread = threading.Thread(target=assistant_of().generate, args=(target,), kwargs=arguments)
    thread.start()
    pieces = list(streamer)
    thread.join(60)
    assert "".join(pieces) + "\n" == expected
    assert len(pieces) > 2


def test_a_text_iterator_ends_after_an_error() -> None:
    target, tokenizer, _, _ = pair()
    streamer = TextIteratorStreamer(tokenizer, timeout=60)
    seen: list[BaseException] = []

    def work() -> None:
        try:
            processors = LogitsProcessorList([ProcessorFails()])
            assistant_of().generate(
                target, **left_padded(PROMPTS[:1]), **GREEDY, streamer=streamer, logits_processor=processors
            )
        except ValueError as error:
            seen.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert "".join(streamer)
    thread.join(60)
    assert len(seen) == 1


# ---------------------------------------------------------------------- stopping criteria


class Remembers(StoppingCriteria):
    """Keeps what it was called with; ends a row at its second multiple of three."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[list[int]], Any, list[str]]] = []
        self.count: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: Any, **given: Any) -> torch.Tensor:
        shapes = None if scores is None else [tuple(part.shape) for part in scores]
        self.calls.append((input_ids.tolist(), shapes, sorted(given)))
        now = (input_ids[:, -1] % 3 == 0).long()
        self.count = now if self.count is None else self.count + now
        return self.count >= 4


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("outputs", [{}, {"return_dict_in_generate": True, "output_scores": True}], ids=["", "scores"])
@pytest.mark.parametrize("eos", [False, True])
def test_criteria_are_called_once_per_step(
    eos: bool, outputs: dict[str, Any], num_rows: int, options: dict[str, Any]
) -> None:
    target = pair(eos=eos)[0]
    given = {**left_padded(PROMPTS[:num_rows]), **options, **outputs}
    expected, found = Remembers(), Remembers()
    seeded(5, target.generate, **given, stopping_criteria=StoppingCriteriaList([expected]))
    assistant = assistant_of(eos=eos)
    seeded(5, assistant.generate, target, **given, stopping_criteria=StoppingCriteriaList([found]))
    assert found.calls == expected.calls
    assert assistant.stats.num_candidate_tokens > 0


class Clock:
    """Time that stands still until the target has run `passes` times."""

    def __init__(self, target: Any, passes: int) -> None:
        self.num = 0
        self.passes = passes
        self.handle = target.register_forward_pre_hook(self.count)

    def count(self, *_: Any) -> None:
        self.num += 1

    def time(self) -> float:
        return 0.0 if self.num < self.passes else 1e6


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("passes", [1, 3])
def test_max_time(num_rows: int, passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = pair()[0]
    inputs = left_padded(PROMPTS[:num_rows])
    width = inputs["input_ids"].shape[1]
    whole = target.generate(**inputs, **GREEDY)
    for streamer in (None, Puts()):
        clock = Clock(target, passes)
        monkeypatch.setattr(criteria_module, "time", clock)
        monkeypatch.setattr(stopping, "time", clock)
        try:
            output = assistant_of().generate(target, **inputs, **GREEDY, max_time=10.0, streamer=streamer)
        finally:
            clock.handle.remove()
            monkeypatch.undo()
        num = output.shape[1] - width
        assert output.tolist() == whole[:, : width + num].tolist()
        assert 0 < num < NEW
        assert clock.num == passes, "another pass after the time was over"
        assert streamer is None or len(streamer.puts) == num + 1


def test_max_time_is_over_at_once() -> None:
    target = pair()[0]
    for num_rows in (1, 3):
        given = {**left_padded(PROMPTS[:num_rows]), **GREEDY, "max_time": 1e-9}
        assert assistant_of().generate(target, **given).tolist() == target.generate(**given).tolist()


# ---------------------------------------------------------------------- returned caches


def layers_of(found: Any) -> list[torch.Tensor]:
    kinds = [found]
    if hasattr(found, "cross_attention_cache"):
        kinds = [found.self_attention_cache, found.cross_attention_cache]
    return [part for kind in kinds for layer in kind.layers for part in (layer.keys, layer.values)]


@pytest.mark.parametrize("mode", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt2", "t5", "bart"])
def test_a_returned_cache_has_plain_decodings_layout(name: str, num_rows: int, mode: dict[str, Any]) -> None:
    target, tokenizer = tiny_target(name)
    inputs = left_padded(PROMPTS[:num_rows])
    given = {**inputs, **mode, "return_dict_in_generate": True}
    expected = seeded(1, target.generate, **given)
    start = 1 if target.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    drafter = OracleDrafter(expected.sequences[:, start:].tolist(), target.get_output_embeddings().weight.shape[0])
    assistant = uag.Assistant(None, None, tokenizer, drafter=drafter, num_candidate_tokens=4)
    found = seeded(1, assistant.generate, target, **given)
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert assistant.stats.num_accepted_tokens > 0
    mine, plain = found.past_key_values, expected.past_key_values
    assert type(mine) is type(plain)
    assert mine.get_seq_length() == plain.get_seq_length()
    keep = torch.ones_like(expected.sequences[:, :-1])
    if not target.config.is_encoder_decoder:
        keep[:, : inputs["attention_mask"].shape[1]] = inputs["attention_mask"]
    for left, right in zip(layers_of(mine), layers_of(plain), strict=True):
        assert left.shape == right.shape
        if left.shape[2] <= keep.shape[1]:  # what lies behind padding means nothing
            seen = keep[:, keep.shape[1] - left.shape[2] :, None].transpose(1, 2)[..., None]
            left, right = left * seen, right * seen
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_a_conversation_of_several_turns(name: str, num_rows: int) -> None:
    """Each turn continues the cache that the one before returned; plain decoding may take over, and back."""
    target = pair(name)[0]
    turns = [[[3, 8, 11], [4, 4, 19], [7, 30, 2]], [[9], [6], [41]], [[5, 5], [1, 2], [60, 8]]]

    def converse(doors: list[Callable[..., Any]]) -> list[list[list[int]]]:
        inputs = left_padded(PROMPTS[:num_rows])
        past: Any = DynamicCache(config=target.config)
        written = []
        for turn, generate in zip(turns, doors, strict=True):
            output = generate(**inputs, **GREEDY, past_key_values=past, return_dict_in_generate=True)
            past = output.past_key_values
            written.append(output.sequences.tolist())
            ids = torch.cat([output.sequences, torch.tensor(turn[:num_rows])], 1)
            mask = torch.ones_like(ids)
            mask[:, : inputs["attention_mask"].shape[1]] = inputs["attention_mask"]
            inputs = {"input_ids": ids, "attention_mask": mask}
        return written

    assistant = assistant_of(name)

    def ours(**options: Any) -> Any:
        return assistant.generate(target, **options)

    expected = converse([target.generate] * 3)
    assert converse([ours] * 3) == expected
    assert converse([target.generate, ours, target.generate]) == expected
    assert converse([ours, target.generate, ours]) == expected


@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_cache_handed_in_is_filled_as_plain_decoding_fills_it(num_rows: int) -> None:
    target = pair()[0]
    inputs = left_padded(PROMPTS[:num_rows])
    plain, mine = DynamicCache(config=target.config), DynamicCache(config=target.config)
    expected = target.generate(**inputs, **GREEDY, past_key_values=plain)
    output = assistant_of().generate(target, **inputs, **GREEDY, past_key_values=mine)
    assert output.tolist() == expected.tolist()
    for left, right in zip(layers_of(mine), layers_of(plain), strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)


class Closed(BaseStreamer):
    """Writes to a connection that is gone."""

    def put(self, _value: Any) -> None: ...

    def end(self) -> None:
        raise OSError("closed")


class Keeps(StoppingCriteria):
    """Keeps the cache's tensors, and a copy of the cache, at every step."""

    def __init__(self, cache: DynamicCache) -> None:
        self.cache = cache
        self.copies: list[tuple[torch.Tensor, DynamicCache]] = []
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, input_ids: torch.Tensor, _scores: Any, **_: Any) -> torch.Tensor:
        self.copies.append((input_ids.clone(), copy.deepcopy(self.cache)))
        self.kept += [(layer.keys, layer.keys.clone()) for layer in self.cache.layers]
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def test_the_callers_cache_is_whole_after_an_error() -> None:
    target, tokenizer = pair()[:2]
    cache = DynamicCache(config=target.config)
    inputs = left_padded(PROMPTS[:1])
    with pytest.raises(OSError, match="closed"):
        uag.Assistant(None, None, tokenizer).generate(
            target, **inputs, **GREEDY, past_key_values=cache, streamer=Closed()
        )
    assert {type(layer) for layer in cache.layers} == {DynamicLayer}
    assert all(layer.keys.untyped_storage().nbytes() == layer.keys.nbytes for layer in cache.layers)


@pytest.mark.parametrize("is_drafted", [False, True])
def test_what_others_keep_of_a_cache_stays_as_it_was(is_drafted: bool) -> None:
    target, tokenizer = pair()[:2]
    cache = DynamicCache(config=target.config)
    keeps = Keeps(cache)
    inputs = left_padded(PROMPTS[:1])
    given = {**inputs, **GREEDY, "past_key_values": cache, "stopping_criteria": StoppingCriteriaList([keeps])}
    expected = target.generate(**inputs, **GREEDY)
    assistant = assistant_of() if is_drafted else uag.Assistant(None, None, tokenizer)
    assert assistant.generate(target, **given).tolist() == expected.tolist()
    assert all(torch.equal(kept, before) for kept, before in keeps.kept)
    if not is_drafted:  # else candidates lie in the copies, too
        ids, snapshot = keeps.copies[2]
        again = assistant_of().generate(
            target, input_ids=ids, attention_mask=torch.ones_like(ids), past_key_values=snapshot, do_sample=False,
            max_length=expected.shape[1], pad_token_id=0,
        )  # fmt: skip
        assert again.tolist() == expected.tolist()


# ---------------------------------------------------------------------- caches that cannot be rewound


@pytest.mark.parametrize("options", [{"cache_implementation": "static"}, {"use_cache": False}], ids=["static", "none"])
def test_caches_that_cannot_be_rewound_are_refused(options: dict[str, Any]) -> None:
    target = pair()[0]
    with pytest.raises(UnsupportedError, match="rewound"):
        assistant_of().generate(target, **left_padded(PROMPTS), **GREEDY, **options)
    past = StaticCache(config=target.config, max_cache_len=64)
    with pytest.raises(UnsupportedError, match="StaticCache"):
        assistant_of().generate(target, **left_padded(PROMPTS), **GREEDY, past_key_values=past)


@pytest.mark.parametrize("mode", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("name", ["llama", "mistral"])
@pytest.mark.parametrize(
    "options", [{}, {"cache_implementation": "static"}, {"use_cache": False}], ids=["dynamic", "static", "none"]
)
def test_without_a_draft_any_cache_will_do(
    name: str, options: dict[str, Any], num_rows: int, mode: dict[str, Any]
) -> None:
    target, tokenizer, _, _ = pair(name)
    given = {**left_padded(PROMPTS[:num_rows]), **mode, **options}
    expected = seeded(2, target.generate, **given)
    output = seeded(2, uag.Assistant(None, None, tokenizer).generate, target, **given)
    assert output.tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["mamba", "lfm2"])
@pytest.mark.parametrize("num_rows", [1, 2])
def test_without_a_draft_a_recurrent_target_will_do(name: str, num_rows: int) -> None:
    from tests.support.models import STATEFUL

    model_type, options = STATEFUL[name]
    target = tiny_model(model_type, 300, **options)
    inputs = left_padded(PROMPTS[:num_rows])
    expected = target.generate(**inputs, **GREEDY)
    assert uag.Assistant(None).generate(target, **inputs, **GREEDY).tolist() == expected.tolist()


# ---------------------------------------------------------------------- other kinds of targets


_TEXT: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
_VISION: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 8,
    "patch_size": 4,
}  # fmt: skip


def spread(model: Any) -> Any:
    """Give a model weights so large that its output varies."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 1.0 if "embed" in name else 2.0 / parameter.shape[-1] ** 0.5)
    return model.eval()


def llava(size: int) -> tuple[Any, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**_VISION, projection_dim=8),
        text_config=LlamaConfig(vocab_size=size + 6, **_TEXT),
        image_token_index=size + 1,
        vision_feature_layer=-1,
    )
    ids = torch.tensor([[5, 9] + [size + 1] * 4 + [12, 13, 14]] * 2)
    return spread(LlavaForConditionalGeneration(config)), {"input_ids": ids, "pixel_values": torch.randn(2, 3, 8, 8)}


def qwen2_vl(size: int) -> tuple[Any, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    vision = {
        "depth": 2, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2,
        "temporal_patch_size": 1, "in_channels": 3, "mlp_ratio": 2,
    }  # fmt: skip
    config = Qwen2VLConfig(
        text_config={"vocab_size": size + 6, "rope_parameters": rope, "bos_token_id": 1, "eos_token_id": None, **_TEXT},
        vision_config=vision,
        image_token_id=size + 1,
        vision_start_token_id=size + 2,
        vision_end_token_id=size + 3,
        video_token_id=size + 4,
    )
    ids = torch.tensor([[5, 9, size + 2] + [size + 1] * 4 + [size + 3, 12, 13, 14]] * 2)
    return spread(Qwen2VLForConditionalGeneration(config)), {
        "input_ids": ids,
        "pixel_values": torch.randn(2, 16, 48),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * 2),
        "mm_token_type_ids": (ids == size + 1).int(),
    }


def gemma3(size: int) -> tuple[Any, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    text = {"vocab_size": size + 6, "head_dim": 8, "sliding_window": 8, "tie_word_embeddings": False, **_TEXT}
    config = Gemma3Config(
        text_config={**text, "layer_types": ["sliding_attention", "full_attention"]},
        vision_config=_VISION,
        mm_tokens_per_image=4,
        image_token_index=size + 1,
        boi_token_index=size + 2,
        eoi_token_index=size + 3,
        tie_word_embeddings=False,
    )
    ids = torch.tensor([[5, 9, size + 2] + [size + 1] * 4 + [size + 3, 12, 13, 14]] * 2)
    return spread(Gemma3ForConditionalGeneration(config)), {
        "input_ids": ids,
        "token_type_ids": (ids == size + 1).long(),
        "pixel_values": torch.randn(2, 3, 8, 8),
    }


@pytest.mark.parametrize("num_rows", [1, 2])
@pytest.mark.parametrize("build", [llava, qwen2_vl, gemma3], ids=lambda build: build.__name__)
def test_vision_language_targets(build: Callable[[int], Any], num_rows: int) -> None:
    """The draft reads the text alone."""
    tokenizer = small_tokenizer("byte_level")
    target, inputs = build(len(tokenizer))
    inputs = {name: value[:num_rows] for name, value in inputs.items()}
    if num_rows == 2:
        inputs["input_ids"][1, 0] = 0
    inputs["attention_mask"] = (inputs["input_ids"] != 0).long()
    if "image_grid_thw" in inputs:
        inputs["pixel_values"] = inputs["pixel_values"].reshape(-1, 48)
    draft, draft_tokenizer = tiny_draft("gpt2")
    size = target.get_output_embeddings().weight.shape[0]
    for mode in (GREEDY, SAMPLED):
        expected = seeded(1, target.generate, **inputs, **mode)
        written = expected[:, inputs["input_ids"].shape[1] :].tolist()
        assert len(set(written[0])) > 5
        assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=2)
        assert seeded(1, assistant.generate, target, **inputs, **mode).tolist() == expected.tolist()
        assert assistant.stats.num_candidate_tokens > 0
        oracle = OracleDrafter(written, size)
        assistant = uag.Assistant(None, None, tokenizer, drafter=oracle, num_candidate_tokens=4)
        assert seeded(1, assistant.generate, target, **inputs, **mode).tolist() == expected.tolist()
        assert 0 < assistant.stats.num_accepted_tokens < assistant.stats.num_candidate_tokens


@cache
def whisper() -> tuple[Any, Any]:
    tokenizer = small_tokenizer("byte_level")
    torch.manual_seed(0)
    options = {
        "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_mel_bins": 8,
        "max_source_positions": 20, "max_target_positions": 64, "decoder_start_token_id": 2, "pad_token_id": 0,
        "bos_token_id": 0, "eos_token_id": 1, "begin_suppress_tokens": None, "suppress_tokens": None,
    }  # fmt: skip
    return spread(WhisperForConditionalGeneration(WhisperConfig(vocab_size=len(tokenizer) + 5, **options))), tokenizer


@pytest.mark.parametrize("num_rows", [1, 2])
@pytest.mark.parametrize("door", ["custom_generate", "generate"])
def test_whisper(door: str, num_rows: int) -> None:
    """Whisper has a `generate` of its own, which hands a callable on."""
    target, tokenizer = whisper()
    draft, draft_tokenizer = tiny_draft("gpt2")
    features = torch.randn(num_rows, 8, 40, generator=torch.Generator().manual_seed(1))
    expected = target.generate(input_features=features, max_new_tokens=NEW)
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3)
    if door == "generate":
        output = assistant.generate(target, input_features=features, max_new_tokens=NEW)
    else:
        output = target.generate(input_features=features, max_new_tokens=NEW, custom_generate=assistant)
    assert output.tolist() == expected.tolist()
    assert assistant.stats.num_candidate_tokens > 0


@pytest.mark.parametrize("num_return_sequences", [1, 3])
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_encoder_decoders_with_several_samples_each(name: str, num_return_sequences: int) -> None:
    target, tokenizer = tiny_target(name)
    draft, draft_tokenizer = tiny_draft(name)
    given = {**left_padded(PROMPTS), **SAMPLED, "num_return_sequences": num_return_sequences}
    expected = seeded(4, target.generate, **given)
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3)
    assert seeded(4, assistant.generate, target, **given).tolist() == expected.tolist()
    assert assistant.stats.batch_size == 3 * num_return_sequences
    assert assistant.stats.num_candidate_tokens > 0


def test_a_pipeline_of_batches() -> None:
    target, tokenizer, _, _ = pair()
    draft, draft_tokenizer = tiny_draft("llama")
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.eos_token, "left"
    texts = ["The quick brown fox", "Once", "def add(first, second):\n    return", "She said"]
    plain = pipeline("text-generation", model=target, tokenizer=tokenizer, batch_size=3)
    expected = plain(texts, **GREEDY)
    uag.install()
    try:
        assisted = pipeline(
            "text-generation", model=target, tokenizer=tokenizer, batch_size=3,
            assistant_model=draft, assistant_tokenizer=draft_tokenizer,
        )  # fmt: skip
        assert assisted(texts, **GREEDY) == expected
        assert uag.last_stats(target).strategy == "cross-tokenizer"
        assert uag.last_stats(target).batch_size == 1  # the last batch: one text was left
    finally:
        uag.uninstall()


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_target(backend: str) -> None:
    target = pair()[0]
    compiled = copy.deepcopy(target)
    compiled.forward = torch.compile(compiled.forward, dynamic=True, backend=backend)
    for num_rows in (1,) if backend == "eager" else (1, 3):
        inputs = left_padded(PROMPTS[:num_rows])
        assistant = assistant_of()
        output = assistant.generate(compiled, **inputs, **GREEDY)
        assert output.tolist() == target.generate(**inputs, **GREEDY).tolist()
        assert assistant.stats.num_accepted_tokens > 0
    torch.compiler.reset()


def test_graphs_of_plain_decoding_serve_assisted_calls() -> None:
    """The compiler gives up after eight graphs of one function."""
    target = copy.deepcopy(pair()[0])
    target.forward = torch.compile(target.forward, dynamic=True, backend="eager", fullgraph=True)
    inputs = left_padded(PROMPTS[:3])
    expected = target.generate(**inputs, **GREEDY)
    num_graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert uag.Assistant(None).generate(target, **inputs, **GREEDY).tolist() == expected.tolist()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == num_graphs
    assert assistant_of().generate(target, **inputs, **GREEDY).tolist() == expected.tolist()
    torch.compiler.reset()


@pytest.mark.parametrize("mode", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_quantized_target(mode: dict[str, Any]) -> None:
    quantization = pytest.importorskip("torchao.quantization", reason="pip install torchao")
    target = copy.deepcopy(pair()[0])
    quantization.quantize_(target, quantization.Int8WeightOnlyConfig())
    for num_rows in (1, 3):
        inputs = left_padded(PROMPTS[:num_rows])
        expected = seeded(1, target.generate, **inputs, **mode)
        assistant = assistant_of()
        assert seeded(1, assistant.generate, target, **inputs, **mode).tolist() == expected.tolist()
        assert assistant.stats.num_accepted_tokens > 0


def test_a_target_and_a_draft_partly_on_disk(tmp_path: Any) -> None:
    pytest.importorskip("accelerate", reason="pip install accelerate")
    target, tokenizer, draft, draft_tokenizer = pair()
    places = {
        "model.embed_tokens": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu", "model.norm": "cpu",
        "model.rotary_emb": "cpu", "lm_head": "disk",
    }  # fmt: skip
    loaded = []
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(tmp_path / name)
        loaded.append(
            AutoModelForCausalLM.from_pretrained(
                tmp_path / name, dtype=torch.float32, device_map=places, offload_folder=tmp_path / f"{name}-disk"
            )
        )
    assert loaded[0].lm_head.weight.device.type == "meta"
    for num_rows in (1, 3):
        inputs = left_padded(PROMPTS[:num_rows])
        expected = target.generate(**inputs, **GREEDY)
        assistant = uag.Assistant(loaded[1], draft_tokenizer, tokenizer, num_candidate_tokens=4)
        assert assistant.generate(loaded[0], **inputs, **GREEDY).tolist() == expected.tolist()
        assert assistant.stats.num_accepted_tokens > 0


# ---------------------------------------------------------------------- where nothing is assisted


@pytest.fixture
def one_rank(tmp_path: Any) -> Iterator[None]:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("torch without gloo")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("mode", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_synced_gpus_decode_plainly(one_rank: None, num_rows: int, mode: dict[str, Any]) -> None:
    target, tokenizer, draft, draft_tokenizer = pair(eos=True)
    given = {**left_padded(PROMPTS[:num_rows]), **mode}
    puts, found = Puts(), Puts()
    expected = seeded(6, target.generate, **given, streamer=puts)
    assistant = assistant_of(eos=True)
    with pytest.warns(UserWarning, match="synced_gpus"):
        output = seeded(6, assistant.generate, target, **given, streamer=found, synced_gpus=True)
    assert output.tolist() == expected.tolist()
    assert found.puts == puts.puts
    assert found.num_ends == 1
    stats = assistant.stats
    assert (stats.strategy, stats.num_draft_forwards) == ("plain", 0)
    assert "synced_gpus" in stats.fallbacks[0]
    uag.install()
    try:
        options = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
        output = seeded(6, target.generate, **given, **options, synced_gpus=True)
    finally:
        uag.uninstall()
    assert output.tolist() == expected.tolist()
    assert "synced_gpus" in uag.last_stats(target).fallbacks[0]


@pytest.fixture(autouse=True)
def _fresh_warnings() -> None:
    from uag import stats

    stats._warned.clear()


def test_two_assistants_share_a_draft_in_two_threads() -> None:
    """Each has a cache of its own; the draft model has none."""
    target = pair()[0]
    cases = []
    for number in range(4):
        inputs = left_padded([[7 + number, 3, 9], PROMPTS[number % 3]][: 1 + number % 2])
        cases.append((inputs, target.generate(**inputs, **GREEDY).tolist()))
    wrong: list[str] = []

    def work(first: int) -> None:
        assistant = assistant_of()
        for turn in range(6):
            inputs, expected = cases[(first + turn) % 4]
            try:
                if assistant.generate(target, **inputs, **GREEDY).tolist() != expected:
                    wrong.append(f"thread {first}, turn {turn}")
            except Exception as error:  # noqa: BLE001 - a thread's errors would be lost
                wrong.append(repr(error))
            time.sleep(0)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong
