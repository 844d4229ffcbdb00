"""The decoding loop: draft, verify, accept.

One rule serves greedy decoding and sampling: a candidate is accepted while it is the token that the target itself
selects (`uag.sampling`). So the output is what plain decoding writes, whatever was drafted. The round is Algorithm 1 of
Leviathan et al. (arXiv:2211.17192) with that rule in the place of the paper's.

Rows go *apart*, each as far as its own candidates carry it, where everything that has a say in their tokens is known to
look at one row only; otherwise *in step*, where every processor, criterion and streamer is called once per output step
with exactly what plain decoding would show it. Criteria that nobody knows only end rows, so they may follow behind rows
that go apart (`uag.decoding.shown`).
"""

import time
from typing import Any

from uag.decoding.apart import Apart
from uag.decoding.call import Call
from uag.decoding.drafts import Drafts
from uag.decoding.in_step import InStep
from uag.decoding.ragged import Ragged
from uag.decoding.records import Records
from uag.decoding.rows import Rows
from uag.decoding.stopping import Stopping
from uag.decoding.target import Target
from uag.drafting import Drafter
from uag.hf import caches, models, passes
from uag.hf.growing import begin_buffering, end_buffering
from uag.hf.hooks import foreign_hook
from uag.lookahead import Lookahead
from uag.products import FastProducts
from uag.sampling import Selector, make_choice
from uag.stats import Stats


def decode(call: Call, drafter: Drafter, lookahead: Lookahead, stats: Stats) -> Any:
    """Run one call; returns what plain `generate` returns: ids [batch_size, length], or a `ModelOutput`."""
    began = time.perf_counter()
    rows = Rows(call, Stopping(call.stopping_criteria))
    target = Target(call, stats)
    sampling = call.sampling if call.generation_config.do_sample else None
    shape = rows.batch_size, models.head_size(call.model)
    choice = make_choice(sampling, shape, call.input_ids.device, call.generator)
    selector = Selector(call.logits_processor, choice, rows.batch_size)
    drafts = Drafts(call, drafter, lookahead, rows, target, choice, stats)
    is_shown = target.keeps_cache and (selector.unknown or rows.stopping.unknown)
    if not (models.is_compiled(call.model) or is_shown):
        begin_buffering(target.cache)
    stats.start(rows.batch_size)
    try:
        drafts.start()
        may_change = None if target.single_form.is_on else call.model
        with passes.optimized_for_decode(call.model), FastProducts(may_change).in_place():
            return _run(call, rows, drafts, target, selector, stats)
    finally:
        try:
            if call.streamer is not None:
                call.streamer.end()
        finally:
            drafts.close()
            caches.stop_recording(target.cache)
            end_buffering(target.cache)
            choice.finish(rows.num_steps())
            rows.count(stats, call.token_bytes)
            stats.total_s = time.perf_counter() - began


def _run(call: Call, rows: Rows, drafts: Drafts, target: Target, selector: Selector, stats: Stats) -> Any:
    """Run rounds until every row has ended."""
    records = Records(call) if call.generation_config.return_dict_in_generate else None
    candidates = drafts.first()
    with selector.choice.exposed(0):  # BigBird's first pass makes modules, and draws their weights
        logits = target.read(rows, candidates)
    accepting: Apart | InStep
    passes_of: Target | Ragged = target
    if _go_in_step(call, rows, target, selector, stats, records is not None):
        accepting = InStep(call, rows, selector, target, records, stats)
    else:
        accepting = Apart(call, rows, selector, stats)
        if rows.batch_size > 1:
            passes_of = Ragged(target, candidates.width)
    while True:
        try:
            outcome = accepting.accept(logits, candidates)
        except BaseException:  # a processor's or criterion's own
            target.give_up(candidates)
            raise
        passes_of.keep(outcome)
        drafts.learn(outcome)
        accepting.stream()  # last: a streamer that raises finds the cache put back
        if rows.have_ended():
            break
        candidates = accepting.draft(drafts)
        logits = passes_of.verify(rows, candidates)
    target.finish(rows, is_returned=records is not None)
    sequences = rows.sequences()
    return sequences if records is None else records.output(sequences, target.cache)


def _go_in_step(call: Call, rows: Rows, target: Target, selector: Selector, stats: Stats, returns_dict: bool) -> bool:
    """Decide how rows advance, and record why where they cannot go apart."""
    # A criterion may draw from the generator that the rows ahead have sampled with, and a streamer sees its steps.
    must_see = rows.batch_size == 1 or selector.choice.mode == "sample" or call.streamer is not None
    names = [*selector.unknown, *(rows.stopping.unknown if must_see else [])]
    if names:
        stats.fall_back(f"one output step at a time: {', '.join(names)} may keep state")
    if returns_dict or names:
        return True
    if rows.batch_size == 1:
        return False
    if target.keeps_cache or rows.stopping.has_time_limit or target.single_form.is_on:
        return True  # in single form: rows that are moved have other keys beside them than in plain decoding
    if caches.has_states(target.cache):
        stats.fall_back("rows go in step: the target keeps a state, not positions that could be moved row by row")
        return True
    hooked = foreign_hook(target.model)
    if hooked:
        stats.fall_back(f"rows go in step: a forward hook on the target's {hooked} may hold a value for each row")
        return True
    counted = target.limits.step_reason(rows.batch_size, rows.stopping.max_length)
    if counted:
        stats.fall_back(f"rows go in step: the target {counted}")
        return True
    if not target.can_be_ragged():
        stats.fall_back("rows go in step: the target takes no positions of its own per row")
        return True
    if target.has_gaps():
        stats.fall_back("rows go in step: the attention mask has gaps behind a row's first token")
        return True
    return False
