"""The drafting side of one call: asks the drafter, tells the other ranks, learns what became of it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from uag.decoding.call import Call
from uag.decoding.candidates import Candidates, Outcome
from uag.decoding.rows import Rows
from uag.decoding.target import Target
from uag.drafting import Ask, Drafter
from uag.hf import models
from uag.hf.weights import num_bytes
from uag.lookahead import Lookahead, Round
from uag.products import clock
from uag.projection import Scoring
from uag.proposal import Proposal
from uag.sampling import Choice, DraftRules, kept_generators
from uag.stats import Stats


@dataclass
class Drafts:
    """What the loop knows of drafting; the draft follows `choice`, the target's rule of selection."""

    call: Call
    drafter: Drafter
    lookahead: Lookahead
    rows: Rows
    target: Target
    choice: Choice
    stats: Stats

    def __post_init__(self) -> None:
        self._rules = DraftRules(self.call.logits_processor)
        self._vocab_size = models.head_size(self.call.model)
        self._uncounted_id = models.uncounted_id(self.call.model)
        self._prompt_ids: dict[int, frozenset[int]] = {}
        self._draft_s = self._prefill_s = 0.0
        self._before = replace(self.drafter.counts)
        self.stats.strategy = self.drafter.strategy

    def start(self) -> None:
        """Show the drafter the prompts."""
        call, rows = self.call, self.rows
        mask = call.model_kwargs.get("attention_mask")
        prompts = []
        for row, ids in enumerate(call.input_ids.tolist()):
            if mask is not None and not self.target.is_encoder_decoder and mask.shape[1] == len(ids):
                ids = [i for i, keep in zip(ids, mask[row].tolist(), strict=True) if keep]
            prompts.append(ids)
        sources = None
        if call.source_ids is not None and not call.source_ids.is_floating_point():
            sources = [[i for i in ids if i != rows.pad_id] for ids in call.source_ids.tolist()]
            repeats = rows.batch_size // max(len(sources), 1)
            sources = [ids for ids in sources for _ in range(repeats)]
        mode, temperature = self.choice.mode, self._rules.warpers.temperature
        self.lookahead.begin(
            rows.batch_size,
            f"{mode}@{temperature:.1f}" if call.generation_config.do_sample else mode,
            rows.prompt_length,
            rows.room(0) + 1,
            self.drafter.counts.num_bytes / max(num_bytes(call.model), 1),
        )
        with self._shielded():
            self.drafter.start(prompts, sources)
            if self.call.ranks.decides:
                self._measure_reading()

    def _measure_reading(self) -> None:
        """Let the draft read a little of a long prompt, so that the lookahead knows what reading all of it takes."""
        num_tokens = self.lookahead.num_to_measure()
        seconds = self.drafter.time_reading(num_tokens) if num_tokens else 0.0
        if seconds:
            self.lookahead.learn_reading(num_tokens, seconds)
            self.stats.draft_s += seconds

    def _shielded(self) -> AbstractContextManager[None]:
        """Keep a source that draws random numbers from moving the caller's generators."""
        # The noise of plain sampling sets its generator itself, and draws from it while a source asks for scores.
        return nullcontext() if self.choice.mode == "sample" else kept_generators(self.call.input_ids.device)

    def first(self) -> Candidates:
        """Return candidates for the prompt's own pass if the draft is known to pay, else none."""
        everyone = list(range(self.rows.batch_size))
        if self.call.ranks.tell(self.lookahead.drafts_first()):
            return self.even(self.propose(everyone))
        return self.none()

    def none(self) -> Candidates:
        """Return no candidates for any row."""
        everyone = list(range(self.rows.batch_size))
        return Candidates(everyone, [[] for _ in everyone])

    def propose(self, active: Sequence[int]) -> Candidates:
        """Return candidates for the given rows: rank 0's own, and on the other ranks the same ids."""
        self.choice.release(self.rows.num_passed())
        ranks = self.call.ranks
        lines = self._ask(active) if ranks.decides else []
        offered = Candidates(active, lines, self.drafter.source)
        told = ranks.tell([list(zip((p.target_id for p in line), offered.names(line), strict=True)) for line in lines])
        if lines:
            return offered
        return Candidates(active, [[Proposal(i, 1.0, source=name) for i, name in line] for line in told])

    def even(self, candidates: Candidates) -> Candidates:
        """Cut the candidates of all rows to the shortest row's; rows that have ended follow with padding."""
        rows = self.rows
        lines = list(zip(candidates.rows, candidates.lines, strict=True))
        size = min((len(line) for row, line in lines if not rows.is_padded(row)), default=0)
        filling = [Proposal(rows.pad_id or 0, 1.0)] * size
        cut = [filling if rows.is_padded(row) else line[:size] for row, line in lines]
        return replace(candidates, lines=cut)

    def _ask(self, active: Sequence[int]) -> list[list[Proposal]]:
        began, before = clock(), self.drafter.counts
        prefill_s, compile_s = before.prefill_s, before.compile_s
        rooms = [0] * self.rows.batch_size
        for row in active:
            if self._uncounted_id is None or self._uncounted_id not in self.rows.all[row].outputs[-1:]:
                rooms[row] = max(min(self.rows.room(row), self.target.budget(self.rows.length(row))), 0)
        ask = Ask(
            rooms,
            self.lookahead.plan(len(active)),
            self.lookahead,
            self._scoring,
            self.rows.stopping.eos_ids.union(() if self._uncounted_id is None else (self._uncounted_id,)),
            self._rules.needs_normalizer,
            self._vocab_size,
        )
        with self._shielded():
            lines = ask.put_to(self.drafter)
        for target_id in ask.dropped_ids:
            self.stats.fall_back(
                f"{self.drafter.strategy!r} proposed the id {target_id}, which the target's head lacks: those "
                "candidates were dropped"
            )
        seconds, after = clock() - began, self.drafter.counts
        self._prefill_s = after.prefill_s - prefill_s
        self._draft_s = seconds - self._prefill_s - (after.compile_s - compile_s)
        self.stats.draft_s += seconds
        return [self._up_to_uncounted(lines[row]) for row in active]

    def _up_to_uncounted(self, line: list[Proposal]) -> list[Proposal]:
        """Cut candidates behind one that the target gives no position of its own."""
        ids = [proposal.target_id for proposal in line]
        found = self._uncounted_id
        return line if found is None or found not in ids else line[: ids.index(found) + 1]

    def _scoring(self, row: int, num_before: int) -> Scoring:
        outputs = self.rows.all[row].outputs
        step = len(outputs) + num_before
        warpers = self._rules.at(self.rows.prompt_length + step)
        scoring = Scoring(self._vocab_size, warpers, self.choice.noise_at(step, row), uniform=self.choice.uniform())
        if warpers.repetition_penalty != 1.0:
            if row not in self._prompt_ids:
                self._prompt_ids[row] = frozenset(self.call.input_ids[row].tolist())
            scoring.seen = self._prompt_ids[row].union(outputs)
        return scoring

    def learn(self, outcome: Outcome) -> None:
        """Count a round, let the lookahead learn from it, and tell the drafter what the target wrote."""
        if outcome.is_prefill:
            for progress in self.rows.all:
                progress.num_counted = 1
            if self.call.ranks.decides:
                self.lookahead.learn_prefill(self.target.last_s)
        else:
            self._count(outcome)
        told = zip(outcome.candidates.rows, outcome.num_accepted, outcome.num_written, strict=True)
        with self._shielded():
            for row, num_accepted, num_written in told:
                if not self.rows.is_done(row):
                    self.drafter.accept(row, num_accepted, self.rows.all[row].outputs[-num_written:])

    def _count(self, outcome: Outcome) -> None:
        candidates, drafted = outcome.candidates, []
        for row, line, num_accepted in zip(candidates.rows, candidates.lines, outcome.num_accepted, strict=True):
            progress = self.rows.all[row]
            seen = progress.sources[progress.num_counted : progress.end or None]
            if seen:
                progress.rounds.append((candidates.names(line), progress.num_counted))
                progress.num_counted += len(seen)
            elif self.rows.stopping.has_eos:
                continue  # ended before: padding is no candidate
            if not (line and line[0].is_free):  # free candidates say nothing about the draft
                drafted.append((line, num_accepted))
        self.stats.num_rounds += 1
        if self.call.ranks.decides:
            width, target_s = candidates.width - 1, self.target.last_s
            done = Round(width, self._draft_s, target_s, drafted, self._prefill_s, outcome.is_first)
            self.lookahead.learn_round(done)

    def close(self) -> None:
        """Let the drafter forget the call, and count what it did."""
        with self._shielded():
            self.drafter.release()
        stats, before, after = self.stats, self._before, self.drafter.counts
        stats.num_draft_forwards = after.num_forwards - before.num_forwards
        stats.draft_forward_s = after.forward_s - before.forward_s
        stats.num_draft_tokens = after.num_tokens - before.num_tokens
        for reason in after.fall_backs:
            stats.fall_back(reason)
