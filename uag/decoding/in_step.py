"""Rows that go in step: plain decoding's own steps over a block, for whatever looks at the whole batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from uag.decoding.state import LoopState, check_selected
from uag.hf.caches import windows
from uag.hf.passes import streams_before_criteria
from uag.proposal import Proposal


class StepRounds(LoopState):
    """Rounds in which every processor, criterion and streamer is called as plain decoding calls it."""

    def _run_in_step(self, logits: torch.Tensor, proposals: list[list[Proposal]]) -> None:
        """Advance all rows together: what every row accepts, and one token more."""
        is_prefill = not proposals[0]
        unfinished = torch.ones(self.batch_size, dtype=torch.long, device=self.device)
        while True:
            width = len(proposals[0]) + 1
            before = len(self.rows[0].outputs)
            num_matched = self._step_through(logits, proposals, unfinished)
            num_written = len(self.rows[0].outputs) - before
            if is_prefill:
                self.target.advance(1)
            else:
                self.target.keep(num_written, width)
                matched = [min(num_matched, len(candidates)) for candidates in proposals]
                self._learn(width, range(self.batch_size), proposals, matched, before == 0)
            if self.records is not None:
                seen = windows(self.target.cache)
                self.records.add_states(
                    self.target.outputs, self.prompt_length + before, num_written, width, before == 0, seen
                )
            if not bool(unfinished.any()):
                return
            is_prefill = False
            if self.drafter is not None:
                for index, row in enumerate(self.rows):
                    self.drafter.accept(index, min(num_matched, len(proposals[index])), row.outputs[before:])
            proposals = self._even(self._draft(range(self.batch_size)))
            logits = self._verify_even(proposals)
            self._release_noise()

    def _step_through(
        self, logits: torch.Tensor, proposals: Sequence[Sequence[Proposal]], unfinished: torch.Tensor
    ) -> int:
        """Take plain decoding's steps over a block; returns how many candidates every row accepted.

        `unfinished` ([batch_size] int64) is updated in place.
        """
        self._grow(self.prompt_length + len(self.rows[0].outputs) + logits.shape[1])
        for position in range(logits.shape[1]):
            tokens = self._select_step(logits[:, position], position, proposals)
            if self.stopping.has_eos:
                tokens = tokens * unfinished + (self.pad_id or 0) * (1 - unfinished)
            are_matches = self._append_step(tokens, proposals, position)
            self._stop_step(tokens, unfinished)
            self._note_time()
            if not bool(unfinished.any()) or not are_matches:
                return position + are_matches
        return logits.shape[1] - 1

    @property
    def _is_careful(self) -> bool:
        """Whether somebody unknown is called, who may keep what it is shown or draw from the generator."""
        return bool(self.selector.unknown or self.stopping.unknown)

    def _select_step(
        self, logits: torch.Tensor, position: int, proposals: Sequence[Sequence[Proposal]]
    ) -> torch.Tensor:
        """Process one position's logits [batch_size, vocab_size] and select; returns [batch_size] target ids."""
        step, careful = len(self.rows[0].outputs), self._is_careful
        ids = self.buffer[:, : self.prompt_length + step]
        # Not the block's own memory: a processor may write into its scores, and plain decoding records that.
        raw = logits.clone() if careful or self.records is not None else logits
        noise = self.noise if careful else None
        if noise is not None:
            noise.rewind(step)  # the generator as plain decoding would show it here
        scores = self.request.logits_processor(ids.clone() if careful else ids, raw)
        if noise is not None:
            noise.redraw(step)
        if self.records is not None:
            self.records.add_scores(scores, raw)
        offered = [line[position] if position < len(line) else None for line in proposals]
        tokens = self.selector.choice.choose(scores, [step] * self.batch_size, range(self.batch_size), offered)
        tokens = self.ranks.share(tokens)
        for token_id in tokens.tolist():
            check_selected(token_id)
        return tokens

    def _stop_step(self, tokens: torch.Tensor, unfinished: torch.Tensor) -> None:
        """Stream one step's tokens and ask the criteria, in plain decoding's order."""
        num_steps, careful, streamer = len(self.rows[0].outputs), self._is_careful, self.request.streamer
        if streamer is not None and streams_before_criteria():
            streamer.put(tokens.cpu())
        noise = self.noise if careful else None
        if noise is not None:
            noise.rewind(num_steps)
        ids = self.buffer[:, : self.prompt_length + num_steps]
        done = self.stopping.call(ids.clone() if careful else ids, self.records.scores if self.records else None)
        if noise is not None:
            noise.redraw(num_steps)
        unfinished &= (~self.ranks.share(done)).long().to(unfinished.device)
        if streamer is not None and not streams_before_criteria():
            streamer.put(tokens.cpu())
        for row, is_going in zip(self.rows, unfinished.tolist(), strict=True):
            if not is_going:
                row.end = row.end or num_steps

    def _append_step(self, tokens: torch.Tensor, proposals: Sequence[Sequence[Proposal]], position: int) -> bool:
        """Append one token per row; returns whether every row's candidate at this position was accepted."""
        self.buffer[:, self.prompt_length + len(self.rows[0].outputs)] = tokens
        are_matches = position < len(proposals[0])
        for row, token_id, candidates in zip(self.rows, tokens.tolist(), proposals, strict=True):
            is_match = position < len(candidates) and candidates[position].target_id == token_id
            row.outputs.append(token_id)
            row.origins.append(is_match and not row.is_finished)
            are_matches = are_matches and is_match
        return are_matches
