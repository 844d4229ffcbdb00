"""transformers' logits processors, grouped by what they depend on."""

from collections.abc import Iterable
from typing import Any

from transformers.generation import logits_process as known

POSITION_FREE = (
    known.TemperatureLogitsWarper,
    known.TopKLogitsWarper,
    known.TopPLogitsWarper,
    known.TopHLogitsWarper,
    known.MinPLogitsWarper,
    known.TypicalLogitsWarper,
    known.EpsilonLogitsWarper,
    known.EtaLogitsWarper,
    known.InfNanRemoveLogitsProcessor,
    known.LogitNormalization,
    known.SuppressTokensLogitsProcessor,
)

ROW_WISE = (
    *POSITION_FREE,
    known.RepetitionPenaltyLogitsProcessor,
    known.NoRepeatNGramLogitsProcessor,
    known.MinLengthLogitsProcessor,
    known.MinNewTokensLengthLogitsProcessor,
    known.SequenceBiasLogitsProcessor,
    known.NoBadWordsLogitsProcessor,
    known.ForcedBOSTokenLogitsProcessor,
    known.ForcedEOSTokenLogitsProcessor,
    known.ExponentialDecayLengthPenalty,
    known.SuppressTokensAtBeginLogitsProcessor,
    # Seeds its own generator from the ids at every call.
    known.WatermarkLogitsProcessor,
)

FOLLOWED = {
    known.TemperatureLogitsWarper: ("temperature", "temperature"),
    known.TopKLogitsWarper: ("top_k", "top_k"),
    known.TopPLogitsWarper: ("top_p", "top_p"),
    known.MinPLogitsWarper: ("min_p", "min_p"),
    known.RepetitionPenaltyLogitsProcessor: ("repetition_penalty", "penalty"),
}
"""For each processor, the equivalent option of `Warpers` for the draft, and the attribute that holds its value."""


def unknown_processors(processors: Iterable[Any]) -> list[Any]:
    """Return the processors that may read several rows or keep state, so must see every step in order."""
    return [processor for processor in processors if type(processor) not in ROW_WISE]
