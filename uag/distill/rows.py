"""Texts of the target as rows to train the draft on: in the draft's ids, as it will meet them when it drafts."""

from collections.abc import Iterable
from typing import Any

from uag.adapters import from_tokenizer
from uag.distill.texts import Text
from uag.drafting import RowMaker
from uag.projection import TokenizerPair

NOT_LEARNT = -100
"""The label of a token that is context only, as PyTorch's cross entropy has it."""


class RowEncoder:
    """Turns texts into the draft's ids, through the same door as drafting: control tokens become the draft's own.

    Args:
        draft: the draft model.
        draft_tokenizer: its tokenizer.
        tokenizer: the target's.
        max_length: draft tokens of a row; a longer one loses its beginning.
        learns_prompts: whether the draft also learns to write the prompts.

    Raises:
        PairError: the tokenizers have nothing in common.
    """

    def __init__(
        self, draft: Any, draft_tokenizer: Any, tokenizer: Any, *, max_length: int, learns_prompts: bool
    ) -> None:
        # Held, so that the pair is found again and not built another time.
        self._adapters = from_tokenizer(tokenizer), from_tokenizer(draft_tokenizer)
        self._maker = RowMaker(draft, TokenizerPair.of(*self._adapters))
        self._max_length = max_length
        self._learns_prompts = learns_prompts

    def encode(self, texts: Iterable[Text]) -> list[dict[str, list[int]]]:
        """Return `input_ids` and `labels` of each text; one that gives nothing to learn is left out."""
        rows = []
        for text in texts:
            ids = self._maker.make([*text.prompt_ids, *text.output_ids]).queued_ids()
            start = 0 if self._learns_prompts else self._num_common(text, ids)
            labels = [NOT_LEARNT] * start + ids[start:]
            if len(ids) > max(start, 1):
                rows.append({"input_ids": ids[-self._max_length :], "labels": labels[-self._max_length :]})
        return rows

    def _num_common(self, text: Text, ids: list[int]) -> int:
        """Count the tokens that the prompt alone begins with too: the one across its end is the target's."""
        prompt = self._maker.make(text.prompt_ids).queued_ids()
        pairs = zip(prompt, ids, strict=False)
        return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(prompt), len(ids)))
