"""The state of one call, and what both ways of advancing rows share: drafting, learning, writing down."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from uag.decoding.call import Request
from uag.decoding.records import Records
from uag.decoding.rows import Progress
from uag.decoding.stopping import Stopping
from uag.decoding.target import TargetModel
from uag.drafting.drafter import Drafter
from uag.errors import OptionError
from uag.hf.caches import outlives_call, stop_recording
from uag.hf.growing import begin_buffering, end_buffering
from uag.hf.models import head_size, is_compiled
from uag.lookahead.lookahead import Lookahead
from uag.projection.scoring import ProposalLaw
from uag.proposal import Proposal
from uag.sampling.choice import Choice, Coupled, Greedy
from uag.sampling.noise import CounterNoise, Noise, NoiseTape, multinomial_is_argmax
from uag.sampling.rejection import Rejection
from uag.sampling.selector import Selector
from uag.sampling.warpers import DraftRules
from uag.stats import Stats

_MAX_INVERSE_NOISE = 1e30

_UNBOUNDED = 1 << 30


class LoopState:
    """One call in progress."""

    def __init__(self, request: Request, drafter: Drafter | None, lookahead: Lookahead, stats: Stats) -> None:
        config = request.generation_config
        self.request = request
        self.drafter = drafter
        self.lookahead = lookahead
        self.ranks = request.ranks
        self.stats = stats
        self.target = TargetModel(request.model, config, request.model_kwargs, stats)
        self.stopping = Stopping(request.stopping_criteria)
        self.batch_size, self.prompt_length = request.input_ids.shape[:2]
        is_kept = outlives_call(self.target.cache)
        self.keeps_cache = self.batch_size > 1 and is_kept
        self.num_hidden = 0  # positions of a prompt that came as embeddings or lies in the user's cache
        self.device = request.input_ids.device
        self.do_sample = bool(config.do_sample)
        self.vocab_size = head_size(request.model)
        self.noise: Noise | None = None
        self.rejection: Rejection | None = None
        self.selector = Selector(request.logits_processor, self._make_choice(), self.batch_size)
        self.rules = DraftRules(request.logits_processor)
        self.prompt_ids: dict[int, frozenset[int]] = {}
        self.rows = [Progress() for _ in range(self.batch_size)]
        self.returns_dict = bool(config.return_dict_in_generate)
        self.pad_id = None if config._pad_token_tensor is None else int(config._pad_token_tensor.item())
        self.records = Records(request.model, config, request.model_kwargs) if self.returns_dict else None
        self.num_streamed = 0
        self.draft_s = 0.0
        self.draft_prefill_s = 0.0
        self.free_rows: frozenset[int] = frozenset()
        self.began = time.perf_counter()
        capacity = self.prompt_length + 64
        # int64 whatever the prompt's type is: plain decoding's ids are, from the first one on.
        self.buffer = torch.zeros((self.batch_size, capacity), dtype=torch.long, device=self.device)
        self.buffer[:, : self.prompt_length] = request.input_ids
        if not (is_compiled(request.model) or (is_kept and self._unknown_names())):
            begin_buffering(self.target.cache)
        stats.start(self.batch_size)
        max_length = self.stopping.max_length
        lookahead.begin(
            self.batch_size,
            self._mode(),
            self.prompt_length,
            max_length - self.prompt_length if max_length is not None else self.prompt_length + _UNBOUNDED,
            drafter.size / max(request.model.num_parameters(), 1) if drafter is not None else 0.0,
        )

    def _mode(self) -> str:
        kind = "reject" if self.rejection is not None else "sample"
        return f"{kind}@{self.rules.warpers.temperature:.1f}" if self.do_sample else "greedy"

    def _make_choice(self) -> Choice:
        if not self.do_sample:
            return Greedy()
        generator = self.request.generator
        if generator is not None and generator.device.type != self.device.type:
            raise OptionError(
                f"The generator is on {generator.device.type!r} and the input ids are on {self.device.type!r}. "
                f"Make it where they are: torch.Generator({self.device.type!r})."
            )
        if self.drafter is not None and self.request.sampling == "rejection":
            self.rejection = Rejection(self.device, generator)
            return self.rejection
        make: Any = NoiseTape
        if not multinomial_is_argmax(self.device):
            self.stats.fall_back(
                f"multinomial on {self.device} is not argmax(probs / noise): sampled with counter-based noise instead"
            )
            make = CounterNoise
        noise: Noise = make(self.batch_size, self.vocab_size, self.device, generator)
        self.noise = noise
        return Coupled(noise)

    def close(self) -> None:
        """Leave the generator, the cache and the counts as they must be, also after an error."""
        end_buffering(self.target.cache)
        if self.noise is not None:
            self.noise.finish(self._num_steps())
        self._count_outputs()

    # ------------------------------------------------------------------ drafting

    def _start_drafter(self) -> None:
        if self.drafter is None:
            return
        request = self.request
        mask = request.model_kwargs.get("attention_mask")
        prompts = []
        for row, ids in enumerate(request.input_ids.tolist()):
            if mask is not None and not self.target.is_encoder_decoder and mask.shape[1] == len(ids):
                ids = [i for i, keep in zip(ids, mask[row].tolist(), strict=True) if keep]
            prompts.append(ids)
        sources = None
        if request.source_ids is not None and request.source_ids.dtype == torch.long:
            sources = [[i for i in ids if i != self.pad_id] for ids in request.source_ids.tolist()]
            repeats = self.batch_size // max(len(sources), 1)
            sources = [ids for ids in sources for _ in range(repeats)]
        self.drafter.start(prompts, sources)

    def _first_pass(self) -> tuple[torch.Tensor, list[list[Proposal]]]:
        """Run the prompt, with candidates behind it where that is allowed and the costs are known.

        Plain decoding samples behind what this pass draws from the generator (BigBird's very first pass does: it makes
        other attention modules and their initial weights).
        """
        cache = self.target.cache
        may_draft = self.drafter is not None and self.target.takes_candidates_first()
        proposals: list[list[Proposal]] = [[] for _ in self.rows]
        if may_draft and self.ranks.agree(self.lookahead.drafts_first()):
            proposals = self._even(self._draft(range(self.batch_size)))
        if self.noise is not None:
            self.noise.rewind(0)
        if proposals[0]:
            cache.activate_past_recording()
            logits = self._verify_even(proposals)
        else:
            logits = self.target.prefill(self.request.input_ids)
        if self.noise is not None:
            self.noise.redraw(0)
        if proposals[0]:
            return logits, proposals
        for row in self.rows:
            row.num_counted = 1  # its first token is no round's
        if self.ranks.decides:
            self.lookahead.learn_prefill(self.target.last_s)
        if self.drafter is not None:
            self.target.cache.activate_past_recording()
            self.num_hidden = max(0, self.target.cache.get_seq_length() - self.prompt_length)
        return logits, proposals

    def _unknown_names(self) -> list[str]:
        """Name the code of others that runs at every step: it may keep what it sees."""
        return [*self.selector.unknown, *self.stopping.unknown]

    def _goes_in_step(self) -> bool:
        """Decide how rows advance, and record why where they cannot go freely."""
        names = self._unknown_names()
        if names and self.drafter is not None:
            self.stats.fall_back(f"one output step at a time: {', '.join(names)} may keep state")
        if self.returns_dict or names:
            return True
        if self.batch_size == 1:
            return False
        if self.keeps_cache or self.stopping.has_time_limit:
            return True
        if self.drafter is None:
            return True
        if not self.target.can_be_ragged():
            self.stats.fall_back("rows go in step: the target takes no positions of its own per row")
            return True
        if self.target.has_gaps():
            self.stats.fall_back("rows go in step: the attention mask has gaps behind a row's first token")
            return True
        return False

    def _room(self, row: Progress) -> int:
        """Candidates that a row may still take: the target writes one token of its own behind them."""
        length = self.prompt_length + len(row.outputs)
        room = self.target.max_positions - self.num_hidden - length
        if self.stopping.max_length is not None:
            room = min(room, self.stopping.max_length - length - 1)
        return max(room, 0)

    def _draft(self, rows: Sequence[int]) -> list[list[Proposal]]:
        """Return candidates for the given rows of the batch: rank 0's own, and on the other ranks the same ids."""
        self.draft_s = self.draft_prefill_s = 0.0
        self.free_rows = frozenset()
        if self.drafter is None:
            return [[] for _ in rows]
        proposals = self._ask(self.drafter, rows) if self.ranks.decides else []
        told = self.ranks.tell([[proposal.target_id for proposal in line] for line in proposals])
        return proposals or [[Proposal(target_id, 1.0) for target_id in line] for line in told]

    def _ask(self, drafter: Drafter, rows: Sequence[int]) -> list[list[Proposal]]:
        """Ask for candidates: free ones where they promise more, else drafted ones."""
        began = time.perf_counter()
        limit = self.lookahead.plan(len(rows))
        rooms = [0] * self.batch_size
        for row in rows:
            if not self.rows[row].is_finished or not self.stopping.has_eos:
                rooms[row] = self._room(self.rows[row])
        proposals = drafter.propose_free(rooms, self.lookahead, limit)
        self.free_rows = frozenset(row for row, found in enumerate(proposals) if found)
        limits = [0 if proposals[row] else min(limit, room) for row, room in enumerate(rooms)]
        if any(limits):
            before, compiled, asked = drafter.prefill_s, drafter.compile_s, time.perf_counter()
            drafted = drafter.propose(limits, self._law, self.lookahead.go_on)
            proposals = [free or found for free, found in zip(proposals, drafted, strict=True)]
            self.draft_prefill_s = drafter.prefill_s - before
            self.draft_s = time.perf_counter() - asked - self.draft_prefill_s - (drafter.compile_s - compiled)
        self.stats.draft_s += time.perf_counter() - began
        return [proposals[row] for row in rows]

    def _law(self, row: int, num_before: int) -> ProposalLaw:
        sequence = self.rows[row]
        step = len(sequence.outputs) + num_before
        warpers = self.rules.at(self.prompt_length + step)
        law = ProposalLaw(self.vocab_size, warpers, order=self.request.text_order)
        if self.noise is not None:
            noise = self.noise.at(step)[row]
            # The power overflows where high temperatures meet tiny noise.
            inverse = noise.reciprocal() if warpers.temperature == 1.0 else noise.pow(-warpers.temperature)
            law.inverse_noise = inverse.float().clamp_(max=_MAX_INVERSE_NOISE).cpu().numpy()
        elif self.rejection is not None:
            law.uniform = self.rejection.uniform()
        if warpers.repetition_penalty != 1.0:
            if row not in self.prompt_ids:
                self.prompt_ids[row] = frozenset(self.request.input_ids[row].tolist())
            law.seen = self.prompt_ids[row].union(sequence.outputs)
        return law

    def _learn(
        self,
        width: int,
        rows: Sequence[int],
        proposals: Sequence[Sequence[Proposal]],
        matched: Sequence[int],
        is_first: bool = False,
    ) -> None:
        """Count a round and let the lookahead learn from it; free candidates say nothing about the draft."""
        outcomes = []
        for row, candidates, num_accepted in zip(rows, proposals, matched, strict=True):
            progress = self.rows[row]
            seen = progress.origins[progress.num_counted : progress.end or None]
            if seen:
                self.stats.count_round(row, len(candidates), sum(seen))
                progress.num_counted += len(seen)
            elif self.stopping.has_eos:
                continue  # ended before: padding is no candidate
            if row not in self.free_rows:
                outcomes.append((candidates, num_accepted))
        self.stats.num_rounds += 1
        if self.ranks.decides:
            self.lookahead.learn_round(
                width - 1, self.draft_s, self.target.last_s, outcomes, self.draft_prefill_s, is_first
            )

    # ------------------------------------------------------------------ blocks of equal width

    def _even(self, proposals: Sequence[list[Proposal]]) -> list[list[Proposal]]:
        """Cut every row's candidates to the shortest; finished rows follow with padding."""
        going = [p for p, row in zip(proposals, self.rows, strict=True) if not self._is_padded(row)]
        size = min((len(p) for p in going), default=0)
        filling = [Proposal(self.pad_id or 0, 1.0)] * size
        return [
            filling if self._is_padded(row) else list(p[:size]) for p, row in zip(proposals, self.rows, strict=True)
        ]

    def _is_padded(self, row: Progress) -> bool:
        return row.is_finished and self.stopping.has_eos

    def _verify_even(self, proposals: Sequence[Sequence[Proposal]]) -> torch.Tensor:
        self._write_candidates(range(self.batch_size), proposals)
        size = self.prompt_length + len(self.rows[0].outputs) + len(proposals[0])
        return self.target.verify(self.buffer[:, :size], len(proposals[0]))

    # ------------------------------------------------------------------ how far rows have come

    def _is_done(self, row: Progress) -> bool:
        """Whether a row takes no more tokens; without EOS plain decoding goes on writing finished rows."""
        if not row.is_finished:
            return False
        length = self.prompt_length + len(row.outputs)
        at_limit = self.stopping.max_length is not None and length >= self.stopping.max_length
        return self.batch_size == 1 or self.stopping.has_eos or at_limit

    def _has_ended(self) -> bool:
        """Whether the call is over: every row finished, and written as far as plain decoding writes it."""
        if not all(row.is_finished for row in self.rows):
            return False
        num_steps = self._num_steps()
        return self.stopping.has_eos or all(len(row.outputs) >= num_steps for row in self.rows)

    def _num_steps(self) -> int:
        """Output steps of plain decoding: until the last row finished."""
        return max(row.end or len(row.outputs) for row in self.rows)

    # ------------------------------------------------------------------ bookkeeping

    def _write_candidates(self, active: Sequence[int], proposals: Sequence[Sequence[Proposal]]) -> None:
        longest = max(len(self.rows[row].outputs) + len(p) for row, p in zip(active, proposals, strict=True))
        self._grow(self.prompt_length + longest)
        for row, candidates in zip(active, proposals, strict=True):
            if candidates:
                start = self.prompt_length + len(self.rows[row].outputs)
                ids = torch.tensor([p.target_id for p in candidates], device=self.device)
                self.buffer[row, start : start + len(candidates)] = ids

    def _grow(self, size: int) -> None:
        if size > self.buffer.shape[1]:
            grown = self.buffer.new_zeros((self.batch_size, 2 * size))
            grown[:, : self.buffer.shape[1]] = self.buffer
            self.buffer = grown

    def _release_noise(self) -> None:
        if self.noise is not None:
            self.noise.release(min((len(row.outputs) for row in self.rows if not self._is_done(row)), default=0))

    def _note_time(self) -> None:
        """Note when the first token was known, and the last one of rows that have ended."""
        now = time.perf_counter() - self.began
        if not self.stats.first_token_s:
            self.stats.first_token_s = now
        for row in self.rows:
            row.last_s = row.last_s if row.is_finished and row.last_s else now

    def _count_outputs(self) -> None:
        for index, row in enumerate(self.rows):
            size = row.end or len(row.outputs)
            written, origins = row.outputs[:size], row.origins[:size]
            self.stats.count_row(index, written, origins, self.request.token_bytes, row.last_s)

    def _result(self) -> Any:
        num_steps = self._num_steps()
        sequences = self.buffer[:, : self.prompt_length + num_steps].clone()
        for index, row in enumerate(self.rows):
            if len(row.outputs) < num_steps:
                sequences[index, self.prompt_length + len(row.outputs) :] = self.pad_id or 0
        cache = self.target.cache
        if self.drafter is not None and cache is not None:
            stop_recording(cache)
        if self.records is None:
            return sequences
        return self.records.output(sequences, cache)


def check_selected(token_id: int) -> None:
    """Raise what plain sampling raises where no token is left to select."""
    if token_id < 0:
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
