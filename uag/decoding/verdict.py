"""Decides once per call, before the first pass, how the call is decoded.

Each rule yields a reason, or an empty string if it does not apply; the first reason counts. If several ranks run the
model together, rank 0 decides for all of them.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from uag.decoding import trial, ways
from uag.decoding.call import Call
from uag.decoding.target import TRUST, Limits
from uag.hf import blocks, foreign_code, models, passes, positions, weights, wrapped
from uag.hf.cache import caches
from uag.hf.cache.recorded import RecordedTarget
from uag.hf.devices import default_generator
from uag.hf.inspection import modules
from uag.hf.processors import unknown_processors
from uag.kernels import OwnKernels
from uag.sampling import multinomial_is_argmax


@dataclass(frozen=True)
class Verdict:
    """How one call is decoded.

    Attributes:
        plain: why it falls back to plain decoding; empty if it is assisted.
        lockstep: why all rows keep the same number of tokens of a pass; empty if they advance independently.
        is_reported: whether `lockstep` is recorded as a fall-back; False if one of the caller's options implies it.
        limits: the limits on candidates; None with plain decoding.
        dependence: why the draft may change how the target's logits round, phrased to follow "the target"; or empty.
        seen: what the passes of the target's trial ran in PyTorch; None if the draft may change bits anyway.
        recorded: the target's recorded passes at a fixed width; None if they run as usual.
        call: the call with a fixed width and a cache for these passes; None if it stays as it is.
    """

    plain: str = ""
    lockstep: str = ""
    is_reported: bool = False
    limits: Limits | None = field(default=None, compare=False)
    dependence: str = ""
    kernels: OwnKernels = field(default_factory=OwnKernels, compare=False)
    seen: Counter[tuple[str, Any]] | None = field(default=None, compare=False)
    recorded: RecordedTarget | None = field(default=None, compare=False)
    call: Call | None = field(default=None, compare=False)

    @property
    def fallback(self) -> str:
        if self.plain:
            return f"{self.plain}, so this call falls back to plain decoding"
        return self.lockstep if self.is_reported else ""


class Facts:
    """The inputs of the rules: the call, and values that several rules need."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.model, self.kwargs, self.config = call.model, call.model_kwargs, call.generation_config
        self.batch_size = call.input_ids.shape[0]
        self.cache = caches.cache_in(self.kwargs) if self.kwargs.get("use_cache", True) else None
        self.change = foreign_code.changes(self.model) or foreign_code.cache_change(self.cache)
        self.limits = Limits(call, positions.cuts(self.model))


def _plain_reasons(facts: Facts) -> Iterator[str]:
    call, model, limits = facts.call, facts.model, facts.limits
    if facts.change and not call.options.trust_changes:
        yield f"other code changes or observes the target's passes ({facts.change}; {TRUST})"
    yield "with synced_gpus all ranks must run the same passes" if call.is_synced else ""
    if models.is_pipelined(model):
        yield "pipeline-parallel ranks without the first layer cannot verify candidates"
    one_token = blocks.candidates_refusal(model) or limits.plain_reason()
    yield one_token and f"the target {one_token}"
    media = next((name for name in passes.IN_EVERY_PASS if facts.kwargs.get(name) is not None), "")
    yield media and f"the target takes {media!r} in every pass"
    states, name = models.default_cache_refusals(model), type(model).__name__
    yield states and f"the target {name!r} keeps a state that cannot be rewound after a rejected candidate ({states})"
    yield caches.refusal(facts.cache)
    if limits.is_static and positions.masks_by_slot(modules(model)):
        yield "the target masks a static cache's empty slots as if its tokens were the last ones"
    if facts.config.output_attentions or facts.config.output_hidden_states:
        yield "attentions and hidden states of blocks are not recorded"
    layers = weights.quantized_input(model)
    yield layers and (f"the target's layers ({layers}) quantize their input, which changes the logits of a block")
    device = call.input_ids.device
    if facts.config.do_sample and call.options.sampling == "shared-noise":
        is_hidden = call.options.generator is None and default_generator(device) is None
        yield f"PyTorch does not expose the default generator of {device}" if is_hidden else ""
        yield "" if multinomial_is_argmax(device) else f"multinomial on {device} is not argmax(probs / noise)"


def _unknown_code(facts: Facts) -> str:
    """Return why processors or criteria must see every output step as in plain decoding, or an empty string."""
    # A criterion may draw from the generator that rows ahead have already used, and may end a step that was streamed.
    sees_all = facts.batch_size == 1 or facts.config.do_sample or facts.call.streamer is not None
    unknown = [*unknown_processors(facts.call.logits_processor), *(facts.call.stopping.others if sees_all else [])]
    names = ", ".join(type(each).__name__ for each in unknown)
    return f"{names} may keep state and must see one output step at a time" if names else ""


def _implied_by_options(facts: Facts) -> Iterator[str]:
    yield "return_dict_in_generate records every step" if facts.config.return_dict_in_generate else ""
    yield "a time limit ends all rows at once" if facts.call.stopping.has_time_limit else ""
    if facts.batch_size > 1:
        yield "the caller owns the cache" if caches.outlives_call(facts.cache) else ""


def _lockstep_reasons(facts: Facts) -> Iterator[str]:
    if facts.limits.is_static and facts.limits.fixed_width is None:
        yield "the rows of a static cache have the same length"
    has_states = caches.has_states(facts.cache)
    yield "the target keeps a state, which cannot be shifted row by row" if has_states else ""
    unknown = facts.change or foreign_code.of_others(facts.model)
    yield unknown and f"{unknown} may treat the rows of a batch differently"
    change = facts.limits.lockstep_reason(facts.batch_size, facts.call.stopping.max_length)
    yield change and f"the target {change}"
    yield "the target scales its attention by the cache slot" if positions.scales_by_slot(modules(facts.model)) else ""
    takes_positions = caches.can_be_ragged(facts.cache) and _takes_positions(facts.model, facts.kwargs)
    yield "" if takes_positions else "the target does not accept per-row positions"
    given = facts.kwargs.get("position_ids")
    is_shared = given is not None and given.dim() == 2 and given.shape[0] != facts.batch_size
    yield "position_ids has one row for the whole batch" if is_shared else ""
    mask = facts.kwargs.get("attention_mask")
    has_gaps = mask is not None and bool(((mask.cumsum(-1) > 0) & (mask == 0)).any())
    yield "the attention mask has gaps after a row's first token" if has_gaps else ""


def _takes_positions(model: Any, kwargs: dict[str, Any]) -> bool:
    position_ids = kwargs.get("position_ids")
    return (
        not model.config.is_encoder_decoder
        and {"position_ids", "attention_mask", caches.CACHE} <= wrapped.inputs_of(model)
        and position_ids is not None
        and position_ids.dim() == 2
        and not any("token_type_ids" in name and value is not None for name, value in kwargs.items())
        and passes.hands_on_positions(model, kwargs)
    )


def examine(call: Call) -> Verdict:
    """Decide how a call with a source of candidates is decoded, by trials of a few passes, once per model."""
    weights.quantized_input(call.model)  # may run layers that are split over the ranks, so all ranks must call it
    verdict = call.ranks.broadcast(_apply_rules(call) if call.ranks.decides else Verdict())
    if verdict.plain:  # the kernels do not return attention weights
        has_kernels = call.kernels and not call.generation_config.output_attentions and trial.are_right(call)
        return replace(verdict, kernels=call.kernels if has_kernels else OwnKernels())
    way, found = ways.choose(call, is_ragged=call.input_ids.shape[0] > 1 and not verdict.lockstep)
    if found.refusal:
        return Verdict(f"the target {found.refusal}", kernels=way.kernels)
    if found.dependence and call.options.draft_independent:
        return _recorded(call, way, found.dependence)
    seen = None if found.dependence else found.seen
    return replace(verdict, dependence=found.dependence, kernels=way.kernels, seen=seen)


def _recorded(call: Call, way: trial.Way, dependence: str) -> Verdict:
    """Decide about a call that must not depend on the draft, but would: recorded passes, or else plain decoding."""
    fixed, recorded, why_not = ways.record(call)
    verdict = call.ranks.broadcast(_apply_rules(fixed) if call.ranks.decides else Verdict())
    if recorded is None or verdict.plain:
        why_not = f", and in passes of a fixed width {why_not}" if why_not else ""
        return Verdict(f"draft_independent=True: the target {dependence}{why_not}", kernels=way.kernels)
    lockstep = verdict.lockstep or ("rows share a fixed width" if call.input_ids.shape[0] > 1 else "")
    return replace(verdict, lockstep=lockstep, recorded=recorded, call=fixed)


def _apply_rules(call: Call) -> Verdict:
    facts = Facts(call)
    if plain := _first(_plain_reasons(facts)):
        return Verdict(plain)
    unknown_code, implied = _unknown_code(facts), _first(_implied_by_options(facts))
    lockstep = unknown_code or implied
    if not lockstep and facts.batch_size > 1:
        lockstep = _first(_lockstep_reasons(facts))
    return Verdict(
        lockstep=lockstep and f"rows advance in lockstep: {lockstep}",
        is_reported=bool(lockstep) and lockstep != implied,
        limits=facts.limits,
    )


def _first(reasons: Iterator[str]) -> str:
    return next(filter(None, reasons), "")
