"""The decoding loop: draft, verify, accept.

A candidate is accepted if it is the token that the target itself selects (`uag.sampling`), in greedy decoding and in
sampling. So the output equals plain decoding's for any candidates. A round is Algorithm 1 of Leviathan et al.
(arXiv:2211.17192) with this acceptance rule instead of the paper's.

Before the first pass, `uag.decoding.verdict` decides whether a call falls back to plain decoding, and whether its rows
advance independently (`uag.decoding.independent`) or in lockstep (`uag.decoding.lockstep`).
"""

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from uag.decoding import fixed_width
from uag.decoding.call import Call
from uag.decoding.drafts import Drafts
from uag.decoding.independent import Independent, Ragged, StaticRagged
from uag.decoding.lockstep import Lockstep
from uag.decoding.plain import decode_plainly
from uag.decoding.rows import Rows
from uag.decoding.target import Target
from uag.decoding.verdict import Verdict, examine
from uag.drafting import Drafter, ForcedTokens, FreeFirst
from uag.hf import passes
from uag.hf.cache import caches
from uag.lookahead import Lookahead, clock
from uag.products import FastProducts
from uag.sampling import Selector, make_choice
from uag.stats import Stats


def run(call: Call, drafter: Drafter | None, lookahead: Lookahead, stats: Stats, assumed: str = "") -> Any:
    """Run one call and return what plain `generate` returns: ids [batch_size, length], or a `ModelOutput`.

    Without a drafter, the call is decoded plainly. `lookahead` and `stats` are updated; an assumption about the pair
    (`assumed`) is recorded as a fall-back if candidates are drafted.
    """
    if call.fixed_width is None and not call.ranks.broadcast(drafter is not None):
        return decode_plainly(call, stats)
    if drafter is not None and not call.stopping.others:  # unknown criteria may share state with a constraint
        processors, forced = ForcedTokens.of(call.logits_processor, call.input_ids)
        if forced is not None:
            call, drafter = replace(call, logits_processor=processors), FreeFirst(drafter, [forced])
    verdict = examine(call) if call.fixed_width is None else fixed_width.examined(call)
    if verdict.limits is None:
        stats.fall_back(verdict.fallback)
        return decode_plainly(call, stats)
    for reason in (assumed, verdict.fallback):
        if reason:
            stats.fall_back(reason)
    start_time, start_of_work = time.perf_counter(), clock.now()
    rows, target = Rows(call), Target(call, stats, verdict.limits)
    sampling = call.sampling if call.generation_config.do_sample else None
    choice = make_choice(sampling, (rows.batch_size, call.vocab_size), call.input_ids.device, call.generator)
    cache = target.cache  # Phi-3 replaces it when its rotary factors change
    stats.start(rows.batch_size)

    def finish() -> None:
        choice.finish(rows.num_steps() + _num_late_steps(call, rows, target))
        rows.count(stats)
        stats.total_s = time.perf_counter() - start_time
        stats.waited_s = max(stats.total_s - (clock.now() - start_of_work), 0.0)

    with ExitStack() as at_end:  # the last one first; each runs even if those before it raise
        at_end.callback(finish)
        selector = Selector(call.logits_processor, choice)
        drafts = Drafts(call, call.ranks.drafter(drafter), lookahead, rows, target, choice, stats)
        at_end.callback(caches.record_past, cache, is_on=False)
        at_end.callback(drafts.close)
        if call.streamer is not None:
            at_end.callback(call.streamer.end)
        drafts.start()
        is_compiled, has_half = call.is_compiled, call.fixed_width is not None
        with FastProducts(None if is_compiled else call.model, has_half=has_half).in_place():
            return _run_rounds(call, verdict, rows, drafts, target, selector)


def _num_late_steps(call: Call, rows: Rows, target: Target) -> int:
    """Return how many steps plain decoding draws for after all rows have ended."""
    max_length = rows.stopping.max_length
    is_full = max_length is not None and rows.prompt_length + rows.num_steps() >= max_length
    if is_full or not rows.have_ended():
        return 0
    is_returned = call.generation_config.return_dict_in_generate or target.keeps_cache
    return passes.num_late_steps(target.cache, is_returned, call.input_ids.device)


def _run_rounds(call: Call, verdict: Verdict, rows: Rows, drafts: Drafts, target: Target, selector: Selector) -> Any:
    """Run rounds until every row has ended."""
    candidates = drafts.first(prompt_alone=verdict.prompt_alone)
    logits = target.read(rows, candidates)
    accepting: Independent | Lockstep
    passes_of: Target | Ragged = target
    if verdict.lockstep:
        accepting = Lockstep(call, rows, selector)
    else:
        accepting = Independent(call, rows, selector)
        if rows.batch_size > 1:
            passes_of = (StaticRagged if target.limits.is_static else Ragged)(target, candidates.width)
    with passes.optimized_for_decode(call.model):  # without the prompt, as in plain decoding
        while True:
            try:
                outcome = accepting.accept(logits, candidates)
            except BaseException:  # raised by a processor or a criterion
                target.give_up()
                raise
            passes_of.keep(outcome)
            drafts.learn(outcome)
            accepting.stream()  # last: if a streamer raises, the cache has been rolled back
            if rows.have_ended():
                break
            candidates = drafts.propose_evenly() if verdict.lockstep else drafts.propose(rows.active())
            if call.fixed_width is not None:
                candidates, logits = fixed_width.verify(target, rows, candidates)
            else:
                logits = passes_of.verify(rows, candidates)
    is_recorded = call.generation_config.return_dict_in_generate
    target.finish(rows, is_returned=is_recorded)
    drafts.finish()
    sequences = rows.ids_at(rows.num_steps())
    if not isinstance(accepting, Lockstep) or not is_recorded:
        return sequences
    cache = target.cache if call.fixed_width is None else fixed_width.as_requested(call, target.cache)
    return accepting.output(sequences, cache)
