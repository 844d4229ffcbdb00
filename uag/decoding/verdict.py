"""How a call can be decoded: decided once, before anything runs, by one list of rules.

Every rule is a function of what is known about the call. It returns the reason, or an empty string. The first rule of
`PLAIN` that gives a reason sends the call to plain decoding; else the first of `LOCKSTEP` keeps the rows of a batch
together; else every row advances as far as its own candidates carry it. `PROMPT_ALONE` decides whether the prompt's
pass may carry candidates.

Where ranks run a model together, rank 0 decides for all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from uag.decoding import block_trial
from uag.decoding.call import Call
from uag.decoding.limits import Limits
from uag.decoding.stopping import Stopping
from uag.hf import classes, models, own, passes, positions, weights, wrapped
from uag.hf.cache import caches
from uag.hf.evaluation import is_training
from uag.hf.processors import unknown_processors
from uag.sampling import multinomial_is_argmax


@dataclass(frozen=True)
class Verdict:
    """How one call is decoded.

    Attributes:
        plain: why it is decoded plainly, as recorded in the statistics; empty where it is assisted.
        lockstep: why all rows keep the same number of tokens of a block; empty where they advance independently.
        is_reported: whether `lockstep` is recorded as a fall-back: what the caller asked for by an option is not.
        prompt_alone: the prompt's pass carries no candidates.
        cuts: lengths at which blocks end, see `Limits`.
    """

    plain: str = ""
    lockstep: str = ""
    is_reported: bool = False
    prompt_alone: bool = False
    cuts: tuple[positions.Cut, ...] = ()


class Question:
    """What the rules look at: the call, and what several of them need."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.model = call.model
        self.kwargs = call.model_kwargs
        self.config = call.generation_config
        self.batch_size = call.input_ids.shape[0]
        self.stopping = Stopping(call.stopping_criteria)
        self.cache = caches.cache_in(self.kwargs) if self.kwargs.get("use_cache", True) else None
        self.changed = own.changes(self.model)
        if not self.changed and self.cache is not None and (found := own.cache_change(self.cache)):
            self.changed = f"{found} of the cache"
        self.untested = classes.untested(self.model)
        self.cuts = positions.cuts(self.model)
        if self.untested:
            last = classes.shortest_length(self.model) - 1
            why = f"has not been tried beyond length {last}"
            self.cuts += (positions.Cut(last, "end", why, in_slots=True),)
        self.limits = Limits(call, self.cuts)


Rule = Callable[[Question], str]

# ---------------------------------------------------------------------- plain decoding


def _is_changed(ask: Question) -> str:
    if not ask.changed or ask.call.trust_changes:
        return ""
    return (
        f"someone changed or watches the target's passes ({ask.changed}){_PLAINLY}: if that looks at each token alone, "
        "pass trust_changes=True to uag.Assistant or uag.install"
    )


def _prepares_otherwise(ask: Question) -> str:
    owner = own.foreign_preparation(ask.model)
    return owner and (
        f"the target's prepare_inputs_for_generation is that of {owner}, which may take one token at a time{_PLAINLY}"
    )


def _is_synced(ask: Question) -> str:
    return f"synced_gpus: ranks must run the same passes{_PLAINLY}" if ask.call.is_synced else ""


def _is_pipelined(ask: Question) -> str:
    what = "pipeline parallel: ranks without the first layer check no candidates"
    return f"{what}{_PLAINLY}" if models.is_pipelined(ask.model) else ""


def _takes_no_blocks(ask: Question) -> str:
    why = models.candidates_refusal(ask.model) or ask.limits.plain_reason()
    return why and f"the target {why}{_PLAINLY}"


def _keeps_a_state(ask: Question) -> str:
    why = models.default_cache_refusals(ask.model)
    name = type(ask.model).__name__
    return why and (
        f"the target {name!r} keeps a state that cannot be rewound after a rejected candidate ({why}){_PLAINLY}"
    )


def _cache_cannot_be_cut(ask: Question) -> str:
    why = caches.refusal(ask.cache)
    return why and f"{why}{_PLAINLY}"


def _asks_for_attentions(ask: Question) -> str:
    """Refuse what only eager attention returns: some models then leave out the causal mask of a block (Falcon)."""
    name = models.attention_of(ask.model)
    if not ask.config.output_attentions or name == "eager":
        return ""
    return f"attentions are asked for, and the attention {name!r} returns none{_PLAINLY}"


def _quantizes_inputs(ask: Question) -> str:
    layers = weights.quantized_input(ask.model)
    return layers and (
        f"the target's layers ({layers}) quantize what they read, which gives a block other logits than single "
        f"tokens{_PLAINLY}"
    )


def _samples_otherwise(ask: Question) -> str:
    device = ask.call.input_ids.device
    if not ask.config.do_sample or ask.call.sampling != "shared-noise" or multinomial_is_argmax(device):
        return ""
    return f"multinomial on {device} is not argmax(probs / noise){_PLAINLY}"


_PLAINLY = ", so this call was decoded plainly"

PLAIN: Sequence[Rule] = (
    _is_changed,
    _prepares_otherwise,
    _is_synced,
    _is_pipelined,
    _takes_no_blocks,
    _keeps_a_state,
    _cache_cannot_be_cut,
    _asks_for_attentions,
    _quantizes_inputs,
    _samples_otherwise,
)

# ---------------------------------------------------------------------- lockstep


def _has_unknown_code(ask: Question) -> str:
    """Name processors and criteria that must see every output step as plain decoding shows it."""
    # A criterion may draw from the generator from which rows ahead have sampled, and a streamer sees its steps.
    sees_all = ask.batch_size == 1 or ask.config.do_sample or ask.call.streamer is not None
    names = [*unknown_processors(ask.call.logits_processor), *(ask.stopping.unknown if sees_all else [])]
    return f"one output step at a time: {', '.join(names)} may keep state" if names else ""


def _returns_scores(ask: Question) -> str:
    return "return_dict_in_generate records every step" if ask.config.return_dict_in_generate else ""


def _returns_cache(ask: Question) -> str:
    return "the cache is the caller's" if caches.outlives_call(ask.cache) else ""


def _has_time_limit(ask: Question) -> str:
    return "a time limit ends all rows at once" if ask.stopping.has_time_limit else ""


def _keeps_states(ask: Question) -> str:
    why = "rows advance in lockstep: the target keeps a state, not positions that could be moved row by row"
    return why if caches.has_states(ask.cache) else ""


def _is_trusted_or_untested(ask: Question) -> str:
    what = ask.changed or ask.untested
    return what and f"rows advance in lockstep: {what} may treat the rows of a batch differently"


def _has_adapters_by_row(ask: Question) -> str:
    why = "rows advance in lockstep: PEFT's hooks assign each row of the batch its adapter"
    return why if own.has_adapters_by_row(ask.model) else ""


def _counts_slots(ask: Question) -> str:
    why = ask.limits.lockstep_reason(ask.batch_size, ask.stopping.max_length)
    return why and f"rows advance in lockstep: the target {why}"


def _takes_no_positions(ask: Question) -> str:
    if caches.can_be_ragged(ask.cache) and _takes_positions(ask.model, ask.kwargs):
        return ""
    return "rows advance in lockstep: the target takes no positions of its own per row"


def _takes_positions(model: Any, kwargs: dict[str, Any]) -> bool:
    given = kwargs.get("position_ids")
    return (
        not model.config.is_encoder_decoder
        and {"position_ids", "attention_mask", wrapped.CACHE} <= wrapped.inputs_of(model)
        and given is not None
        and given.dim() == 2
        and not any("token_type_ids" in name and value is not None for name, value in kwargs.items())
        and not models.cross_layers(model)
        and not models.widens_mask(model)
        and passes.hands_on_positions(model, kwargs)
    )


def _mask_has_gaps(ask: Question) -> str:
    mask = ask.kwargs.get("attention_mask")
    has_gaps = mask is not None and bool(((mask.cumsum(-1) > 0) & (mask == 0)).any())
    return "rows advance in lockstep: the attention mask has gaps behind a row's first token" if has_gaps else ""


LOCKSTEP: Sequence[Rule] = (
    _has_unknown_code,
    _returns_scores,
    _returns_cache,
    _has_time_limit,
    _keeps_states,
    _is_trusted_or_untested,
    _has_adapters_by_row,
    _counts_slots,
    _takes_no_positions,
    _mask_has_gaps,
)

_FOR_ONE_ROW: Sequence[Rule] = (_has_unknown_code, _returns_scores)
"""Rules that hold for a single row as well: its steps are then taken one by one."""

_NOT_REPORTED: Sequence[Rule] = (_returns_scores, _returns_cache, _has_time_limit)

# ---------------------------------------------------------------------- candidates behind the prompt


def _has_another_prompt(ask: Question) -> str:
    kwargs = ask.kwargs
    if kwargs.get("inputs_embeds") is not None or ask.config.prefill_chunk_size is not None:
        return "the prompt comes as embeddings or in chunks"
    return "the prompt has images or sound" if any(name in kwargs for name in passes.MEDIA) else ""


def _has_begun(ask: Question) -> str:
    return "the cache goes on, or keeps a state" if caches.has_states(ask.cache) or caches.length(ask.cache) else ""


def _reads_prompts_otherwise(ask: Question) -> str:
    if ask.untested or ask.changed or models.widens_mask(ask.model) or models.uncounted_id(ask.model) is not None:
        return "the target may read a prompt otherwise than what follows it"
    return ""


PROMPT_ALONE: Sequence[Rule] = (_has_another_prompt, _has_begun, _reads_prompts_otherwise)

# ---------------------------------------------------------------------- the decision


def examine(call: Call) -> Verdict:
    """Decide how a call with a source of candidates is decoded; the same on every rank.

    An untested target, and one in training mode, runs a trial first: three passes, once for each model.
    """
    weights.quantized_input(call.model)  # may run layers that are split over the ranks: on all of them, for the rule
    verdict, needs_trial = call.ranks.tell(_by_rules(call) if call.ranks.decides else (Verdict(), False))
    if not needs_trial:
        return verdict
    why = block_trial.refusal(call)
    return replace(verdict, plain=f"the target {why}{_PLAINLY}") if why else verdict


def _by_rules(call: Call) -> tuple[Verdict, bool]:
    """Return the verdict of the rules, and whether a trial may overrule it."""
    ask = Question(call)
    plain = _first(PLAIN, ask)[0]
    if plain:
        return Verdict(plain), False
    lockstep, rule = _first(LOCKSTEP if ask.batch_size > 1 else _FOR_ONE_ROW, ask)
    is_reported = bool(lockstep) and rule not in _NOT_REPORTED
    verdict = Verdict("", lockstep, is_reported, bool(_first(PROMPT_ALONE, ask)[0]), ask.cuts)
    return verdict, is_training(call.model) or (bool(ask.untested) and call.check_blocks)


def _first(rules: Sequence[Rule], ask: Question) -> tuple[str, Rule | None]:
    for rule in rules:
        if reason := rule(ask):
            return reason, rule
    return "", None
