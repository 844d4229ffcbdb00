"""The decoding loop: draft, verify, accept.

A candidate is accepted if it is the token that the target itself selects (`uag.sampling`), in greedy decoding and in
sampling. So the output equals plain decoding's for any candidates. A round is Algorithm 1 of Leviathan et al.
(arXiv:2211.17192) with this acceptance rule instead of the paper's. `uag.decoding.verdict` decides how rows advance.
"""

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from uag.decoding import ways
from uag.decoding.call import Call, Candidates
from uag.decoding.drafts import Drafts
from uag.decoding.independent import Independent, Ragged
from uag.decoding.lockstep import Lockstep
from uag.decoding.plain import decode_plainly
from uag.decoding.rows import Rows
from uag.decoding.target import Target
from uag.decoding.verdict import Verdict, examine
from uag.drafting import Drafter, ForcedTokens, FreeFirst
from uag.hf import foreign_code, passes
from uag.hf.cache import caches
from uag.kernels import Watch
from uag.lookahead import Lookahead, clock
from uag.sampling import Selector, make_choice
from uag.stats import Stats


def run(call: Call, drafter: Drafter | None, lookahead: Lookahead, stats: Stats, assumed: str = "") -> Any:
    """Run one call and return what plain `generate` returns: ids [batch_size, length], or a `ModelOutput`.

    Without a drafter, the target's passes have no candidates. `lookahead` and `stats` are updated; an assumption about
    the pair (`assumed`) is recorded as a fall-back if candidates are drafted.
    """
    start_time, start_of_work = time.perf_counter(), clock.now()
    has_drafter = call.ranks.broadcast(drafter is not None)
    if not has_drafter and not call.options.draft_independent and not call.kernels:
        stats.draft_dependence = f"the target {call.kernels.why_none}"
        return decode_plainly(call, stats, call.kernels)
    call, drafter = _with_forced_tokens(call, drafter)
    verdict = examine(call)
    call = verdict.call or call
    _note_dependence(call, verdict.dependence, stats)
    for reason in (assumed, verdict.fallback) if has_drafter else ():
        if reason:
            stats.fall_back(reason)
    if verdict.limits is None:
        return decode_plainly(call, stats, verdict.kernels)
    watch = Watch(verdict.seen, looks_closely=foreign_code.has_unknown_code(call.model))
    rows, target = Rows(call), Target(call, stats, verdict.limits, verdict.kernels, verdict.recorded, watch)
    sampling = call.options.sampling if call.generation_config.do_sample else None
    choice = make_choice(sampling, (rows.batch_size, call.vocab_size), call.input_ids.device, call.options.generator)
    cache = target.cache  # Phi-3 replaces it when its rotary factors change
    stats.start(rows.batch_size)

    def finish() -> None:
        choice.finish(rows.num_steps() + _num_late_steps(call, rows, target))
        rows.count(stats)
        stats.total_s = time.perf_counter() - start_time
        stats.waited_s = max(stats.total_s - (clock.now() - start_of_work), 0.0)

    with ExitStack() as at_end:  # the last one first; each runs even if those before it raise
        at_end.callback(finish)
        if verdict.recorded is not None:
            at_end.callback(verdict.recorded.keep)
        selector = Selector(call.logits_processor, choice)
        drafts = Drafts(call, call.ranks.drafter(drafter), lookahead, rows, target, choice, stats)
        at_end.callback(caches.record_past, cache, is_on=False)
        at_end.callback(drafts.close)
        if call.streamer is not None:
            at_end.callback(call.streamer.end)
        drafts.start()
        with verdict.kernels.in_place():
            return _run_rounds(call, verdict, rows, drafts, target, selector)


def _with_forced_tokens(call: Call, drafter: Drafter | None) -> tuple[Call, Drafter | None]:
    if drafter is None or call.stopping.others:  # unknown criteria may share state with a constraint
        return call, drafter
    processors, forced = ForcedTokens.of(call.logits_processor, call.input_ids)
    if forced is None:
        return call, drafter
    return replace(call, logits_processor=processors), FreeFirst(drafter, [forced])


def _note_dependence(call: Call, dependence: str, stats: Stats) -> None:
    stats.draft_dependence = f"the target {dependence}" if dependence else ""
    if call.options.sampling == "rejection" and call.generation_config.do_sample:
        stats.draft_dependence = "sampling='rejection' returns another sample for each draft"
    stats.is_draft_independent = not stats.draft_dependence


def _num_late_steps(call: Call, rows: Rows, target: Target) -> int:
    max_length = rows.stopping.max_length
    is_full = max_length is not None and rows.prompt_length + rows.num_steps() >= max_length
    if is_full or not rows.have_ended():
        return 0
    is_returned = call.generation_config.return_dict_in_generate or target.keeps_cache
    return passes.num_late_steps(target.cache, is_returned, call.input_ids.device)


def _run_rounds(call: Call, verdict: Verdict, rows: Rows, drafts: Drafts, target: Target, selector: Selector) -> Any:
    accepting: Independent | Lockstep
    passes_of: Target | Ragged = target
    candidates = offered = Candidates(rows.active(), [[] for _ in rows.all])
    logits = target.read(rows)
    if verdict.lockstep:
        accepting = Lockstep(call, rows, selector)
    else:
        accepting = Independent(call, rows, selector)
        if rows.batch_size > 1:
            passes_of = Ragged(target)
    with passes.optimized_for_decode(call.model):  # without the prompt, as in plain decoding
        while True:
            try:
                outcome = accepting.accept(logits, candidates)
            except BaseException:  # raised by a processor or a criterion
                target.give_up()
                raise
            passes_of.keep(outcome)
            drafts.learn(replace(outcome, candidates=offered))
            accepting.stream()  # last: if a streamer raises, the cache has been rolled back
            if rows.have_ended():
                break
            offered = drafts.propose_evenly() if verdict.lockstep else drafts.propose(rows.active())
            candidates, logits = _run_pass(call, target, passes_of, rows, offered)
    is_recorded = call.generation_config.return_dict_in_generate
    target.finish(rows, is_returned=is_recorded)
    drafts.finish()
    sequences = rows.ids_at(rows.num_steps())
    if not isinstance(accepting, Lockstep) or not is_recorded:
        return sequences
    return accepting.output(sequences, ways.as_requested(call, target.cache))


def _run_pass(
    call: Call, target: Target, passes_of: Target | Ragged, rows: Rows, candidates: Candidates
) -> tuple[Candidates, torch.Tensor]:
    logits = passes_of.verify(rows, candidates)
    why = _why_repeat(call, target, rows, candidates, logits)
    if not why or candidates.width == 1:
        return candidates, logits
    passes_of.undo()
    target.stats.fall_back(f"{why}, so the pass was repeated without them")
    wasted_s, candidates = target.last_s, replace(candidates, by_row=[[] for _ in candidates.rows])
    logits = passes_of.verify(rows, candidates)
    target.last_s += wasted_s
    return candidates, logits


def _why_repeat(call: Call, target: Target, rows: Rows, candidates: Candidates, logits: torch.Tensor) -> str:
    """Return why a pass must not have candidates, and record what makes the rest of the call depend on them.

    0 times NaN is NaN, except in uag's kernels. So candidates that overflow make their row's first token NaN, too.
    """
    if dependence := target.watch.found:
        if call.options.draft_independent:
            target.watch, target.may_verify = Watch(), False
            return f"candidates may change bits, since the target {dependence}"
        _note_dependence(call, dependence, target.stats)
    active = [line for line, row in enumerate(candidates.rows) if not rows.is_done(row)]
    is_nan = candidates.width > 1 and bool(logits[active, 0, 0].isnan().any())
    return "candidates made the target's logits NaN" if is_nan else ""
