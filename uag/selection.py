"""The target's own choice of token, and the draft's copy of the rules behind it.

Verification is one rule: a candidate is accepted while it is the token that the target itself selects. Greedy selection
is the argmax; sampling is `argmax(probs / noise)` with the noise of that output step (see `uag.noise`).

The user's logits processors belong to the target. Those known to be functions of one row may be called for rows apart
(`is_row_wise`), and those that never look at the ids for many positions at once (`is_position_free`). All others are
called as plain decoding calls them: once per output step, left to right, on whole batches in step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.generation import logits_process as known

from uag.law import Warpers
from uag.noise import Noise

_POSITION_FREE = (
    known.TemperatureLogitsWarper,
    known.TopKLogitsWarper,
    known.TopPLogitsWarper,
    known.MinPLogitsWarper,
    known.TypicalLogitsWarper,
    known.EpsilonLogitsWarper,
    known.EtaLogitsWarper,
    known.InfNanRemoveLogitsProcessor,
    known.LogitNormalization,
    known.SuppressTokensLogitsProcessor,
)
_ROW_WISE = (
    *_POSITION_FREE,
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
)


class Selector:
    """Selects tokens from target logits.

    Args:
        processors: the prepared logits processors of the call.
        noise: the sampling noise; None for greedy decoding.

    Attributes:
        is_row_wise: every processor is a function of one row's ids and scores.
        is_position_free: every processor is a function of the scores alone.
        unknown: names of the processors that force steps in order.
    """

    def __init__(self, processors: Sequence[Any], noise: Noise | None = None) -> None:
        self.processors = processors
        self.noise = noise
        self.unknown = [type(p).__name__ for p in processors if type(p) not in _ROW_WISE]
        self.is_row_wise = not self.unknown
        self.is_position_free = all(type(p) in _POSITION_FREE for p in processors)

    def process(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Return the scores [num_rows, vocab_size] of logits of the same shape, given ids [num_rows, length]."""
        scores = logits
        for processor in self.processors:
            scores = processor(ids, scores)
        return scores

    def choose(self, scores: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        """Select from scores [num, vocab_size] with noise of the same shape; returns [num] target ids."""
        if noise is None:
            return torch.argmax(scores, dim=-1)
        probs = torch.nn.functional.softmax(scores, dim=-1)
        return torch.argmax(probs / noise, dim=-1)

    def select_block(
        self,
        logits: torch.Tensor,
        widths: Sequence[int],
        steps: Sequence[int],
        noise_rows: Sequence[int],
        ids: Callable[[int, int], torch.Tensor],
        candidates: Sequence[Sequence[int]],
    ) -> list[list[int]]:
        """Select the tokens of a block, each row up to its first rejected candidate at least.

        Args:
            logits: [num_rows, width, vocab_size] float32.
            widths: positions of each row that mean anything: its candidates + 1.
            steps: output step of each row's first position.
            noise_rows: each row's place in the batch.
            ids: (row, position) -> [1, length] ids before that position.
            candidates: each row's candidates.

        Returns:
            Per row the selected ids; a row may end after its first mismatch.
        """
        if self.is_position_free:
            return self._select_at_once(logits, widths, steps, noise_rows)
        selected: list[list[int]] = []
        for row, width in enumerate(widths):
            chosen: list[int] = []
            for position in range(width):
                scores = self.process(ids(row, position), logits[row, position][None])
                chosen.append(int(self.choose(scores, self._noise(steps[row] + position, noise_rows[row])).item()))
                if position < width - 1 and chosen[-1] != candidates[row][position]:
                    break
            selected.append(chosen)
        return selected

    def _select_at_once(
        self, logits: torch.Tensor, widths: Sequence[int], steps: Sequence[int], noise_rows: Sequence[int]
    ) -> list[list[int]]:
        width = logits.shape[1]
        flat = logits.reshape(-1, logits.shape[-1])
        if not self.processors and self.noise is None:
            table: list[list[int]] = torch.argmax(flat, dim=-1).view(-1, width).tolist()
            return [line[:size] for line, size in zip(table, widths, strict=True)]
        uneven = any(size != width for size in widths)
        if uneven:
            wanted = [row * width + position for row, size in enumerate(widths) for position in range(size)]
            flat = flat[torch.tensor(wanted, device=flat.device)]
        scores = self.process(torch.empty((flat.shape[0], 0), dtype=torch.long, device=flat.device), flat)
        noise = None
        if self.noise is not None:
            parts = [
                self.noise.at(steps[row] + position)[noise_rows[row]]
                for row, size in enumerate(widths)
                for position in range(size)
            ]
            noise = torch.stack(parts)
        chosen = self.choose(scores, noise).tolist()
        selected, start = [], 0
        for size in widths:
            selected.append(chosen[start : start + size])
            start += size
        return selected

    def _noise(self, step: int, row: int) -> torch.Tensor | None:
        return None if self.noise is None else self.noise.at(step)[row][None]


class DraftRules:
    """What the draft follows of the target's processors: the stateless ones that it can follow on its side.

    Args:
        processors: the prepared logits processors of the call.
    """

    def __init__(self, processors: Sequence[Any]) -> None:
        values: dict[str, Any] = {}
        banned: set[int] = set()
        self._late: list[tuple[int, frozenset[int]]] = []
        self.allowed_fn: Callable[[int, torch.Tensor], list[int]] | None = None
        for processor in processors:
            kind = type(processor)
            if kind is known.TemperatureLogitsWarper:
                values["temperature"] = float(processor.temperature)
            elif kind is known.TopKLogitsWarper:
                values["top_k"] = int(processor.top_k)
            elif kind is known.TopPLogitsWarper:
                values["top_p"] = float(processor.top_p)
            elif kind is known.MinPLogitsWarper:
                values["min_p"] = float(processor.min_p)
            elif kind is known.RepetitionPenaltyLogitsProcessor:
                values["repetition_penalty"] = float(processor.penalty)
            elif kind is known.SuppressTokensLogitsProcessor:
                banned.update(int(i) for i in torch.as_tensor(processor.suppress_tokens).flatten().tolist())
            elif kind is known.NoBadWordsLogitsProcessor:
                banned.update(int(word[0]) for word in processor.bad_word_ids if len(word) == 1)
            elif kind is known.PrefixConstrainedLogitsProcessor:
                self.allowed_fn = processor._prefix_allowed_tokens_fn
            elif kind is known.MinLengthLogitsProcessor:
                self._late.append((int(processor.min_length), _ids(processor.eos_token_id)))
            elif kind is known.MinNewTokensLengthLogitsProcessor:
                length = int(processor.prompt_length_to_skip) + int(processor.min_new_tokens)
                self._late.append((length, _ids(processor.eos_token_id)))
        self.warpers = Warpers(banned=frozenset(banned), **values)
        self._early: dict[frozenset[int], Warpers] = {}
        self._values = values

    @property
    def needs_normalizer(self) -> bool:
        """Whether logits, not masses alone, are needed."""
        return self.warpers.repetition_penalty != 1.0

    def at(self, length: int) -> Warpers:
        """Return the rules for the token behind `length` ids of a row, prompt included."""
        early = frozenset().union(*(ids for bound, ids in self._late if length < bound))
        if not early:
            return self.warpers
        if early not in self._early:
            self._early[early] = Warpers(banned=self.warpers.banned | early, **self._values)
        return self._early[early]


def _ids(value: Any) -> frozenset[int]:
    return frozenset(int(i) for i in torch.as_tensor(value).flatten().tolist())
