"""Rows end where plain decoding ends them: stop strings, EOS, lengths, the model's last position."""

import copy
from typing import Any

import pytest
from transformers import GenerationConfig, StoppingCriteriaList
from transformers.generation import utils as generation_utils
from transformers.generation.stopping_criteria import StopStringCriteria

import uag
from tests.support.calls import (
    GREEDY,
    NEW,
    ROWS,
    assistant_of,
    batch,
    compare,
    draft_options,
    num_drafted,
    oracle,
    pair,
    through,
)
from tests.support.grids import covering
from tests.support.models import tiny_model, twin
from tests.support.tokenizers import small_tokenizer
from uag.errors import PairError


@covering("place, num_rows", ("keyword", "config", "model"), (1, 3), strength=1)
def test_stop_strings(installed: None, num_rows: int, place: str) -> None:
    target, tokenizer, draft, draft_tokenizer = pair("gpt2")
    target, inputs = copy.deepcopy(target), batch(tokenizer, num_rows)
    width = inputs["input_ids"].shape[1]
    long = target.generate(**inputs, **GREEDY)
    # a string that row 0 writes at its tenth token, in the middle of a block
    stop = tokenizer.decode(long[0, width + 9 : width + 10])
    given: dict[str, Any] = {"pad_token_id": 0}
    if place == "keyword":
        given |= GREEDY | {"stop_strings": [stop]}
    elif place == "config":
        given["generation_config"] = GenerationConfig(**GREEDY, stop_strings=stop)
    else:
        target.generation_config.stop_strings = [stop]
        given |= GREEDY
    expected = target.generate(**inputs, **given, tokenizer=tokenizer)
    assert expected.shape[1] < long.shape[1] or num_rows > 1
    assistant = oracle(target, tokenizer, long, width, spoil=7)
    assert assistant.generate(target, **inputs, **given).tolist() == expected.tolist()
    assert assistant.stats.num_accepted_tokens > 0
    assert target.generate(**inputs, **given, **draft_options("gpt2")).tolist() == expected.tolist()
    if place == "keyword":  # transformers passes no tokenizer to a callable; the assistant has one
        assert target.generate(**inputs, **given, custom_generate=assistant_of("gpt2")).tolist() == expected.tolist()
    with pytest.raises(PairError, match=r"stop_strings=.*requires the target's tokenizer"):
        uag.Assistant(draft, draft_tokenizer).generate(target, **inputs, **given)


@pytest.mark.parametrize("door", ["generate", "custom_generate", "install"])
def test_the_callers_criterion_replaces_stop_strings(door: str) -> None:
    """As in transformers, which never keeps two criteria of a class."""
    target, tokenizer, _, _ = pair("gpt2")
    inputs = batch(tokenizer)
    width = inputs["input_ids"].shape[1]
    long = target.generate(**inputs, **GREEDY)
    early, late = (tokenizer.decode(long[0, width + at : width + at + 1]) for at in (3, 12))
    given = inputs | GREEDY | {"stop_strings": [early], "tokenizer": tokenizer}
    given["stopping_criteria"] = StoppingCriteriaList([StopStringCriteria(tokenizer, [late])])
    expected = target.generate(**given)
    assert expected.tolist() != target.generate(**inputs, **GREEDY, stop_strings=[early], tokenizer=tokenizer).tolist()
    if door == "install":  # which passes a tokenizer itself
        del given["tokenizer"]
    found = through(door, assistant_of("gpt2"), target)(**given)
    assert found.tolist() == expected.tolist()
    assert len(given["stopping_criteria"]) == 1


def test_stop_strings_in_a_config_cause_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers deprecates keywords beside a config."""
    warned: list[str] = []
    monkeypatch.setattr(generation_utils.logger, "warning_once", lambda text, *_: warned.append(text))
    target, tokenizer, _, _ = pair("gpt2")
    config = GenerationConfig(**GREEDY, stop_strings=["e"])
    expected = target.generate(**batch(tokenizer), generation_config=config, tokenizer=tokenizer)
    found = assistant_of("gpt2").generate(target, **batch(tokenizer), generation_config=config)
    assert found.tolist() == expected.tolist()
    assert warned == []
    assert config.stop_strings == ["e"]


@covering("max_length, num_rows", (31, 32, 33), (1, 3), strength=1)
def test_up_to_the_models_last_position(num_rows: int, max_length: int) -> None:
    tokenizer = small_tokenizer("byte_level")
    target = tiny_model("gpt2", len(tokenizer), n_embd=32, n_layer=2, n_head=4, n_positions=32)
    inputs = batch(tokenizer, num_rows)
    inputs = {name: value[:, -12:] for name, value in inputs.items()}
    given = inputs | {"max_length": max_length, "do_sample": False}
    stats = compare(target, given)
    assert stats.num_accepted_tokens > 0
    assert stats.num_output_tokens == num_rows * (max_length - inputs["input_ids"].shape[1])
    compare(target, given, uag.Assistant(*twin(target, tokenizer), tokenizer, num_candidate_tokens=6))


@ROWS
@pytest.mark.parametrize("spoil", [0, 6])
def test_eos_can_be_drafted(num_rows: int, spoil: int) -> None:
    """Rows end at different steps and are padded, as in plain decoding."""
    target, tokenizer, _, _ = pair("gpt2")
    inputs = batch(tokenizer, num_rows)
    width = inputs["input_ids"].shape[1]
    long = target.generate(**inputs, **GREEDY)
    ends = [int(long[0, width + 8]), int(long[-1, width + 11])]
    options = GREEDY | {"eos_token_id": ends, "pad_token_id": 3}
    stats = compare(target, inputs | options, oracle(target, tokenizer, long, width, spoil=spoil))
    lengths = [next((i + 1 for i, t in enumerate(row) if t in ends), NEW) for row in long[:, width:].tolist()]
    assert min(lengths) < NEW
    assert [row.num_output_tokens for row in stats.rows] == lengths
    assert [row.num_accepted_tokens for row in stats.rows] == [num_drafted(row) for row in stats.sources]
    if not spoil and num_rows == 1:
        assert stats.sources[0][-1] == "source"  # the EOS itself was drafted
