"""At the first use of a target that nobody has tried: do blocks give what one token after the other gives?

A few made-up tokens are run in both forms, through the same passes as in a call, the putting back of the cache
included. What was found holds for the class, its configuration and its number type, in this process.

A forward may change at a length: every length that the configuration names is crossed, as far as the call comes near
it. Behind one that was not tried yet, nothing is drafted.
"""

import json
import threading
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from uag.decoding.call import Call
from uag.decoding.limits import Limits
from uag.decoding.reading import Reading
from uag.decoding.stopping import Stopping
from uag.hf import known, models
from uag.hf.positions import Cut
from uag.hf.undisturbed import undisturbed

_NUM_FIRST, _WIDTH = 6, 4
"""Tokens in front of the block, and in it: the fewest that show masks, positions and rewinding."""

_NUM_PADS = 3
"""Padding of a row that is compared with one without."""

_NEAR = 256
"""Tokens behind the prompt up to which a length is tried at once: reading so many costs less than writing them."""

_MAX_TRIES = 3
"""Prompts of which one must agree: in half precision a router's near-tie can fall otherwise in a block."""

_TOLERANCES = {torch.float32: 1e-3, torch.float64: 1e-3}
_HALF_TOLERANCE = 0.1
"""Root mean square difference of two rows of logits, beside their standard deviation, that rounding may make.

Rounding made up to 3e-6 in float32 and 0.03 in bfloat16 where it was measured; faults make 0.2 and more.
"""


@dataclass
class _Found:
    """What is known of one class, configuration and number type.

    Attributes:
        reason: why blocks are not right; empty where they are.
        is_alone: the prompt's pass is right by itself only, without candidates behind the prompt.
        slots_count: whether padding changes what a row gives; None before a batch was seen.
        tried: lengths that were crossed, each with what was found there.
    """

    reason: str = ""
    is_alone: bool = False
    slots_count: bool | None = None
    tried: dict[int, tuple[Cut, ...]] = field(default_factory=dict)


_found: dict[Any, _Found] = {}
_lock = threading.RLock()


def forget() -> None:
    """Forget every comparison of this process."""
    with _lock:
        _found.clear()


def guard(call: Call) -> tuple[str, tuple[Cut, ...]]:
    """Compare blocks with single tokens, where nobody has yet.

    Returns:
        Why the target must be decoded plainly, empty where blocks are right, and all lengths at which they end.
    """
    if known.is_known(call.model):
        return "", call.cuts or ()
    told = {place for cut in call.cuts or () for place in (cut.at, cut.at + 1)}
    lengths = [length for length in known.lengths(call.model) if length not in told]
    with _lock:
        key = _key(call.model)
        found = _found.get(key)
        if found is None:
            reason = _compared(call, _NUM_FIRST, "block")
            found = _found[key] = _Found(reason, not reason and bool(_compared(call, _NUM_FIRST, "first")))
        if found.reason:
            return f"the target {found.reason}, so this call was decoded plainly", ()
        cuts: list[Cut] = []
        if found.is_alone:
            cuts.append(Cut(0, "switch", "reads a prompt otherwise with tokens behind it", in_slots=True))
        if call.input_ids.shape[0] > 1 and not call.model.config.is_encoder_decoder:
            if found.slots_count is None:
                found.slots_count = bool(_compared(call, _NUM_FIRST, "apart"))
            if found.slots_count:
                cuts.append(Cut(0, "count", "counts padding", in_slots=True))
        for length in lengths:
            cuts += _at(call, found, length)
    cuts += call.cuts or ()
    beyond = Limits(replace(call, cuts=tuple(cuts))).plain_reason()
    return f"the target {beyond}, so this call was decoded plainly" if beyond else "", tuple(cuts)


def _key(model: Any) -> Any:
    config = json.dumps(model.config.to_dict(), default=str)
    return type(model), config, model.dtype, model.device.type, models.attention_of(model)


def _at(call: Call, found: _Found, length: int) -> tuple[Cut, ...]:
    """Return what blocks do at a length that the configuration names."""
    prompt, most = call.input_ids.shape[1], Stopping(call.stopping_criteria).max_length
    if length in found.tried or (most is not None and most < length):
        return found.tried.get(length, ())
    if prompt + _NEAR < length or length + _WIDTH > models.max_positions(call.model):
        return (Cut(length - 1, "end", f"has not been tried beyond length {length - 1}", in_slots=True),)
    cuts: tuple[Cut, ...] = ()
    num_first = length - _WIDTH // 2
    if num_first >= 2:
        if _compared(call, num_first, "block") or (not found.is_alone and _compared(call, num_first, "first")):
            why = f"gives a block other logits than single tokens beyond length {length - 1}"
            cuts = (Cut(length - 1, "end", why, in_slots=True),)
        elif not call.model.config.is_encoder_decoder and _compared(call, num_first, "apart"):
            cuts = (Cut(length - 1, "count", f"counts padding beyond length {length - 1}", in_slots=True),)
    found.tried[length] = cuts
    return cuts


def _compared(call: Call, num_first: int, form: Literal["block", "first", "apart"]) -> str:
    """Compare both forms behind `num_first` tokens; returns what differs, empty where nothing does.

    Args:
        call: whose model, settings and encoder are used; it is left as it is.
        num_first: tokens in front of the block.
        form: what is compared with single tokens: a block behind the first ones, all in their pass, or a padded row and
            rows that keep different numbers of tokens.
    """
    worst = 0.0
    tolerance = _TOLERANCES.get(call.model.dtype, _HALF_TOLERANCE)
    try:
        with undisturbed(call.model), torch.no_grad():
            for attempt in range(_MAX_TRIES):
                ids = known.made_up_ids(call.model, num_first + _WIDTH, attempt)
                single = Reading(call, ids, num_first).singly()
                if form == "apart":
                    pairs = [(single, Reading(call, ids, num_first, num_pads=_NUM_PADS).singly())]
                    pairs.append(([single[4], single[2]], Reading(call, ids, num_first, num_rows=2).apart()))
                elif form == "first":
                    pairs = [(single, Reading(call, ids, num_first).at_once())]
                else:
                    # The second token of the block comes twice: in it, and by itself, when the block was put back.
                    pairs = [([*single, single[2]], Reading(call, ids, num_first).in_a_block())]
                worst = max(_difference(*pair) for pair in pairs)
                if worst <= tolerance:
                    return ""
    except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        return f"could not be tried ({type(error).__name__}: {str(error)[:80]})"
    return f"gives a block other logits than single tokens ({worst:.2g} of their spread apart)"


def _difference(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """Return the largest difference of two lists of logits, beside their spread; infinite where it is no number."""
    worst = 0.0
    for a, b in zip(one, other, strict=False):
        worst = max(worst, float(torch.nan_to_num((a - b).pow(2).mean().sqrt() / a.std(), nan=float("inf"))))
    return worst
