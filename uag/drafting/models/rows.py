"""The rows of a draft model: one sequence each, in the target's and the draft's tokenization."""

from collections.abc import Sequence
from typing import Any

from uag.adapters import TokenizerAdapter
from uag.drafting.models.cross_row import CrossRow
from uag.drafting.models.opening import is_encoder_decoder
from uag.drafting.models.shared_row import SharedRow
from uag.projection import Projection, TokenizerPair

Row = CrossRow | SharedRow
"""Both have the same methods: `next_target` proposes a token, `commit` makes it a candidate, and `accept` replaces the
rejected candidates; `rewindow` shortens the context, and `queued_ids` and `adopt` allow sharing it."""

_POSITION_MARGIN = 64
"""Positions of the draft's context that are reserved for one round. Increase so that long rounds are not cut short;
decrease to keep more context."""


class RowMaker:
    """Creates a pair's rows: cross-tokenizer rows, or rows of shared ids if the tokenizers are equal.

    Args:
        model: the draft model.
        pair: the tokenizers; None if neither is known and the models are assumed to share their ids.
    """

    def __init__(self, model: Any, pair: TokenizerPair | None) -> None:
        self.projection: Projection | None = None
        if pair is not None and not pair.maps.is_identity:
            self.projection = Projection(pair)
        self.strategy = "cross-tokenizer" if self.projection else "shared-vocabulary"
        self.prefix_ids = prefix_ids(model, None if pair is None else pair.draft)

    def make(self, prompt_ids: Sequence[int]) -> Row:
        """Return the row of a sequence with the target ids `prompt_ids`; nothing is fed yet."""
        if self.projection is None:
            return SharedRow(prompt_ids, self.prefix_ids)
        row = CrossRow(self.projection, prompt_ids, self.prefix_ids)
        return row if row.forced else CrossRow(self.projection, prompt_ids, fallback_prefix(self.projection.draft))


def prefix_ids(model: Any, draft: TokenizerAdapter | None) -> tuple[int, ...]:
    """Return the draft ids that every sequence of the draft starts with.

    A causal draft starts with the tokens that its tokenizer adds, usually BOS; see `fallback_prefix` if it adds none.
    """
    if is_encoder_decoder(model):
        config = model.generation_config
        start = config.decoder_start_token_id
        return (start if isinstance(start, int) else config.bos_token_id or 0,)
    if draft is None:
        bos = model.generation_config.bos_token_id
        return (bos,) if isinstance(bos, int) else (0,)
    return draft.prefix_ids


def fallback_prefix(draft: TokenizerAdapter) -> tuple[int, ...]:
    """Return one token to condition on, for an empty prompt and a tokenizer that adds none."""
    controls = draft.controls
    known = (controls.bos_id, controls.eos_id, controls.pad_id, controls.unk_id)
    return (next((token_id for token_id in known if token_id is not None), 0),)


def fit_context(row: Row, max_positions: int) -> None:
    """Shorten a row's context to its last tokens if another round would exceed the draft's positions."""
    margin = min(_POSITION_MARGIN, max_positions // 4)
    if len(row.path) + row.num_to_feed() + margin > max_positions:
        row.rewindow(max_positions // 2)
