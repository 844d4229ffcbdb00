"""The harness of the sampling tests, run on transformers' own cross-tokenizer sampling: it convicts it.

transformers 5.16.1 to 5.23 prune the draft's head to the tokens that both vocabularies hold, and write its columns back
in another order than they were taken: candidates are checked against the probability of another token.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.support.models import bigram_model
from uag.assistant import Assistant

NUM_DRAWS = 300
PROMPT = torch.tensor([[0, 3]])


class Letters(PreTrainedTokenizerFast):
    """A tokenizer whose vocabulary is listed in one order; elsewhere the order differs from process to process.

    transformers writes the columns back by it, so how wrong its output is depends on it.
    """

    def get_vocab(self) -> dict[str, int]:
        """Return the ids by token, in the order of the alphabet."""
        return dict(sorted(super().get_vocab().items()))


def letters(text: str) -> Letters:
    """A tokenizer of one token per letter, numbered in the order given."""
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(text)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Letters(tokenizer_object=backend)


def distance(generate: Callable[..., Any], probs: torch.Tensor) -> float:
    """Total variation between the first token of many calls and the target's own distribution."""
    counts = torch.zeros_like(probs)
    for seed in range(NUM_DRAWS):
        torch.manual_seed(seed)
        output = generate(
            input_ids=PROMPT, attention_mask=torch.ones_like(PROMPT), do_sample=True, top_k=0, max_new_tokens=3,
            pad_token_id=0,
        )  # fmt: skip
        counts[output[0, PROMPT.shape[1]]] += 1
    return float((counts / NUM_DRAWS - probs).abs().sum() / 2)


def test_the_harness_convicts_transformers_and_clears_ours() -> None:
    names, draft_names = "abcdefgh", "hbjdiagfce"
    random = torch.Generator().manual_seed(5)
    table = 0.3 * torch.randn(8, 8, generator=random)
    # The draft's distribution is the target's with some noise, in its own order, and it knows two letters more.
    known = [names.find(letter) for letter in draft_names]
    rows = torch.stack([table[i] if i >= 0 else torch.zeros(8) for i in known])
    columns = torch.stack([rows[:, i] if i >= 0 else torch.full((10,), -4.0) for i in known], dim=1)
    draft = bigram_model(columns + 1.5 * torch.randn(10, 10, generator=random))
    target = bigram_model(table)
    tokenizer, draft_tokenizer = letters(names), letters(draft_names)
    probs = torch.softmax(table[int(PROMPT[0, -1])], -1)

    floors = []
    for _ in range(200):
        drawn = torch.multinomial(probs, NUM_DRAWS, replacement=True, generator=random)
        floors.append(float((torch.bincount(drawn, minlength=8) / NUM_DRAWS - probs).abs().sum() / 2))
    floor = max(floors)

    assistant = Assistant(draft, draft_tokenizer, tokenizer, num_candidate_tokens=2)
    ours = distance(lambda **options: assistant.generate(target, **options), probs)
    assert ours <= floor
    assert assistant.stats.num_candidate_tokens

    spoilt = copy.deepcopy(draft)  # transformers changes the draft for good
    spoilt.generation_config.update(
        num_assistant_tokens=2, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
    )
    tokenizers = {"tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
    theirs = distance(lambda **options: target.generate(assistant_model=spoilt, **tokenizers, **options), probs)
    assert theirs > 2 * floor, f"floor {floor:.3f}, ours {ours:.3f}, transformers {theirs:.3f}"
