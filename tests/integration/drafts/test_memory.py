"""Memories in calls: the output is plain decoding's, and texts that were written before are accepted."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import uag
from tests.support.callers import OracleDrafter, raises_at
from tests.support.calls import GREEDY, NEW, PROMPTS, SAMPLED, compare, left_padded, pair
from tests.support.grids import covering
from tests.support.models import tiny_target
from tests.support.tokenizers import small_tokenizer
from uag.drafting import PromptLookup
from uag.drafting.known.source import MemorySource
from uag.errors import OptionError, PairError

ROWS = left_padded(PROMPTS)
HOT = {**SAMPLED, "temperature": 1.7, "top_k": 9}


def check(assistant: uag.Assistant, inputs: dict[str, Any], seed: int = 3, name: str = "llama", **options: Any) -> int:
    target = tiny_target(name)[0] if name == "t5" else pair(name, options.pop("eos", False))[0]
    return compare(target, inputs | options, assistant, seed=seed).accepted_by_source.get("memory", 0)


@covering("options, has_draft", (GREEDY, SAMPLED, HOT), (False, True), strength=1)
def test_the_second_call_is_accepted(options: dict[str, Any], has_draft: bool) -> None:
    """Of a batch with padding, whose rows end at different steps; then of another sample."""
    _, tokenizer, draft, draft_tokenizer = pair("llama", eos=True)
    draft, draft_tokenizer = (draft, draft_tokenizer) if has_draft else (None, None)
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, memory=True, num_candidate_tokens=6)
    check(assistant, ROWS, eos=True, **options)
    num_output_tokens = assistant.stats.num_output_tokens
    assert check(assistant, ROWS, eos=True, **options) > num_output_tokens // 2
    check(assistant, ROWS, 4, eos=True, **options)


@pytest.mark.parametrize("options", [GREEDY, SAMPLED])
def test_complete_texts_are_stored(options: dict[str, Any]) -> None:
    """With the tokens of the last round, without padding, also if measured times decide about candidates."""
    assistant = uag.Assistant(None, memory=True)
    for _ in range(4):
        check(assistant, ROWS, **options)
    assert isinstance(assistant.memory, uag.Memory)
    assert len(assistant.memory) == 4 * sum(len(prompt) + NEW for prompt in PROMPTS)


def test_samples_are_told_apart() -> None:
    """If the memory has the outputs of two seeds, each is found where it differs from the other."""
    _, tokenizer = tiny_target("llama")
    assistant = uag.Assistant(None, None, tokenizer, memory=True, num_candidate_tokens=NEW)
    for seed in (1, 2):
        check(assistant, left_padded(PROMPTS[:1]), seed, **SAMPLED)
    for seed in (1, 2):
        check(assistant, left_padded(PROMPTS[:1]), seed, **SAMPLED)
        assert assistant.stats.num_target_forwards <= NEW // 3


def test_a_memory_is_shared_by_assistants_and_threads() -> None:
    target, tokenizer = tiny_target("llama")
    memory = uag.Memory()
    expected = [target.generate(**left_padded([prompt]), **GREEDY).tolist() for prompt in PROMPTS] * 4

    def work(_: int) -> list[Any]:
        assistant = uag.Assistant(None, None, tokenizer, memory=memory, num_candidate_tokens=8)
        return [assistant.generate(target, **left_padded([prompt]), **GREEDY).tolist() for prompt in PROMPTS * 4]

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(work, range(3))) == [expected] * 3
    other = uag.Assistant(None, None, tokenizer, memory=memory, num_candidate_tokens=8)
    assert check(other, left_padded(PROMPTS[:1]), **GREEDY) > NEW // 2


def test_a_saved_memory_serves_the_same_tokenizer_only(tmp_path: Path) -> None:
    target, tokenizer = tiny_target("llama")
    memory = uag.Memory()
    check(uag.Assistant(None, None, tokenizer, memory=memory), ROWS, **GREEDY)
    memory.save(tmp_path / "memory.safetensors")
    loaded = uag.Memory.load(tmp_path / "memory.safetensors")
    assert check(uag.Assistant(None, None, tokenizer, memory=loaded, num_candidate_tokens=8), ROWS, **GREEDY) > NEW
    other = uag.Assistant(None, None, small_tokenizer("byt5"), memory=loaded)
    with pytest.raises(PairError, match="ids of another tokenizer"):
        other.generate(target, **ROWS, **GREEDY)


def test_a_call_that_fails_stores_nothing_and_the_next_one_works() -> None:
    target, tokenizer = tiny_target("llama")
    assistant = uag.Assistant(None, None, tokenizer, memory=True, num_candidate_tokens=8)
    check(assistant, ROWS, **GREEDY)
    num_tokens = len(assistant.memory or ())

    stop = raises_at(ROWS["input_ids"].shape[1] + NEW // 2, KeyboardInterrupt, "stopping_criteria")
    with pytest.raises(KeyboardInterrupt):
        assistant.generate(target, **ROWS, **GREEDY, stopping_criteria=[stop])
    assert len(assistant.memory or ()) == num_tokens
    assert check(assistant, ROWS, **GREEDY) > NEW


@pytest.mark.parametrize("source", ["source", "prompt", "prediction"])
def test_a_custom_drafter_prompt_lookup_and_predictions_are_used_too(source: str) -> None:
    target, tokenizer = tiny_target("llama")
    inputs = left_padded([prompt + prompt[:3] for prompt in PROMPTS[::2]])
    outputs = target.generate(**inputs, **GREEDY)[:, inputs["input_ids"].shape[1] :].tolist()
    options: dict[str, Any] = {"num_candidate_tokens": 3, "memory": True, "drafter": PromptLookup()}
    if source == "prediction":
        options["prediction"] = outputs
    elif source == "source":
        options["drafter"] = OracleDrafter(outputs, target.config.vocab_size, spoil=3)
    assistant = uag.Assistant(None, None, tokenizer, **options)
    check(assistant, inputs, **GREEDY)
    assert assistant.stats.candidates_by_source[source] > 0
    assistant.options.prediction = None
    assert check(assistant, inputs, **GREEDY) > 0


def test_of_a_prompt_with_ids_below_zero_the_rest_is_stored() -> None:
    """Some models use such ids for images."""
    memory = uag.Memory()
    source = MemorySource(memory)
    source.start([[5, 6, -200, 7, 8]])
    source.finish([[9, 10]])
    assert memory.look_up([6], 4) == (0, [])
    assert memory.look_up([7, 8], 4) == (2, [9, 10])
    assert len(memory) == 4


def test_an_encoder_decoder_and_an_option_of_the_wrong_type() -> None:
    assistant = uag.Assistant(None, memory=True, num_candidate_tokens=8)
    inputs = {"input_ids": torch.tensor(PROMPTS[:1])}
    check(assistant, inputs, name="t5", **GREEDY)
    assert check(assistant, inputs, name="t5", **GREEDY) > NEW // 2
    with pytest.raises(OptionError, match=r"memory='yes' must be True, False or a uag\.Memory"):
        uag.Assistant(None, memory="yes")
