"""Greedy ids equal plain `generate`, id for id, for every architecture of the target."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import uag
from tests.support.callers import OracleDrafter, count_passes
from tests.support.calls import GREEDY, ROWS, SAMPLED, assert_drafted, compare, left_padded, oracle
from tests.support.class_options import PROMPTS
from tests.support.grids import covering, mostly_grid
from tests.support.models import ARCHITECTURES, ONE_TOKEN, STATEFUL, tiny_draft, tiny_model, tiny_of_class, tiny_target
from uag.errors import UnsupportedError
from uag.hf import required_names
from uag.hf.cache.caches import CACHE
from uag.kernels import kernel

TEXTS = ("The quick brown fox jumps over the lazy dog", "def add(first,", "Ein kleiner Bär ging über die Straße; naïve")
NEW = 12
FEW = 8
"""New tokens where a model drafts: its passes cost most, and a few rounds show what is wrong."""
ENCODER_DECODERS = {"t5", "bart"}
FORGETFUL = {"mamba", "rwkv", "jamba"}
LIMITED = {"nemotron_h", "zamba2"}  # limit time steps in blocks, unless uag's kernels run them token by token
if not kernel.LEVEL:
    FORGETFUL |= LIMITED
elif required_names.release() < (5, 23):
    FORGETFUL.add("nemotron_h")  # its states cannot be cropped
NO_POSITIONS = {"bloom", "mpt", "t5", "bart"}  # rows of a batch advance in lockstep


@cache
def target_of(name: str) -> tuple[Any, Any, torch.Tensor]:
    """Build a target with the first seed whose outputs vary, and return it with its tokenizer and its three outputs.

    Unigram trainers produce a different vocabulary, and so different prompts, in every process.
    """
    for seed in range(1, 10):
        target, tokenizer = tiny_target(name, seed=seed)
        outputs = decoded(name, target, tokenizer, 3)
        if vary(outputs[:, -NEW:].tolist()):
            return target, tokenizer, outputs
    raise AssertionError("the tests would compare repeated ids")


@cache
def models(name: str) -> tuple[Any, Any, Any, Any]:
    return (*target_of(name)[:2], *tiny_draft(name))


def arranged(name: str, tokenizer: Any, num_rows: int) -> dict[str, torch.Tensor]:
    """Return prompts padded on the architecture's side: encoders with absolute positions start at slot 0."""
    inputs = left_padded([tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS[:num_rows]])
    if name not in ENCODER_DECODERS:
        return inputs
    order = inputs["attention_mask"].argsort(dim=1, descending=True, stable=True)
    return {key: value.gather(1, order) for key, value in inputs.items()}


def decoded(name: str, target: Any, tokenizer: Any, num_rows: int) -> torch.Tensor:
    ids: torch.Tensor = target.generate(**arranged(name, tokenizer, num_rows), max_new_tokens=NEW, do_sample=False)
    return ids


def vary(rows: list[list[int]]) -> bool:
    return all(len(set(row)) >= NEW // 4 for row in rows) and len({tuple(row) for row in rows}) == len(rows)


def inputs_for(name: str, num_rows: int) -> dict[str, torch.Tensor]:
    return arranged(name, models(name)[1], num_rows)


@cache
def plain(name: str, num_rows: int) -> torch.Tensor:
    target, tokenizer, outputs = target_of(name)
    return outputs if num_rows == 3 else decoded(name, target, tokenizer, num_rows)


def outputs_of(name: str, num_rows: int) -> list[list[int]]:
    return plain(name, num_rows)[:, -NEW:].tolist()


OF_OTHERS = (
    "llama", "qwen2", "qwen3", "gemma2", "phi", "phi3", "gpt_neox", "gptj", "opt", "bloom", "starcoder2", "mixtral",
    "olmo", "cohere", "granite", "glm", "stablelm", "gpt_oss", "t5", "bart",
)  # fmt: skip
"""Architectures that have every tokenizer of a target, and every one of a draft, among them."""


@pytest.mark.parametrize("name", mostly_grid(ARCHITECTURES, OF_OTHERS))
def test_a_draft_of_another_tokenizer(name: str) -> None:
    num_rows = 1 + 2 * (list(ARCHITECTURES).index(name) % 2)
    target, tokenizer, draft, draft_tokenizer = models(name)
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3)
    ids = assistant.generate(target, **inputs_for(name, num_rows), max_new_tokens=FEW, do_sample=False)
    assert ids.tolist() == plain(name, num_rows)[:, : FEW - NEW].tolist()
    assert assistant.stats.strategy == "cross-tokenizer"
    assert assistant.stats.num_candidate_tokens > 0
    in_lockstep = any("in lockstep" in reason for reason in assistant.stats.fallbacks)
    assert in_lockstep == (num_rows > 1 and name in NO_POSITIONS)


@covering("name, num_rows", ARCHITECTURES, (3, 1), strength=1)
def test_the_targets_own_text_with_a_fifth_spoiled(name: str, num_rows: int) -> None:
    target, tokenizer, _, _ = models(name)
    drafter, other = (
        OracleDrafter(outputs_of(name, num_rows), target.get_output_embeddings().weight.shape[0]) for _ in range(2)
    )
    assistant = uag.Assistant(None, None, tokenizer, drafter=drafter, num_candidate_tokens=4)
    given: dict[str, Any] = {**inputs_for(name, num_rows), "max_new_tokens": NEW, "do_sample": False}
    first = uag.Assistant(None, None, tokenizer, drafter=other, num_candidate_tokens=4)
    first.generate(target, **given | {"max_new_tokens": 2})  # runs the trial, whose passes do not count
    ids, num_passes = count_passes(target, lambda: assistant.generate(target, **given))
    assert ids.tolist() == plain(name, num_rows).tolist()
    stats = assistant.stats
    assert_drafted(stats)
    assert stats.num_target_forwards == num_passes < NEW
    assert stats.num_output_tokens == NEW * num_rows
    assert not drafter.is_running


RECORDED = ("llama", "gpt2", "gemma2", "gpt_oss", "mixtral", "falcon-alibi", "mpt", "t5", "bart")
"""Architectures whose records differ in kind: windows, sinks, experts, no positions, an encoder."""


@pytest.mark.parametrize("name", mostly_grid(ARCHITECTURES, RECORDED))
def test_rows_in_lockstep_and_their_records(name: str) -> None:
    """With `return_dict_in_generate`, rows advance in lockstep; scores, logits and caches are recorded."""
    options = {"max_new_tokens": NEW, "do_sample": False}
    records = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    assert_drafted(compare(models(name)[0], inputs_for(name, 3) | options | records, spoil=11))


@covering("name, num_rows", ARCHITECTURES, (1, 3), strength=1)
def test_every_architecture_as_the_draft_of_itself(name: str, num_rows: int) -> None:
    """Its cache, positions and masks must reproduce the target's choices, even after rejected candidates."""
    target, tokenizer, _, _ = models(name)
    own = uag.Options(num_candidate_tokens=3, draft_weights="model")
    assistant = uag.Assistant(target, tokenizer, tokenizer, options=own)
    ids = assistant.generate(target, **inputs_for(name, num_rows), max_new_tokens=NEW, do_sample=False)
    assert ids.tolist() == plain(name, num_rows).tolist()
    stats = assistant.stats
    assert stats.strategy == "shared-vocabulary"
    # Only ids of the padded head, which the tokenizer lacks, are never proposed.
    num_padded = sum(i >= len(tokenizer) for row in outputs_of(name, num_rows) for i in row)
    num_rejected = stats.num_candidate_tokens - stats.num_accepted_tokens
    if num_rows == 1:
        assert num_rejected <= 3 * num_padded
    elif name not in NO_POSITIONS and "sliding_window" not in ARCHITECTURES[name][1]:
        # A window of a few positions also counts the slots that rejected tokens leave empty for a while.
        assert num_rejected <= 3 * num_padded
    assert stats.num_accepted_tokens > 0


@ROWS
@pytest.mark.parametrize("target_name", ["t5", "bart"])
def test_an_encoder_decoder_draft_reads_the_source_in_its_own_tokens(target_name: str, num_rows: int) -> None:
    target, tokenizer, draft, draft_tokenizer = models(target_name)
    assistant = uag.Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=3)  # tries the draft
    seen: list[torch.Tensor] = []
    handle = draft.get_encoder().register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True
    )
    inputs = inputs_for(target_name, num_rows)
    assistant.generate(target, **inputs, max_new_tokens=4, do_sample=False)
    handle.remove()
    assert len(seen) == 1
    for row, text in zip(seen[0].tolist(), TEXTS, strict=False):
        assert draft_tokenizer.decode([i for i in row if i]).strip() == text


@pytest.mark.parametrize("name", sorted(LIMITED))
def test_limits_of_time_steps_in_blocks_need_the_kernels(name: str) -> None:
    model_type, options = STATEFUL[name]
    target, given = tiny_model(model_type, 300, **options), left_padded(PROMPTS[:1]) | GREEDY
    expected = target.generate(**given)
    oracle_drafter = OracleDrafter(expected[:, given["input_ids"].shape[1] :].tolist(), 300)
    assistant = uag.Assistant(None, drafter=oracle_drafter)
    for size in (2, None):  # the trial reads its own prompt whole
        assistant.generate(target, **given, prefill_chunk_size=size)
        assert (assistant.stats.num_accepted_tokens > 0) == (name not in FORGETFUL)
    assistant = uag.Assistant(None, drafter=OracleDrafter([[]], 300), own_kernels=False)
    assert torch.equal(assistant.generate(target, **given), target.generate(**given))
    assert any("after its recurrent state" in reason for reason in assistant.stats.fallbacks)


@pytest.mark.parametrize("name", sorted(LIMITED))
@pytest.mark.parametrize("size", [2, 4])
def test_plain_decoding_reads_parts_of_a_prompt_with_these_limits(name: str, size: int) -> None:
    model_type, options = STATEFUL[name]
    target, given = copy.deepcopy(tiny_model(model_type, 300, **options)), left_padded(PROMPTS[:1]) | GREEDY
    norm = "norm_f" if name == "nemotron_h" else "final_layernorm"
    setattr(target.model, norm, torch.nn.Sequential(getattr(target.model, norm), torch.nn.Mish()))  # rounds by place
    given |= {"prefill_chunk_size": size, "return_dict_in_generate": True, "output_logits": True}
    expected = target.generate(**given).logits[0]
    assistant = uag.Assistant(None, drafter=OracleDrafter([[]], 300), draft_independent=True)
    torch.testing.assert_close(assistant.generate(target, **given).logits[0], expected)
    assert "aten::mish" in "; ".join(assistant.stats.fallbacks) or name in FORGETFUL


@covering(
    "name, num_rows, options, spoil", sorted(STATEFUL.keys() - FORGETFUL), (1, 3), (GREEDY, SAMPLED), (2, 5), strength=1
)
def test_a_state_that_is_restored(name: str, num_rows: int, options: dict[str, Any], spoil: int) -> None:
    """Convolutions are recorded and cropped; recurrent states are copied, and accepted tokens are recomputed."""
    model_type, config = STATEFUL[name]
    target = tiny_model(model_type, 300, **config)
    given = left_padded(PROMPTS[:num_rows]) | options
    assert_drafted(compare(target, given, spoil=spoil))
    given["eos_token_id"] = list(range(7, 300, 9))  # one may end the call in the place of a rejected candidate
    # The tolerance is for states, which sum the rounding of all tokens.
    compare(target, given | {"return_dict_in_generate": True}, spoil=spoil, tolerance=1e-4)
    if name != "mamba2":  # its cache has another name
        given[CACHE] = DynamicCache(config=target.config)
        compare(target, given, spoil=spoil, tolerance=1e-4)


def test_many_tokens_after_a_restored_state_are_read_in_a_pass_of_their_own() -> None:
    model_type, options = STATEFUL["qwen3_next"]
    target = tiny_model(model_type, 300, **options)
    given: dict[str, Any] = {"input_ids": torch.arange(1, 9)[None], "max_new_tokens": 60, "do_sample": False}
    expected = target.generate(**given)
    widths: list[int] = []
    handle = target.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    drafter = OracleDrafter(expected[:, -60:].tolist(), 300, spoil=1)  # every id is wrong
    assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=2, trust_changes=True)  # the hook
    ids = assistant.generate(target, **given)
    handle.remove()
    assert ids.tolist() == expected.tolist()
    assert assistant.stats.num_accepted_tokens == 0 < assistant.stats.num_candidate_tokens
    assert max(widths[1:]) < 20
    assert set(assistant.stats.pass_seconds) <= set(widths)  # with the tokens that are read again
    assert assistant.stats.num_target_forwards == len(widths)


PLAIN = {**ONE_TOKEN, **{name: (*STATEFUL[name], "state") for name in sorted(FORGETFUL)}}


@covering("name, num_rows, door", PLAIN, (1, 3), ("generate", "custom_generate"), strength=1)
def test_a_target_that_takes_no_block_of_candidates_decodes_plainly(name: str, num_rows: int, door: str) -> None:
    model_type, options, reason = PLAIN[name]
    target = tiny_model(model_type, 300, **options)
    given = dict[str, Any](left_padded(PROMPTS[:num_rows])) | {"max_new_tokens": NEW, "do_sample": False}
    target.generate(**given)  # BigBird draws weights in its first pass
    width = 1 if target.config.is_encoder_decoder else given["input_ids"].shape[1]
    stats = compare(target, given, oracle(target, None, target.generate(**given), width), door=door)
    assert stats.num_candidate_tokens == 0
    (found,) = stats.fallbacks
    assert reason in found
    assert "plain decoding" in found


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_an_encoder_made_a_decoder_is_assisted(model_type: str) -> None:
    target = tiny_model(model_type, 300, **ONE_TOKEN[model_type][1], is_decoder=True)
    given: dict[str, Any] = {"input_ids": torch.arange(3, 9)[None], "max_new_tokens": NEW, "do_sample": False}
    stats = compare(target, given)
    assert stats.num_accepted_tokens > 0
    assert not stats.fallbacks


NOT_REWOUND = "cannot be rewound after a rejected candidate"
NOT_TEXT = r"cannot process text alone .*Use a draft that reads"


@pytest.mark.parametrize(
    ("class_name", "reason"),
    [
        ("CpmAntForCausalLM", "as the last one"),
        ("ProphetNetForConditionalGeneration", "one token at a time"),
        ("OpenAIGPTLMHeadModel", "takes no key-value cache"),
        ("RecurrentGemmaForCausalLM", NOT_REWOUND),
        ("RwkvForCausalLM", NOT_REWOUND),
        ("xLSTMForCausalLM", NOT_REWOUND),
        ("WhisperForConditionalGeneration", NOT_TEXT),
        ("IdeficsForVisionText2Text", NOT_TEXT),
    ],
)
def test_a_draft_that_cannot_draft_is_refused(class_name: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        uag.Assistant(tiny_of_class(class_name))


@pytest.mark.parametrize("is_assisted", [False, True])
def test_weights_that_the_first_pass_rescales_are_rescaled_once(is_assisted: bool) -> None:
    """RWKV divides the weights of its later layers by powers of 2, which the trial did before the call."""
    target = tiny_model("rwkv", 600, num_hidden_layers=4, rescale_every=1)
    given: dict[str, Any] = left_padded([[5, 9, 14]]) | GREEDY
    expected = copy.deepcopy(target).generate(**given)
    drafter = OracleDrafter(expected[:, 3:].tolist(), 600, 0) if is_assisted else None
    assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=4)
    for _ in range(2):
        assert torch.equal(assistant.generate(target, **given), expected)
