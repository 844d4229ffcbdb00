"""transformers' logits processors, grouped by what they depend on."""

from collections.abc import Callable, Iterable
from typing import Any

from transformers.generation import logits_process as known

POSITION_FREE = (
    known.TemperatureLogitsWarper, known.TopKLogitsWarper, known.TopPLogitsWarper,
    known.MinPLogitsWarper, known.TypicalLogitsWarper, known.EpsilonLogitsWarper, known.EtaLogitsWarper,
    known.InfNanRemoveLogitsProcessor, known.LogitNormalization, known.SuppressTokensLogitsProcessor,
)  # fmt: skip

# Top-H raises an error for the NaN that may follow a rejected candidate, so it must not see it.
# The watermark seeds its own generator from the ids at every call.
ROW_WISE = (
    *POSITION_FREE, known.TopHLogitsWarper, known.RepetitionPenaltyLogitsProcessor, known.NoRepeatNGramLogitsProcessor,
    known.MinLengthLogitsProcessor, known.MinNewTokensLengthLogitsProcessor, known.SequenceBiasLogitsProcessor,
    known.NoBadWordsLogitsProcessor, known.ForcedBOSTokenLogitsProcessor, known.ForcedEOSTokenLogitsProcessor,
    known.ExponentialDecayLengthPenalty, known.SuppressTokensAtBeginLogitsProcessor, known.WatermarkLogitsProcessor,
)  # fmt: skip

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


def prefix_constraint(processors: Iterable[Any]) -> Callable[..., Any] | None:
    """Return the call's `prefix_allowed_tokens_fn`, or None if there is none or other unknown code beside it."""
    unknown = unknown_processors(processors)
    if [type(processor) for processor in unknown] != [known.PrefixConstrainedLogitsProcessor]:
        return None
    function: Callable[..., Any] | None = getattr(unknown[0], "_prefix_allowed_tokens_fn", None)
    return function


def with_prefix_function(processors: Iterable[Any], function: Callable[..., Any]) -> known.LogitsProcessorList:
    """Return a copy of the processors of a call without beams, with another `prefix_allowed_tokens_fn`."""
    kind = known.PrefixConstrainedLogitsProcessor
    return known.LogitsProcessorList(kind(function, 1) if type(each) is kind else each for each in processors)
