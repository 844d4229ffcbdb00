"""Encode the target's texts as training rows: draft ids, as they are encoded during drafting."""

from collections.abc import Iterable
from os.path import commonprefix
from typing import Any

from uag.adapters import from_tokenizer
from uag.distill.writing import Text
from uag.drafting import RowMaker
from uag.projection import TokenizerPair

IGNORED = -100
"""The label of tokens without a loss: those of the prompt."""


def encode_rows(
    texts: Iterable[Text], draft: Any, draft_tokenizer: Any, tokenizer: Any, max_length: int
) -> list[dict[str, list[int]]]:
    """Return `input_ids` and `labels` of each text; texts with nothing to learn are skipped.

    Args:
        texts: in target ids; control tokens of the target become the draft's.
        draft: the draft model.
        draft_tokenizer: its tokenizer.
        tokenizer: the target's.
        max_length: maximum number of draft tokens of a row; longer rows are truncated on the left.

    Raises:
        PairError: the tokenizers have nothing in common.
    """
    maker = RowMaker(draft, TokenizerPair.of(from_tokenizer(tokenizer), from_tokenizer(draft_tokenizer)))
    rows = []
    for text in texts:
        prompt_ids = maker.make(text.prompt_ids).queued_ids()
        ids = maker.make([*text.prompt_ids, *text.output_ids]).queued_ids()
        # A token that spans the end of the prompt is learned.
        start = max(len(commonprefix([prompt_ids, ids])), 1)  # noqa: RUF071 - these are ids, not paths
        labels = [IGNORED] * start + ids[start:]
        if len(ids) > start:
            rows.append({"input_ids": ids[-max_length:], "labels": labels[-max_length:]})
    return rows
