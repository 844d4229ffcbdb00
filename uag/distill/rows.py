"""Encode the target's texts as training rows: draft ids, as they are encoded during drafting."""

from collections.abc import Iterable
from typing import Any

from uag.adapters import from_tokenizer
from uag.drafting import RowMaker
from uag.measure import Text, num_equal
from uag.projection import TokenizerPair

IGNORED = -100
"""The label of tokens without a loss: those of the prompt."""


class RowEncoder:
    """Encodes texts with the draft's tokenizer; control tokens of the target become the draft's.

    Args:
        draft: the draft model.
        draft_tokenizer: its tokenizer.
        tokenizer: the target's.
        max_length: maximum number of draft tokens of a row; longer rows are truncated on the left.

    Raises:
        PairError: the tokenizers have nothing in common.
    """

    def __init__(self, draft: Any, draft_tokenizer: Any, tokenizer: Any, max_length: int) -> None:
        # Kept alive, so that the cached pair is not rebuilt.
        self._adapters = from_tokenizer(tokenizer), from_tokenizer(draft_tokenizer)
        self._maker = RowMaker(draft, TokenizerPair.of(*self._adapters))
        self._max_length = max_length

    def encode(self, texts: Iterable[Text]) -> list[dict[str, list[int]]]:
        """Return `input_ids` and `labels` of each text; texts with nothing to learn are skipped."""
        rows = []
        for text in texts:
            prompt_ids = self._maker.make(text.prompt_ids).queued_ids()
            ids = self._maker.make([*text.prompt_ids, *text.output_ids]).queued_ids()
            # A token that spans the end of the prompt is learned.
            start = max(num_equal(prompt_ids, ids), 1)
            labels = [IGNORED] * start + ids[start:]
            if len(ids) > start:
                rows.append({"input_ids": ids[-self._max_length :], "labels": labels[-self._max_length :]})
        return rows
