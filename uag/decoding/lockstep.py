"""Rows that advance in lockstep: plain decoding's steps over a block, for code that reads the whole batch."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from uag.decoding.call import Call, Candidates, Outcome
from uag.decoding.rows import Rows, check_selected
from uag.hf import passes
from uag.hf.cache.caches import CACHE
from uag.proposal import Proposal
from uag.sampling import Selector


@dataclass
class Lockstep:
    """Accepts candidates that all rows accept, and calls processors, criteria and streamers as plain decoding does."""

    call: Call
    rows: Rows
    selector: Selector

    def __post_init__(self) -> None:
        config = self.call.generation_config
        is_recorded = config.return_dict_in_generate  # one entry per output step, not copied, as in plain decoding
        self._unfinished = torch.ones(self.rows.batch_size, dtype=torch.long, device=self.rows.buffer.device)
        self._scores: tuple[torch.Tensor, ...] | None = () if is_recorded and config.output_scores else None
        self._logits: tuple[torch.Tensor, ...] | None = () if is_recorded and config.output_logits else None

    def accept(self, logits: torch.Tensor, candidates: Candidates) -> Outcome:
        """Run plain decoding's steps over a block, up to the first rejected candidate of any row."""
        rows = self.rows
        before = len(rows.all[0].outputs)
        num_accepted = 0
        for position in range(logits.shape[1]):
            offered = [line[position] if position < len(line) else None for line in candidates.by_row]
            tokens = self._select(logits[:, position], offered)
            rows.buffer[:, rows.length(0)] = tokens
            chosen = zip(range(rows.batch_size), tokens.tolist(), offered, strict=True)
            are_accepted = all([rows.append(*of_row) for of_row in chosen])
            self._stop(tokens)
            num_accepted += are_accepted
            if not are_accepted or not bool(self._unfinished.any()):
                break
        num_written = len(rows.all[0].outputs) - before
        counts = [num_written] * rows.batch_size, [min(num_accepted, len(of_row)) for of_row in candidates.by_row]
        return Outcome(candidates, *counts, is_prefill=before == 0)

    def stream(self) -> None:
        """Do nothing: `accept` has already streamed every step."""

    def output(self, sequences: torch.Tensor, cache: Any) -> Any:
        """Return what plain decoding returns with `return_dict_in_generate`."""
        is_encoder_decoder = self.call.model.config.is_encoder_decoder
        kind = GenerateEncoderDecoderOutput if is_encoder_decoder else GenerateDecoderOnlyOutput
        return kind(sequences=sequences, scores=self._scores, logits=self._logits, **{CACHE: cache})

    def _select(self, logits: torch.Tensor, offered: list[Proposal | None]) -> torch.Tensor:
        """Process one position's logits [batch_size, vocab_size] and return the selected target ids [batch_size]."""
        rows, step, choice = self.rows, len(self.rows.all[0].outputs), self.selector.choice
        ids = rows.buffer[:, : rows.prompt_length + step]
        raw = logits.clone()  # processors may write into their scores or keep them, and may draw from the generator
        with choice.exposed(step):
            scores = self.call.logits_processor(ids.clone(), raw)
        if self._scores is not None:
            self._scores += (scores,)
        if self._logits is not None:
            self._logits += (raw,)
        tokens = choice.choose(scores, [(step, row) for row in range(rows.batch_size)], offered)
        tokens = self.call.ranks.broadcast_tensor(tokens)
        for token_id in tokens.tolist():
            check_selected(token_id)
        if rows.stopping.has_eos:
            tokens = tokens * self._unfinished + (rows.pad_id or 0) * (1 - self._unfinished)
        return tokens

    def _stop(self, tokens: torch.Tensor) -> None:
        """Stream one step's tokens and call the criteria, in plain decoding's order."""
        rows, streamer = self.rows, self.call.streamer
        num_steps = len(rows.all[0].outputs)
        if streamer is not None and passes.streams_before_criteria():
            streamer.put(tokens.cpu())
        ids = rows.buffer[:, : rows.prompt_length + num_steps]
        with self.selector.choice.exposed(num_steps):
            done = rows.stopping.criteria(ids.clone(), self._scores)
        self._unfinished &= (~self.call.ranks.broadcast_tensor(done)).long().to(self._unfinished.device)
        if streamer is not None and not passes.streams_before_criteria():
            streamer.put(tokens.cpu())
        for progress, is_active in zip(rows.all, self._unfinished.tolist(), strict=True):
            if not is_active:
                progress.end = progress.end or num_steps
