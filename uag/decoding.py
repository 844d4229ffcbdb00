"""The decoding loop: draft, verify, accept.

One rule serves greedy decoding and sampling: a candidate is accepted while it is the token that the target itself
selects (see `uag.selection`). So the output is what plain decoding writes, whatever was drafted.

Rows advance *freely* where everything that looks at them is known to look at one row only; otherwise *in step*, where
every processor, criterion and streamer is called once per output step with exactly what plain decoding would show it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from uag import compat
from uag.drafter import Drafter
from uag.errors import OptionError
from uag.law import ProposalLaw
from uag.lookahead import Lookahead
from uag.noise import CounterNoise, Noise, NoiseTape, multinomial_is_argmax
from uag.records import Records
from uag.rejection import Rejection
from uag.selection import Choice, Coupled, DraftRules, Greedy, Selector
from uag.stats import Stats
from uag.stopping import Stopping
from uag.target import TargetModel
from uag.tree import Proposal
from uag.vocabulary import SortedBytes

_MAX_INVERSE_NOISE = 1e30
_UNBOUNDED = 1 << 30


@dataclass
class Request:
    """What transformers prepared for one call of a decoding method.

    Attributes:
        model: the target.
        input_ids: [batch_size, prompt_length] int64.
        logits_processor: prepared processors.
        stopping_criteria: prepared criteria.
        generation_config: prepared configuration.
        model_kwargs: what goes to the forward.
        streamer: receives tokens as plain decoding gives them.
        source_ids: [batch_size, source_length] encoder input of encoder-decoder targets, else None.
        generator: generator to sample from; None for the device's default.
        text_order: the target's texts in byte order, for bounds under noise; None where the draft shares ids.
        token_bytes: bytes of each target id, for statistics.
        sampling: "shared-noise" or "rejection", how sampled candidates are drawn and checked.
    """

    model: Any
    input_ids: torch.Tensor
    logits_processor: Any
    stopping_criteria: Any
    generation_config: Any
    model_kwargs: dict[str, Any]
    streamer: Any = None
    source_ids: torch.Tensor | None = None
    generator: torch.Generator | None = None
    text_order: SortedBytes | None = None
    token_bytes: Sequence[bytes | None] = ()
    sampling: str = "shared-noise"


@dataclass
class _Sequence:
    """One row's progress."""

    outputs: list[int] = field(default_factory=list)
    origins: list[bool] = field(default_factory=list)
    end: int = 0

    @property
    def is_finished(self) -> bool:
        """Whether a criterion has ended the row, at output step `end`."""
        return self.end > 0


def decode(request: Request, drafter: Drafter | None, lookahead: Lookahead, stats: Stats) -> Any:
    """Run one call.

    Args:
        request: what transformers prepared.
        drafter: source of candidates; None decodes plainly.
        lookahead: how far to draft.
        stats: filled in.

    Returns:
        What plain `generate` returns: ids [batch_size, length], or a `ModelOutput` with `return_dict_in_generate`.

    Raises:
        UnsupportedError: the target's cache cannot be rewound.
        OptionError: the generator is on another device.
    """
    if drafter is not None:
        target_cache = next(
            (request.model_kwargs[n] for n in compat.cache_names() if request.model_kwargs.get(n) is not None), None
        )
        compat.check_cache(target_cache)
    began = time.perf_counter()
    loop = _Loop(request, drafter, lookahead, stats)
    try:
        return loop.run()
    finally:
        if request.streamer is not None:
            request.streamer.end()
        if drafter is not None:
            drafter.release()
        loop.close()
        stats.total_s = time.perf_counter() - began


class _Loop:
    def __init__(self, request: Request, drafter: Drafter | None, lookahead: Lookahead, stats: Stats) -> None:
        config = request.generation_config
        self.request = request
        self.drafter = drafter
        self.lookahead = lookahead
        self.stats = stats
        self.target = TargetModel(request.model, config, request.model_kwargs, stats)
        self.stopping = Stopping(request.stopping_criteria)
        self.batch_size, self.prompt_length = request.input_ids.shape[:2]
        self.num_hidden = 0  # positions of a prompt that came as embeddings or lies in the user's cache
        self.device = request.input_ids.device
        self.do_sample = bool(config.do_sample)
        self.vocab_size = _head_size(request.model)
        self.noise: Noise | None = None
        self.rejection: Rejection | None = None
        self.selector = Selector(request.logits_processor, self._make_choice(), self.batch_size)
        self.rules = DraftRules(request.logits_processor)
        self.prompt_ids: dict[int, frozenset[int]] = {}
        self.rows = [_Sequence() for _ in range(self.batch_size)]
        self.returns_dict = bool(config.return_dict_in_generate)
        self.pad_id = None if config._pad_token_tensor is None else int(config._pad_token_tensor.item())
        self.records = Records(request.model, config, request.model_kwargs) if self.returns_dict else None
        self.num_streamed = 0
        self.draft_s = 0.0
        self.draft_prefill_s = 0.0
        self.free_rows: frozenset[int] = frozenset()
        self.began = time.perf_counter()
        capacity = self.prompt_length + 64
        self.buffer = request.input_ids.new_zeros((self.batch_size, capacity))
        self.buffer[:, : self.prompt_length] = request.input_ids
        stats.batch_size = self.batch_size
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
        """Leave the generator and the counts as they must be, also after an error."""
        if self.noise is not None:
            self.noise.finish(self._num_steps())
        self._count_outputs()

    # ------------------------------------------------------------------ the loop

    def run(self) -> Any:
        """Run rounds until every row has ended; returns what plain decoding returns."""
        self._start_drafter()
        with self.request.model._optimize_model_for_decode():
            logits, proposals = self._first_pass()
            if self._goes_in_step():
                self._run_in_step(logits, proposals)
            elif self.batch_size == 1:
                self._run_alone(logits, proposals)
            else:
                self._run_ragged(logits, proposals)
        return self._result()

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
        """Run the prompt, with candidates behind it where that is allowed and the costs are known."""
        cache = self.target.cache
        if self.drafter is not None and self.target.takes_candidates_first() and self.lookahead.drafts_first():
            proposals = self._even(self._draft(range(self.batch_size)))
            if proposals[0]:
                cache.activate_past_recording()
                return self._verify_even(proposals), proposals
        logits = self.target.prefill(self.request.input_ids)
        self.lookahead.learn_prefill(self.target.last_s)
        if self.drafter is not None:
            self.target.cache.activate_past_recording()
            self.num_hidden = max(0, self.target.cache.get_seq_length() - self.prompt_length)
        return logits, [[] for _ in self.rows]

    def _goes_in_step(self) -> bool:
        """Decide how rows advance, and record why where they cannot go freely."""
        names = [*self.selector.unknown, *self.stopping.unknown]
        if names and self.drafter is not None:
            self.stats.fall_back(f"one output step at a time: {', '.join(names)} may keep state")
        if self.returns_dict or names:
            return True
        if self.batch_size == 1:
            return False
        if getattr(self.target.cache, "_is_user_defined", False) or self.stopping.has_time_limit:
            return True
        if self.drafter is None:
            return True
        if not self.target.can_be_ragged():
            self.stats.fall_back("rows go in step: the target takes no positions of its own per row")
            return True
        return False

    def _room(self, row: _Sequence) -> int:
        """Candidates that a row may still take: the target writes one token of its own behind them."""
        length = self.prompt_length + len(row.outputs)
        room = self.target.max_positions - self.num_hidden - length
        if self.stopping.max_length is not None:
            room = min(room, self.stopping.max_length - length - 1)
        return max(room, 0)

    def _draft(self, rows: Sequence[int]) -> list[list[Proposal]]:
        """Ask for candidates for the given rows of the batch: free ones where they promise more, else drafted ones."""
        self.draft_s = self.draft_prefill_s = 0.0
        self.free_rows = frozenset()
        drafter = self.drafter
        if drafter is None:
            return [[] for _ in rows]
        began = time.perf_counter()
        limit = self.lookahead.plan()
        rooms = [0] * self.batch_size
        for row in rows:
            if not self.rows[row].is_finished or not self.stopping.has_eos:
                rooms[row] = self._room(self.rows[row])
        proposals = drafter.propose_free(rooms, self.lookahead, limit)
        self.free_rows = frozenset(row for row, found in enumerate(proposals) if found)
        limits = [0 if proposals[row] else min(limit, room) for row, room in enumerate(rooms)]
        if any(limits):
            before, asked = drafter.prefill_s, time.perf_counter()
            drafted = drafter.propose(limits, self._law, self.lookahead.go_on)
            proposals = [free or found for free, found in zip(proposals, drafted, strict=True)]
            self.draft_prefill_s = drafter.prefill_s - before
            self.draft_s = time.perf_counter() - asked - self.draft_prefill_s
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
            self.stats.count_round(len(candidates), num_accepted)
            if row not in self.free_rows:
                outcomes.append((candidates, num_accepted))
        self.stats.num_rounds += 1
        self.lookahead.learn_round(
            width - 1, self.draft_s, self.target.last_s, outcomes, self.draft_prefill_s, is_first
        )

    # ------------------------------------------------------------------ rows that advance freely

    def _run_alone(self, logits: torch.Tensor, proposals: list[list[Proposal]]) -> None:
        """Advance a single row."""
        is_prefill = not proposals[0]
        is_first = True
        while True:
            width = len(proposals[0]) + 1
            num_written, num_matched = self._accept_block([0], logits, proposals)[0]
            if is_prefill:
                self.target.advance(1)
            else:
                self.target.keep(num_written, width)
                self._learn(width, [0], proposals, [num_matched], is_first)
            self._stream_ready()
            if self._has_ended():
                return
            is_prefill = is_first = False
            proposals = self._draft([0])
            logits = self._verify_even(proposals)
            self._release_noise()

    def _run_ragged(self, logits: torch.Tensor, proposals: list[list[Proposal]]) -> None:
        """Advance several rows, each as far as its own candidates carry it."""
        active = list(range(self.batch_size))
        width = len(proposals[0]) + 1
        outcomes = self._accept_block(active, logits, proposals)
        self.target.start_ragged(width)
        self.target.keep_ragged([written for written, _ in outcomes], width)
        if width > 1:
            self._learn(width, active, proposals, [matched for _, matched in outcomes], is_first=True)
        while True:
            self._stream_ready()
            if self._has_ended():
                return
            remaining = [row for row in active if not self._is_done(self.rows[row])]
            if remaining != active:
                self.target.select_rows([active.index(row) for row in remaining])
                active = remaining
            proposals = self._draft(active)
            width = max(len(p) for p in proposals) + 1
            self._write_candidates(active, proposals)
            logits = self.target.verify_ragged(self._block(active, proposals, width))
            outcomes = self._accept_block(active, logits, proposals)
            self.target.keep_ragged([written for written, _ in outcomes], width)
            self._learn(width, active, proposals, [matched for _, matched in outcomes])
            self._release_noise()

    def _block(self, active: Sequence[int], proposals: Sequence[Sequence[Proposal]], width: int) -> torch.Tensor:
        lines = []
        for row, candidates in zip(active, proposals, strict=True):
            line = [self.rows[row].outputs[-1], *(p.target_id for p in candidates)]
            lines.append(line + line[-1:] * (width - len(line)))
        return torch.tensor(lines, device=self.device)

    def _accept_block(
        self, active: Sequence[int], logits: torch.Tensor, proposals: Sequence[Sequence[Proposal]]
    ) -> list[tuple[int, int]]:
        """Select and append each row's tokens; returns (tokens written, candidates accepted) per active row."""
        starts = [self.prompt_length + len(self.rows[row].outputs) for row in active]
        selected = self.selector.select_block(
            logits,
            [start - self.prompt_length for start in starts],
            active,
            lambda line, position: self.buffer[active[line]][None, : starts[line] + position],
            proposals,
        )
        self._grow(max(starts) + logits.shape[1])
        is_out_of_time = self.stopping.is_out_of_time()
        outcomes = []
        for line, row in enumerate(active):
            candidates = [proposal.target_id for proposal in proposals[line]]
            num_written, num_matched = self._append(row, selected[line], candidates, is_out_of_time)
            outcomes.append((num_written, num_matched))
            if self.drafter is not None and not self._is_done(self.rows[row]):
                self.drafter.accept(row, num_matched, selected[line][:num_written])
        self._note_first_token()
        return outcomes

    def _append(self, row: int, selected: Sequence[int], candidates: Sequence[int], ends_now: bool) -> tuple[int, int]:
        """Append the selected tokens up to the first rejected candidate or the row's end."""
        sequence = self.rows[row]
        num_matched = 0
        for position, token_id in enumerate(selected):
            _check_selected(token_id)
            is_match = position < len(candidates) and token_id == candidates[position]
            sequence.outputs.append(token_id)
            sequence.origins.append(is_match)
            num_matched += is_match
            length = self.prompt_length + len(sequence.outputs)
            if not is_match:
                self.buffer[row, length - 1] = token_id
            ids = self.buffer[row][None, :length] if self.stopping.needs_text else None
            if self.stopping.ends(token_id, length, ids) or ends_now:
                sequence.end = sequence.end or len(sequence.outputs)
            if not is_match or self._is_done(sequence):
                return position + 1, num_matched
        return len(selected), num_matched

    def _is_done(self, row: _Sequence) -> bool:
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

    def _stream_ready(self) -> None:
        """Give the streamer every step that all rows have passed, as plain decoding gives them."""
        streamer = self.request.streamer
        if streamer is None:
            return
        ended = self._has_ended()
        ready = min((len(row.outputs) for row in self.rows if not self._is_done(row)), default=self._num_steps())
        if ended:
            ready = min(ready, self._num_steps())
        for step in range(self.num_streamed, ready):
            line = [row.outputs[step] if step < len(row.outputs) else self.pad_id for row in self.rows]
            streamer.put(torch.tensor(line))
        self.num_streamed = max(self.num_streamed, ready)

    # ------------------------------------------------------------------ rows that go in step

    def _even(self, proposals: Sequence[list[Proposal]]) -> list[list[Proposal]]:
        """Cut every row's candidates to the shortest; finished rows follow with padding."""
        going = [p for p, row in zip(proposals, self.rows, strict=True) if not self._is_padded(row)]
        size = min((len(p) for p in going), default=0)
        filling = [Proposal(self.pad_id or 0, 1.0)] * size
        return [
            filling if self._is_padded(row) else list(p[:size]) for p, row in zip(proposals, self.rows, strict=True)
        ]

    def _is_padded(self, row: _Sequence) -> bool:
        return row.is_finished and self.stopping.has_eos

    def _verify_even(self, proposals: Sequence[Sequence[Proposal]]) -> torch.Tensor:
        self._write_candidates(range(self.batch_size), proposals)
        size = self.prompt_length + len(self.rows[0].outputs) + len(proposals[0])
        return self.target.verify(self.buffer[:, :size], len(proposals[0]))

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
                windows = compat.windows(self.target.cache)
                self.records.add_states(
                    self.target.outputs, self.prompt_length + before, num_written, width, before == 0, windows
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
        careful = bool(self.selector.unknown or self.stopping.unknown)
        noise = self.noise
        self._grow(self.prompt_length + len(self.rows[0].outputs) + logits.shape[1])
        for position in range(logits.shape[1]):
            step = len(self.rows[0].outputs)
            length = self.prompt_length + step
            ids = self.buffer[:, :length]
            # Not the block's own memory: a processor may write into its scores, and plain decoding records that.
            raw = logits[:, position].clone() if careful or self.records is not None else logits[:, position]
            if careful:
                # Whoever is called may draw from the generator: show it the state that plain decoding would.
                ids = ids.clone()
                if noise is not None:
                    noise.rewind(step)
            scores = self.request.logits_processor(ids, raw)
            if careful and noise is not None:
                noise.redraw(step)
            offered = [line[position] if position < len(line) else None for line in proposals]
            tokens = self.selector.choice.choose(scores, [step] * self.batch_size, range(self.batch_size), offered)
            for token_id in tokens.tolist():
                _check_selected(token_id)
            if self.stopping.has_eos:
                tokens = tokens * unfinished + (self.pad_id or 0) * (1 - unfinished)
            self.buffer[:, length] = tokens
            if self.records is not None:
                self.records.add_scores(scores, raw)
            are_matches = self._append_step(tokens.tolist(), proposals, position)
            if self.request.streamer is not None:
                self.request.streamer.put(tokens.cpu())
            if careful and noise is not None:
                noise.rewind(step + 1)
            ids = self.buffer[:, : length + 1]
            done = self.stopping.call(ids.clone() if careful else ids, self.records.scores if self.records else None)
            if careful and noise is not None:
                noise.redraw(step + 1)
            unfinished &= (~done).long().to(unfinished.device)
            self._note_first_token()
            for row, is_going in zip(self.rows, unfinished.tolist(), strict=True):
                if not is_going:
                    row.end = row.end or step + 1
            if not bool(unfinished.any()) or not are_matches:
                return position + are_matches
        return logits.shape[1] - 1

    def _append_step(self, tokens: Sequence[int], proposals: Sequence[Sequence[Proposal]], position: int) -> bool:
        """Append one token per row; returns whether every row's candidate at this position was accepted."""
        are_matches = position < len(proposals[0])
        for row, token_id, candidates in zip(self.rows, tokens, proposals, strict=True):
            is_match = position < len(candidates) and candidates[position].target_id == token_id
            row.outputs.append(token_id)
            row.origins.append(is_match and not row.is_finished)
            are_matches = are_matches and is_match
        return are_matches

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

    def _note_first_token(self) -> None:
        if not self.stats.first_token_s:
            self.stats.first_token_s = time.perf_counter() - self.began

    def _count_outputs(self) -> None:
        stats, table = self.stats, self.request.token_bytes
        for row in self.rows:
            written = row.outputs[: row.end or len(row.outputs)]
            stats.num_output_tokens += len(written)
            stats.origins.append(row.origins[: len(written)])
            stats.num_output_bytes += sum(len(table[i] or b"") for i in written if i < len(table))

    def _result(self) -> Any:
        num_steps = self._num_steps()
        sequences = self.buffer[:, : self.prompt_length + num_steps].clone()
        for index, row in enumerate(self.rows):
            if len(row.outputs) < num_steps:
                sequences[index, self.prompt_length + len(row.outputs) :] = self.pad_id or 0
        cache = self.target.cache
        if self.drafter is not None and cache is not None:
            compat.stop_recording(cache)
        if self.records is None:
            return sequences
        return self.records.output(sequences, cache)


def _check_selected(token_id: int) -> None:
    if token_id < 0:
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")


def _head_size(model: Any) -> int:
    """Return the number of scores that the target's head gives."""
    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    if weight is not None and weight.dim() == 2:
        return int(weight.shape[0])
    return int(model.config.get_text_config(decoder=True).vocab_size)
