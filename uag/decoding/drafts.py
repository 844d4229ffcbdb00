"""The drafting side of one call: asks the drafter, shares its candidates with other ranks, and records the outcome."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property

from uag.decoding.call import Call, Candidates, Outcome
from uag.decoding.rows import Rows
from uag.decoding.target import Target
from uag.drafting import Ask, Drafter
from uag.hf import blocks
from uag.hf.weights import num_bytes
from uag.lookahead import Lookahead, Round, clock
from uag.projection import Scoring
from uag.proposal import Proposal
from uag.sampling import Choice, DraftRules, kept_generators
from uag.stats import Stats


@dataclass
class Drafts:
    """Connects a drafter to the loop. `choice` is the target's selection rule, which drafts follow."""

    call: Call
    drafter: Drafter
    lookahead: Lookahead
    rows: Rows
    target: Target
    choice: Choice
    stats: Stats

    def __post_init__(self) -> None:
        self._start_time = time.perf_counter()
        self._rules = DraftRules(self.call.logits_processor)
        self._uncounted_id = blocks.uncounted_id(self.call.model)
        self._all_rows = list(range(self.rows.batch_size))
        self._draft_s = self._prefill_s = 0.0
        self._num_passes: int | None = None
        self._before = replace(self.drafter.counts)
        self.stats.strategy = self.drafter.strategy

    @cached_property
    def _prompt_ids(self) -> list[frozenset[int]]:
        return [frozenset(ids) for ids in self.call.input_ids.tolist()]

    def start(self) -> None:
        call, rows = self.call, self.rows
        mask = call.model_kwargs.get("attention_mask")
        prompts = call.input_ids.tolist()
        if mask is not None and not self.target.is_encoder_decoder and mask.shape == call.input_ids.shape:
            prompts = [ids[keep].tolist() for ids, keep in zip(call.input_ids, mask.bool(), strict=True)]
        sources = None
        if call.source_ids is not None and not call.source_ids.is_floating_point():
            texts = [[i for i in ids if i != rows.pad_id] for ids in call.source_ids.tolist()]
            sources = [ids for ids in texts for _ in range(rows.batch_size // len(texts))]
        temperature = f"@{self._rules.warpers.temperature:.1f}" if call.generation_config.do_sample else ""
        self.lookahead.begin(
            rows.batch_size,
            f"{self.choice.mode}{temperature}",
            rows.prompt_length if self.drafter.reads_prompts else 0,
            rows.budget(0) + 1,
            self.drafter.counts.num_bytes / max(num_bytes(call.model), 1),
            call.fixed_width,
        )
        with self._kept_generators():
            self.drafter.start(prompts, sources)

    def _kept_generators(self) -> AbstractContextManager[None]:
        """Prevent a drafter that draws random numbers from advancing the caller's generators."""
        return kept_generators(self.call.input_ids.device) if self.drafter.draws else nullcontext()

    def propose(self, active: Sequence[int]) -> Candidates:
        """Return candidates for the active rows; all ranks get those of rank 0."""
        self.choice.release(self.rows.num_passed())
        ranks = self.call.ranks
        by_row = self._ask(active) if ranks.decides else []
        shared = ranks.broadcast([[(p.target_id, p.source) for p in proposals] for proposals in by_row])
        if not ranks.decides:
            by_row = [[Proposal(i, 1.0, source=source) for i, source in proposals] for proposals in shared]
        return Candidates(active, by_row)

    def propose_evenly(self) -> Candidates:
        """Return the same number of candidates for every row: the shortest row's. Rows that have ended get padding."""
        rows, by_row = self.rows, self.propose(self._all_rows).by_row
        size = min((len(line) for row, line in enumerate(by_row) if not rows.is_padded(row)), default=0)
        padding = [Proposal(rows.pad_id or 0, 1.0)] * size
        return Candidates(self._all_rows, [padding if rows.is_padded(i) else by_row[i][:size] for i in self._all_rows])

    def _ask(self, active: Sequence[int]) -> list[list[Proposal]]:
        limit = self.lookahead.plan(len(active))
        if not (limit or self.drafter.has_free):
            self._draft_s, self._prefill_s, self._num_passes = 0.0, 0.0, None
            return [[] for _ in active]
        start_time, counts = clock.now(), self.drafter.counts
        prefill_s, compile_s, num_passes = counts.prefill_s, counts.compile_s, counts.num_forwards
        budgets = [0] * self.rows.batch_size
        for row in active:
            if self.rows.all[row].outputs[-1:] != [self._uncounted_id]:
                budgets[row] = max(min(self.rows.budget(row), self.target.budget(self.rows.length(row))), 0)
        request = (budgets, limit, self.lookahead, self._scoring)
        eos_ids, needs_normalizer = self.rows.stopping.eos_ids, self._rules.needs_normalizer
        ask = Ask(*request, eos_ids, needs_normalizer, self.call.vocab_size, verified=self.target.verified)
        with self._kept_generators():
            by_row = ask.put_to(self.drafter)
        for target_id in ask.dropped_ids:
            self.stats.fall_back(
                f"{self.drafter.strategy!r} proposed the id {target_id}, which the target's head lacks; such "
                "candidates were dropped"
            )
        seconds, counts = clock.now() - start_time, self.drafter.counts
        self._prefill_s = counts.prefill_s - prefill_s
        self._draft_s = seconds - self._prefill_s - (counts.compile_s - compile_s)
        is_counted = counts.num_forwards and not self._prefill_s
        self._num_passes = max(counts.num_forwards - num_passes, 0) if is_counted else None
        self.stats.draft_s += seconds
        return [self._checked(by_row[row]) for row in active]

    def _checked(self, proposals: list[Proposal]) -> list[Proposal]:
        """Name every candidate's source, and drop candidates after one that does not advance the target's positions."""
        proposals = [p if p.source else replace(p, source=self.drafter.source) for p in proposals]
        ends = (index + 1 for index, p in enumerate(proposals) if p.target_id == self._uncounted_id)
        return proposals[: next(ends, None)]

    def _scoring(self, row: int, num_before: int) -> Scoring:
        outputs = self.rows.all[row].outputs
        step = len(outputs) + num_before
        warpers = self._rules.at(self.rows.prompt_length + step)
        noise, size = self.choice.noise_at(step, row), self.call.vocab_size
        if noise is not None:
            size = min(size, noise.size)  # a processor may return fewer scores than the head
        scoring = Scoring(size, warpers, noise, uniform=self.choice.uniform())
        if warpers.repetition_penalty != 1.0:
            scoring.seen = self._prompt_ids[row].union(outputs)
        return scoring

    def learn(self, outcome: Outcome) -> None:
        """Count a round, update the lookahead, and pass the target's output to the drafter."""
        if outcome.is_prefill:
            self.stats.first_token_s = time.perf_counter() - self._start_time
            for progress in self.rows.all:
                progress.num_counted = 1
            if self.call.ranks.decides:
                self.lookahead.learn_prefill(self.target.last_s)
        else:
            self._count(outcome)
        results = zip(outcome.candidates.rows, outcome.num_accepted, outcome.num_written, strict=True)
        with self._kept_generators():
            for row, num_accepted, num_written in results:
                if not self.rows.is_done(row):
                    self.drafter.accept(row, num_accepted, self.rows.all[row].outputs[-num_written:])

    def _count(self, outcome: Outcome) -> None:
        candidates, drafted = outcome.candidates, []
        for row, proposals, num_accepted in zip(candidates.rows, candidates.by_row, outcome.num_accepted, strict=True):
            progress = self.rows.all[row]
            new_sources = progress.sources[progress.num_counted : progress.end or None]
            if new_sources:
                before, progress.num_counted = progress.num_counted, progress.num_counted + len(new_sources)
                progress.rounds.append(([p.source for p in proposals], before, progress.num_counted))
            elif self.rows.stopping.has_eos:
                continue  # the row had ended: its candidates are padding
            if not (proposals and proposals[0].is_free):  # free candidates are no evidence about the draft
                drafted.append((proposals, num_accepted))
        self.stats.num_rounds += 1
        if not self.target.has_compiled:
            self.stats.pass_seconds.setdefault(self.target.last_width, []).append(self.target.last_s)
        if self.call.ranks.decides:
            num_candidates, target_s = candidates.width - 1, self.target.last_s
            times = self._draft_s, target_s, drafted, self._prefill_s, self.target.has_compiled
            num_tokens = sum(outcome.num_written) / len(outcome.num_written)
            done = Round(num_candidates, *times, num_tokens=num_tokens, num_draft_passes=self._num_passes)
            self.lookahead.learn_round(done)

    def finish(self) -> None:
        self.drafter.finish([row.outputs[: row.end or None] for row in self.rows.all])

    def close(self) -> None:
        """End the drafter's call, and count its passes."""
        try:
            with self._kept_generators():
                self.drafter.release()
        finally:
            stats, before, after = self.stats, self._before, self.drafter.counts
            stats.num_draft_forwards = after.num_forwards - before.num_forwards
            stats.draft_forward_s = after.forward_s - before.forward_s
            stats.recording_s = after.compile_s - before.compile_s
            stats.num_draft_tokens = after.num_tokens - before.num_tokens
            stats.draft_passes = after.passes
            for reason in after.fall_backs:
                stats.fall_back(reason)
            if self.call.ranks.decides and stats.strategy != "plain":
                stats.not_drafting = self.lookahead.reason()
                if stats.not_drafting and after.advice:
                    stats.not_drafting += f"; {after.advice}"
                has_candidates = any(sources for row in self.rows.all for sources, *_ in row.rounds)
                if not stats.not_drafting and stats.num_rounds and not has_candidates:
                    stats.not_drafting = "no source found candidates that were worth verifying"
