"""Calls that cannot work raise one clear error, before any work."""

import re
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BatchEncoding, DynamicCache, GenerationConfig, LlamaModel
from transformers.cache_utils import QuantizedLayer

import uag
from tests.support.callers import OracleDrafter, count_passes
from tests.support.calls import compare
from tests.support.models import tiny_draft, tiny_model, tiny_target
from tests.support.tokenizers import small_tokenizer, wrap
from uag.bench import BenchOptions
from uag.errors import OptionError, PairError, UnsupportedError
from uag.hf.cache.caches import CACHE

INPUTS = torch.arange(1, 9)[None]


class CountingQuantizedLayer(QuantizedLayer):
    """A quantized layer without a backend; like real ones, it inherits `crop`, which fails."""

    def __init__(self) -> None:
        super().__init__(nbits=4, axis_key=0, axis_value=0, q_group_size=64, residual_length=4)

    def _quantize(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        return tensor.clone()

    def _dequantize(self, q_tensor: torch.Tensor) -> torch.Tensor:
        return q_tensor


def quantized_cache(model: Any) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    cache.layers = [CountingQuantizedLayer() for _ in cache.layers]
    return cache


@pytest.fixture(scope="module")
def assistant() -> uag.Assistant:
    _, tokenizer = tiny_target("llama")
    draft, draft_tokenizer = tiny_draft("llama")
    return uag.Assistant(draft, draft_tokenizer, tokenizer)


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_target("llama")[0]


@pytest.mark.parametrize("kind", [torch.float32, torch.bool, torch.uint8])
def test_inputs_that_are_no_ids(target: Any, assistant: uag.Assistant, kind: torch.dtype) -> None:
    message = f"input_ids are {kind}. Pass ids as torch.int64"
    with pytest.raises(OptionError, match=message):
        assistant.generate(target, INPUTS.to(kind), max_new_tokens=4)
    with pytest.raises(OptionError, match=message):
        target.generate(INPUTS.to(kind), max_new_tokens=4, custom_generate=assistant)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, r"num_beams=2 cannot be assisted: only greedy decoding and sampling can. Pass num_beams=1,"),
        ({"num_beams": 2, "do_sample": True}, "num_beams=2 cannot be assisted"),
        ({"generation_config": GenerationConfig(num_beams=3)}, r"num_beams=3 cannot be assisted"),
        ({"prompt_lookup_num_tokens": 3}, r"prompt_lookup_num_tokens=3 cannot be assisted"),
        ({"prompt_lookup_num_tokens": 0}, r"prompt_lookup_num_tokens=0 cannot be assisted"),
        ({"dola_layers": "low"}, r"dola_layers='low' cannot be assisted.*Pass dola_layers=None,"),
        ({"penalty_alpha": 0.6, "top_k": 4}, r"penalty_alpha=0.6 cannot be assisted.*Pass penalty_alpha=None,"),
        ({"assistant_ensemble_weight": 0.5}, r"assistant_ensemble_weight=0.5 cannot be assisted.*Pass assistant_ens"),
        ({"token_healing": True}, r"token_healing=True cannot be assisted"),
        ({"use_mtp": True}, r"use_mtp=True cannot be assisted.*Pass use_mtp=None,"),
        ({"force_words_ids": [[5]], "num_beams": 2}, r"cannot be assisted"),
    ],
)
def test_other_modes(target: Any, assistant: uag.Assistant, options: dict[str, Any], message: str) -> None:
    def run() -> None:
        with pytest.raises(UnsupportedError, match=message):
            assistant.generate(target, INPUTS, max_new_tokens=4, **options)
        if not options.keys() & {"assistant_ensemble_weight", "use_mtp", "force_words_ids", "token_healing"}:
            # transformers itself lets beams pass here, and the output would be greedy
            with pytest.raises(UnsupportedError, match=message):
                target.generate(INPUTS, max_new_tokens=4, custom_generate=assistant, **options)

    assert count_passes(target, run)[1] == 0


@pytest.mark.parametrize("door", ["generate", "custom_generate"])
def test_caches_of_the_user_that_cannot_be_rewound(target: Any, door: str) -> None:
    """Quantized layers claim that they can be cropped, but their quantized part would stay unchanged."""
    assistant = uag.Assistant(*tiny_draft("llama"), tiny_target("llama")[1], trust_changes=True)  # layers of the tests
    given = {"input_ids": INPUTS, "max_new_tokens": 12, "do_sample": False, CACHE: quantized_cache(target)}
    stats = compare(target, given, assistant, door=door)
    assert stats.num_draft_forwards == 0
    (reason,) = stats.fallbacks
    assert re.search(r"the target's cache \(\w+ with \w+Layer\) cannot be rewound.*plain decoding", reason)


@pytest.mark.parametrize("shape", [(1, 0), (2, 0), (0, 4)])
@pytest.mark.parametrize("by_name", [False, True])
def test_an_empty_prompt(target: Any, assistant: uag.Assistant, shape: tuple[int, int], by_name: bool) -> None:
    empty = torch.zeros(shape, dtype=torch.long)
    inputs: dict[str, Any] = {"input_ids" if by_name else "inputs": empty}
    with pytest.raises((IndexError, RuntimeError)):
        target.generate(**inputs, max_new_tokens=4)
    with pytest.raises(OptionError, match=rf"The prompt is empty: input_ids has the shape {re.escape(str(shape))}"):
        assistant.generate(target, **inputs, max_new_tokens=4)


def test_a_draft_of_a_call_is_not_ignored(target: Any, assistant: uag.Assistant) -> None:
    other = tiny_draft("llama")[0]
    for name, given in (("assistant_model", other), ("assistant_tokenizer", object()), ("custom_generate", print)):
        with pytest.raises(OptionError, match=rf"{name}= was passed to assistant\.generate"):
            assistant.generate(target, INPUTS, max_new_tokens=4, **{name: given})
    own = {"assistant_model": assistant.draft, "assistant_tokenizer": assistant.draft_tokenizer}
    expected = target.generate(INPUTS, max_new_tokens=4)
    assert assistant.generate(target, INPUTS, max_new_tokens=4, **own).tolist() == expected.tolist()


@pytest.mark.parametrize("first", [BatchEncoding({"input_ids": INPUTS}), INPUTS, torch.nn.Linear(1, 1)])
def test_a_call_without_a_target(assistant: uag.Assistant, first: Any) -> None:
    with pytest.raises(OptionError, match=r"The target comes first, and \w+ has no generate method"):
        assistant.generate(first, max_new_tokens=2)


def test_a_draft_without_a_head_and_one_with_an_encoder_for_a_decoder(target: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"'LlamaModel' has no language-model head.*AutoModelForCausalLM"):
        uag.Assistant(LlamaModel(tiny_draft("llama")[0].config))
    with pytest.raises(PairError, match="'T5ForConditionalGeneration' is an encoder-decoder and the target 'Llama"):
        uag.Assistant(*tiny_target("t5"), tiny_target("llama")[1]).generate(target, INPUTS, max_new_tokens=2)


def words(text: str) -> Any:
    vocabulary = {word: i for i, word in enumerate(["<unk>", *text.split()])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return wrap(backend, unk_token="<unk>")


def test_a_pair_without_common_bytes() -> None:
    draft_tokenizer, tokenizer = words("alpha beta gamma"), words("один два три")
    draft = tiny_model("gpt2", len(draft_tokenizer), n_embd=16, n_layer=1, n_head=2)
    with pytest.raises(PairError, match=r"have no bytes in common.*Use a draft whose tokenizer covers"):
        uag.Assistant(draft, draft_tokenizer, tokenizer)


NO_OPTIONS: list[Any] = [{}, {"memory": True}, [], 3, "x", BenchOptions]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_candidate_tokens": 0}, r"num_candidate_tokens=0 must be a whole number of 1 or more, or None"),
        ({"num_candidate_tokens": True}, r"num_candidate_tokens=True must be"),
        ({"num_candidate_tokens": 2.5}, r"num_candidate_tokens=2.5 must be"),
        ({"min_confidence": 1.5}, r"min_confidence=1.5 must be a number from 0 to 1"),
        ({"min_confidence": "high"}, r"min_confidence='high' must be"),
        ({"prompt_lookup": 3}, r"prompt_lookup=3 must be True or False"),
        ({"compile_draft": "yes"}, r"compile_draft='yes' must be True or False"),
        ({"generator": 7}, r"generator=7 must be a torch.Generator"),
        ({"sampling": "typical"}, "sampling='typical' must be one of 'shared-noise', 'rejection'"),
        ({"draft_weights": "int2"}, "draft_weights='int2' must be one of 'int8', 'int4', 'model', or None"),
        *(({"options": wrong}, r"options=.* must be a uag\.Options, or None") for wrong in NO_OPTIONS),
        ({"drafter": OracleDrafter([], 9)}, r"Both a draft and a drafter were passed"),
    ],
)
def test_options(options: dict[str, Any], message: str) -> None:
    draft, draft_tokenizer = tiny_draft("llama")
    with pytest.raises(OptionError, match=message):
        uag.Assistant(draft, draft_tokenizer, small_tokenizer("llama"), **options)
    assert issubclass(OptionError, TypeError)
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_assistant_tokens'"):
        uag.Assistant(draft, num_assistant_tokens=5)


def test_statistics_of_a_model_that_has_not_run() -> None:
    with pytest.raises(UnsupportedError, match="No assisted call of this 'LlamaForCausalLM' is on record"):
        uag.last_stats(tiny_target("llama")[0])
