"""The target's own choice of token, and the draft's copy of the rules behind it.

Verification is one rule: a candidate is accepted while it is the token that the target itself selects. Greedy selection
is the argmax; sampling is `argmax(probs / noise)` with the noise of that output step (see `uag.noise`); `uag.rejection`
has a third.

The user's logits processors belong to the target. Those known to be functions of one row may be called for rows apart
(`is_row_wise`), and those that never look at the ids for many positions at once (`is_position_free`). All others are
called as plain decoding calls them: once per output step, left to right, on whole batches in step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from transformers.generation import logits_process as known

from uag.law import Warpers
from uag.noise import Noise
from uag.tree import Proposal

_POSITION_FREE = (
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
_ROW_WISE = (
    *_POSITION_FREE,
    known.RepetitionPenaltyLogitsProcessor,
    known.EncoderRepetitionPenaltyLogitsProcessor,
    known.NoRepeatNGramLogitsProcessor,
    known.EncoderNoRepeatNGramLogitsProcessor,
    known.MinLengthLogitsProcessor,
    known.MinNewTokensLengthLogitsProcessor,
    known.SequenceBiasLogitsProcessor,
    known.NoBadWordsLogitsProcessor,
    known.ForcedBOSTokenLogitsProcessor,
    known.ForcedEOSTokenLogitsProcessor,
    known.ExponentialDecayLengthPenalty,
    known.SuppressTokensAtBeginLogitsProcessor,
    # Seeds a generator of its own from the ids at every call.
    known.WatermarkLogitsProcessor,
)
_PER_ROW_STATE = {
    known.RepetitionPenaltyLogitsProcessor: "prompt_ignore_length",
    known.EncoderRepetitionPenaltyLogitsProcessor: "encoder_input_ids",
    known.EncoderNoRepeatNGramLogitsProcessor: "generated_ngrams",
}
"""What these keep with one entry per row of the batch."""

_FOLLOWED = {
    known.TemperatureLogitsWarper: ("temperature", "temperature"),
    known.TopKLogitsWarper: ("top_k", "top_k"),
    known.TopPLogitsWarper: ("top_p", "top_p"),
    known.MinPLogitsWarper: ("min_p", "min_p"),
    known.RepetitionPenaltyLogitsProcessor: ("repetition_penalty", "penalty"),
}
"""Processor -> the option of `Warpers` that follows it on the draft side, and the name of its value."""


class Choice(Protocol):
    """A rule of selection.

    Attributes:
        is_sequential: positions are looked at one by one, up to the first rejected candidate.
    """

    is_sequential: bool

    def choose(
        self,
        scores: torch.Tensor,
        steps: Sequence[int],
        rows: Sequence[int],
        candidates: Sequence[Proposal | None],
    ) -> torch.Tensor:
        """Select from scores [num, vocab_size].

        Args:
            scores: after the logits processors.
            steps: output step of each line.
            rows: place in the batch of each line.
            candidates: what was proposed for each line, None where nothing was.

        Returns:
            [num] target ids; -1 where the scores are not a law.
        """
        ...


class Greedy:
    """The token of the highest score."""

    is_sequential = False

    def choose(
        self,
        scores: torch.Tensor,
        steps: Sequence[int],  # noqa: ARG002 - the protocol's signature
        rows: Sequence[int],  # noqa: ARG002
        candidates: Sequence[Proposal | None],  # noqa: ARG002
    ) -> torch.Tensor:
        """Select the argmax of each line."""
        return torch.argmax(scores, dim=-1)


class Coupled:
    """Plain sampling's own choice: `argmax(probs / noise)`.

    Args:
        noise: the noise that plain sampling would draw.
    """

    is_sequential = False

    def __init__(self, noise: Noise) -> None:
        self.noise = noise

    def choose(
        self,
        scores: torch.Tensor,
        steps: Sequence[int],
        rows: Sequence[int],
        candidates: Sequence[Proposal | None],  # noqa: ARG002 - the output does not depend on the draft
    ) -> torch.Tensor:
        """Select with the noise of each line's step and row."""
        probs = torch.softmax(scores, dim=-1)
        self.noise.fit(min(steps), probs.shape[-1], probs.dtype)
        noise = self._gather(steps, rows)
        if noise.device != probs.device or noise.dtype != probs.dtype:
            probs = probs.to(noise.device, noise.dtype)
        ratios = probs.div_(noise)
        chosen = torch.argmax(ratios, dim=-1)
        # argmax stops at a NaN, where plain sampling raises
        is_law = ~ratios.gather(-1, chosen[:, None])[:, 0].isnan()
        return torch.where(is_law, chosen, -1).to(scores.device)

    def _gather(self, steps: Sequence[int], rows: Sequence[int]) -> torch.Tensor:
        whole = self.noise.at(steps[0])
        if len(set(steps)) == 1 and list(rows) == list(range(whole.shape[0])):
            return whole
        return torch.stack([self.noise.at(step)[row] for step, row in zip(steps, rows, strict=True)])


class Selector:
    """Selects tokens from target logits.

    Args:
        processors: the prepared logits processors of the call.
        choice: the rule of selection.
        batch_size: rows of the whole batch.

    Attributes:
        is_position_free: every processor is a function of the scores alone.
        unknown: names of the processors that force steps in order.
    """

    def __init__(self, processors: Sequence[Any], choice: Choice, batch_size: int = 1) -> None:
        self.processors = processors
        self.choice = choice
        self.batch_size = batch_size
        self.unknown = [type(p).__name__ for p in processors if type(p) not in _ROW_WISE]
        self.is_position_free = all(type(p) in _POSITION_FREE for p in processors)
        self._views: dict[int, list[Any]] = {}

    def select_block(
        self,
        logits: torch.Tensor,
        steps: Sequence[int],
        rows: Sequence[int],
        ids: Callable[[int, int], torch.Tensor],
        candidates: Sequence[Sequence[Proposal]],
    ) -> list[list[int]]:
        """Select the tokens of a block, each row up to its first rejected candidate at least.

        Args:
            logits: [num_rows, width, vocab_size] float32; positions behind a row's candidates mean nothing.
            steps: output step of each row's first position.
            rows: each row's place in the batch.
            ids: (line, position) -> [1, length] ids before that position.
            candidates: each row's candidates.

        Returns:
            Per row the selected ids; a row may end after its first mismatch.
        """
        if self.is_position_free and not self.choice.is_sequential:
            return self._select_at_once(logits, steps, rows, candidates)
        selected: list[list[int]] = []
        for line, proposals in enumerate(candidates):
            processors = self._view(rows[line])
            chosen: list[int] = []
            for position, proposal in enumerate([*proposals, None]):
                scores = logits[line, position][None]
                for processor in processors:
                    scores = processor(ids(line, position), scores)
                token = self.choice.choose(scores, [steps[line] + position], [rows[line]], [proposal])
                chosen.append(int(token.item()))
                if proposal is not None and chosen[-1] != proposal.target_id:
                    break
            selected.append(chosen)
        return selected

    def _view(self, row: int) -> list[Any]:
        """Return the processors as they act on one row of the batch."""
        if self.batch_size == 1:
            return list(self.processors)
        if row not in self._views:
            self._views[row] = [_of_row(processor, row, self.batch_size) for processor in self.processors]
        return self._views[row]

    def _select_at_once(
        self,
        logits: torch.Tensor,
        steps: Sequence[int],
        rows: Sequence[int],
        candidates: Sequence[Sequence[Proposal]],
    ) -> list[list[int]]:
        width = logits.shape[1]
        widths = [len(proposals) + 1 for proposals in candidates]
        flat = logits.reshape(-1, logits.shape[-1])
        if any(size != width for size in widths):
            wanted = [line * width + position for line, size in enumerate(widths) for position in range(size)]
            flat = flat[torch.tensor(wanted, device=flat.device)]
        no_ids = torch.empty((flat.shape[0], 0), dtype=torch.long, device=flat.device)
        for processor in self.processors:
            flat = processor(no_ids, flat)
        places = [(steps[line] + position, rows[line]) for line, size in enumerate(widths) for position in range(size)]
        proposals = [proposal for line in candidates for proposal in (*line, None)]
        chosen = self.choice.choose(flat, [s for s, _ in places], [r for _, r in places], proposals).tolist()
        selected, start = [], 0
        for size in widths:
            selected.append(chosen[start : start + size])
            start += size
        return selected


def _of_row(processor: Any, row: int, batch_size: int) -> Any:
    """Return a processor that acts on one row as this one does on that row of a batch."""
    name = _PER_ROW_STATE.get(type(processor))
    kept = getattr(processor, name, None) if name is not None else None
    if name is None or kept is None or isinstance(kept, int):
        return processor
    view = copy.copy(processor)
    source = row * len(kept) // batch_size
    setattr(view, name, kept[source : source + 1])
    if hasattr(view, "batch_size"):
        view.batch_size = 1
    return view


class DraftRules:
    """What the draft follows of the target's processors: the stateless ones that it can follow on its side.

    Args:
        processors: the prepared logits processors of the call.
    """

    def __init__(self, processors: Sequence[Any]) -> None:
        values: dict[str, Any] = {}
        banned: set[int] = set()
        self._late: list[tuple[int, frozenset[int]]] = []
        for processor in processors:
            kind = type(processor)
            if kind in _FOLLOWED:
                option, name = _FOLLOWED[kind]
                values[option] = getattr(processor, name)
            elif kind is known.SuppressTokensLogitsProcessor:
                banned.update(int(i) for i in torch.as_tensor(processor.suppress_tokens).flatten().tolist())
            elif kind is known.NoBadWordsLogitsProcessor:
                banned.update(int(word[0]) for word in processor.bad_word_ids if len(word) == 1)
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
