"""The trial of a way to run a target: does a block of tokens have the same logits as single tokens, and the same bits?

It runs a few passes over synthetic ids through `Target`, as a call does, each one token later than the one before it.
So the same tokens are computed at several places of blocks of several widths. With uag's kernels, their logits should
be equal bit for bit. Because bits can be equal by luck, the trial also looks for operations of PyTorch that may round
by the number of tokens (`uag.kernels.rounding`), and compares the kernels' logits with PyTorch's.

In training mode, a target whose passes draw random numbers is refused: plain decoding draws once per token.
"""

import copy
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import StaticCache, StoppingCriteriaList

from uag.decoding.call import Call, Candidates, Outcome
from uag.decoding.rows import Rows
from uag.decoding.target import Limits, Target
from uag.hf import blocks, devices, foreign_code, models, passes, weights
from uag.hf.cache import caches, static
from uag.hf.inspection import is_training
from uag.hf.switches import Switches
from uag.hf.trials import DrawsError, once
from uag.kernels import OwnKernels, Seen, watching
from uag.proposal import Proposal
from uag.stats import Stats

T = TypeVar("T")

_PROMPT_LENGTH, _NUM_PADS = 6, 2  # tokens of the trial's prompt, and how many of them the second row lacks
_WIDTHS = (9, 4, 2, 1)  # tokens per row of the passes after the prompt
_NUM_SLOTS = 32  # slots of the trial's cache if the call's is static

_MAX_DIFFERENCE, _MAX_DIFFERENCE_IN_HALF = 1e-3, 0.1
"""RMS difference of two rows of logits, relative to their standard deviation, that is treated as rounding: measured
rounding was up to 3e-6 in float32 and 0.03 in bfloat16; real errors were 0.2 or more."""

# The same for a pass in one call beside PyTorch, in float32: at most 5e-6 with five real models; without Gemma 2's soft
# cap, 5e-5. A pass that differs by more runs layer by layer, so a smaller bound costs little.
_MOST_IN_ONE_CALL = 3e-5


@dataclass(frozen=True)
class Way:
    """A way to run passes; with `num_slots`, all have the call's fixed width, over a static cache of this size."""

    kernels: OwnKernels = field(default_factory=OwnKernels)
    num_slots: int = 0

    @property
    def name(self) -> str:
        """What distinguishes its trial from those of other ways."""
        kernels = "one call" if self.kernels.decoder else f"{len(self.kernels)} kernels"
        return f"{kernels}{', everywhere' * self.kernels.everywhere}, {self.num_slots} slots"

    @property
    def signature(self) -> Any:
        """What is read from the model's weights, which may change without its classes."""
        return self.kernels.decoder and self.kernels.decoder.signature


@dataclass(frozen=True)
class Trial:
    """What the trial of a way found; `seen` is what the passes ran in PyTorch.

    `refusal` is how blocks differ from single tokens, beyond rounding, and `dependence` why the bits of a token's
    logits depend on the block, both phrased to follow "the target" or empty. `is_wrong`: the kernels differ from
    PyTorch, or raise an error.
    """

    refusal: str = ""
    dependence: str = ""
    is_wrong: bool = False
    seen: Counter[tuple[str, Any]] = field(default_factory=Counter)


def run(call: Call, way: Way, *, is_ragged: bool) -> Trial:
    """Return the result of a way's trial, which runs once per model, mode and kind of cache, on all ranks together.

    With `is_ragged`, padding must not change a row either. Changes that the caller trusts are not tried: they may
    observe each pass.
    """
    model, num_rows, is_static = call.model, _num_rows(call, way), _is_static(call)
    is_trusted = not call.kernels and bool(foreign_code.changes(model)) and not foreign_code.of_others(model)
    if call.ranks.broadcast(is_trusted and not way.num_slots):
        return Trial(dependence=call.kernels.why_none)
    trial = _once(
        model,
        f"{way.name}, {num_rows} rows{', padded' if is_ragged else ''}{', static' if is_static else ''}",
        lambda: _try_width(call, way) if way.num_slots else _try(call, way, is_ragged),
        lambda why: Trial(f"could not be tested ({why})", is_wrong=bool(way.kernels)),
        (way.signature, weights.shapes(model) if way.num_slots else 0, torch.get_num_threads()),
    )
    return call.ranks.broadcast(trial)


def are_right(call: Call) -> bool:
    """Return whether the kernels compute what PyTorch computes for single tokens, in calls without candidates."""
    way = Way(call.kernels)
    return _once(call.model, "single tokens", lambda: not _is_wrong(call, way), lambda _: False, len(call.kernels))


def _is_static(call: Call) -> bool:
    return static.is_static(caches.cache_in(call.model_kwargs))


def _once(model: Any, name: str, run: Callable[[], T], failed: Callable[[str], T], key: Any) -> T:
    """Run a trial, as `uag.hf.trials.once` does, also again if what may be a switch in the model changes."""
    switches = Switches(model)

    def run_and_compare() -> T:
        try:
            return run()
        finally:
            switches.ignore_changes(model)

    kinds = models.kinds_of(model), foreign_code.layers_of_others(model), foreign_code.functions(model)
    return once(model, name, run_and_compare, failed, (switches, kinds, key))


def _try(call: Call, way: Way, is_ragged: bool) -> Trial:
    dependence = call.kernels.why_none or "computes other logits with uag's kernels, or fails"
    is_wrong, seen, before = False, Seen(), _states()
    try:
        logits, wide, narrow = _run(call, way)
        if way.kernels:
            operations = {name for name, _ in wide.sizes - narrow.sizes}
            seen.counts = wide.counts | narrow.counts
            is_wrong = _is_wrong(call, way, logits[0])
            # Where rows advance independently, the second row is also computed without its padding. Its widest and its
            # narrowest block are enough, because the padded blocks of the other widths are compared with these two.
            needs_alone = is_ragged and not operations and not is_wrong
            alone = _run(call, way, 1, (_WIDTHS[0], _WIDTHS[-1]))[0] if needs_alone else []
            dependence = _dependence([logits, alone], operations)
        refusal = "" if is_wrong else _refusal(call, logits)
    except DrawsError:
        refusal = "draws random numbers in its passes"
    if is_training(call.model):
        if _states() != before:
            refusal = "draws random numbers in its passes"
        refusal = refusal and f"{refusal} in training mode (call model.eval() first)"
    return Trial(refusal, dependence, is_wrong, seen.counts)


def _try_width(call: Call, way: Way) -> Trial:
    """Return how a token's logits depend on its place in a pass of the fixed width."""
    width = call.fixed_width or 1
    with passes.optimized_for_decode(call.model):
        logits, *_ = _run(call, way, widths=[width] * width)
    return Trial(dependence=_dependence([logits], set()))


def _states() -> tuple[Any, ...]:
    """Return the states of the generators of Python and NumPy, by which layers may be dropped in training mode."""
    state: Any = np.random.get_state()  # noqa: NPY002 - only read
    return random.getstate(), state[1].tobytes(), state[2:]


def _refusal(call: Call, logits: Sequence[torch.Tensor]) -> str:
    """Return how a token in a block differs from the same token alone, by more than rounding."""
    if not (_is_full_precision(call) or foreign_code.of_others(call.model)) and blocks.has_experts(call.model):
        return ""  # rounding may send a token to other experts, which looks like an error
    alone = logits[-1][:, 0]
    in_blocks = [of_pass[:, place] for place, of_pass in enumerate(reversed(logits)) if place < of_pass.shape[1]]
    difference = max(_difference(in_block, alone) for in_block in in_blocks)
    if difference <= (_MAX_DIFFERENCE if _is_full_precision(call) else _MAX_DIFFERENCE_IN_HALF):
        return ""
    return (
        f"computes different logits for a block than for single tokens ({difference:.2g} of their standard deviation)"
    )


def _is_wrong(call: Call, way: Way, logits: torch.Tensor | None = None) -> bool:
    """Return whether the kernels compute other logits than PyTorch; rounding may send a token to other experts.

    One token is enough, because blocks are compared with single tokens; with such experts, the median of several.
    """
    is_routed = not _is_full_precision(call) and blocks.has_experts(call.model)
    one_by_one = (1,) * (_WIDTHS[0] if is_routed else 1)  # some targets cannot read blocks
    expected = torch.cat(_run(call, Way(), widths=one_by_one)[0], dim=1)
    logits = torch.cat(_run(call, way, widths=one_by_one)[0], dim=1) if logits is None else logits
    num_tokens = min(len(one_by_one), logits.shape[1])
    in_full = _MOST_IN_ONE_CALL if way.kernels.decoder else _MAX_DIFFERENCE
    bound = in_full if _is_full_precision(call) else 2 * _MAX_DIFFERENCE_IN_HALF
    return _difference(logits[:, :num_tokens], expected[:, :num_tokens], of_all=not is_routed) > bound


def _difference(logits: torch.Tensor, expected: torch.Tensor, *, of_all: bool = True) -> float:
    """Return the difference of all tokens, or of the median token, in standard deviations; infinite for new NaNs."""
    if bool(expected.isnan().any()):
        return 0.0  # the synthetic tokens overflow in float16, so they show nothing
    squares = (logits - expected).pow(2)
    ratio = (squares.mean() if of_all else squares.mean(-1).median()).sqrt() / expected.std()
    return float(torch.nan_to_num(ratio, nan=float("inf")))


def _is_full_precision(call: Call) -> bool:
    """Whether products are rounded to float32; on accelerators, they and convolutions may be rounded to TF32."""
    is_on_cpu = call.input_ids.device.type == "cpu"
    return is_on_cpu and not devices.float32_is_rounded() and call.model.dtype.itemsize >= 4


def _dependence(trials: Sequence[Sequence[torch.Tensor]], operations: set[str]) -> str:
    """Return why the bits of a token's logits depend on the block, or an empty string."""
    if operations:
        return f"runs {', '.join(sorted(operations))} in PyTorch, which may round by the number of tokens"
    known: dict[tuple[int, int], torch.Tensor] = {}
    for trial in trials:
        for start, of_pass in enumerate(trial):
            for row, of_row in enumerate(reversed(of_pass)):
                for place, logits in enumerate(of_row):
                    if not torch.equal(logits, known.setdefault((row, start + place), logits)):
                        return f"computes a token differently in place {place} of a block of {len(of_row)} tokens"
    return ""


def _num_rows(call: Call, way: Way) -> int:
    """Return the rows of the trial: at most 2, but those of the call where their number or their source matters."""
    num_rows: int = call.input_ids.shape[0]
    return num_rows if way.num_slots or call.model.config.is_encoder_decoder else min(num_rows, 2)


def _run(
    call: Call, way: Way, num_rows: int | None = None, widths: Sequence[int] = _WIDTHS
) -> tuple[list[torch.Tensor], Seen, Seen]:
    """Return the logits [num_rows, width, vocab_size] of each pass, and what PyTorch ran in the first and the last."""
    is_encoder_decoder, kernels = call.model.config.is_encoder_decoder, way.kernels
    num_rows = _num_rows(call, way) if num_rows is None or is_encoder_decoder else num_rows
    ids = models.ordinary_ids(call.model, _PROMPT_LENGTH + len(widths) + max(widths))
    text = torch.tensor([ids] * num_rows, device=call.input_ids.device)
    prompt, mask = text[:, :_PROMPT_LENGTH], torch.ones_like(text[:, :_PROMPT_LENGTH])
    if not is_encoder_decoder and num_rows == 1:  # the padded row of two, alone
        prompt, mask = prompt[:, _NUM_PADS:], mask[:, _NUM_PADS:]
    elif not is_encoder_decoder and call.model_kwargs.get("position_ids") is not None:
        mask[1:, :_NUM_PADS] = 0
    found, seen = [], []
    with kernels.in_place(), kernels.running():  # of the prompt, too, so that a padded one is computed as it is alone
        target, rows = _read(call, way, prompt, mask)
        if caches.has_recurrent_states(target.cache) and len(widths) > 1:
            widths = (*widths, 1)  # the last pass so far reads the first tokens of rejected blocks again
        for start, width in enumerate(widths):
            most = 1 + target.limits.budget(rows.length(0) + 1)
            first, *others = ids[_PROMPT_LENGTH + start :][: min(width, most)]
            for row, progress in enumerate(rows.all):
                progress.outputs.append(first)
                rows.buffer[row, rows.length(row) - 1] = first
            is_watched = bool(kernels) and width in (widths[0], widths[-1])
            with watching() if is_watched else nullcontext(Seen()) as of_pass:
                candidates = Candidates(range(num_rows), [[Proposal(i, 1.0) for i in others]] * num_rows)
                found.append(target.verify(rows, candidates))
                target.keep(Outcome(candidates, [1] * num_rows, [0] * num_rows, is_prefill=False))
            seen.append(of_pass)
    return found, seen[0], seen[-1]


def _read(call: Call, way: Way, prompt: torch.Tensor, mask: torch.Tensor) -> tuple[Target, Rows]:
    """Read a prompt [num_rows, prompt_length] int64 into an empty cache, as a call does; the call is not changed."""
    cache = None
    if way.num_slots:
        cache = static.static_cache(call.model, way.num_slots)
    elif _is_static(call):
        cache = StaticCache(config=call.model.config.get_text_config(decoder=True), max_cache_len=_NUM_SLOTS)
    config, kwargs, criteria = copy.copy(call.generation_config), _kwargs(call, mask, cache), StoppingCriteriaList()
    config.disable_compile = True  # the trial's shapes are not those of the call's own graphs
    config.prefill_chunk_size = None  # which would make a block of a part of the prompt
    trial = replace(
        call, input_ids=prompt, stopping_criteria=criteria, generation_config=config, model_kwargs=kwargs, streamer=None
    )
    target, rows = Target(trial, Stats(), Limits(trial, ()), way.kernels), Rows(trial)
    target.read(rows)
    nothing = Candidates(range(len(prompt)), [[]] * len(prompt))
    target.keep(Outcome(nothing, [1] * len(prompt), [0] * len(prompt), is_prefill=True))
    return target, rows


def _kwargs(call: Call, mask: torch.Tensor, cache: Any) -> dict[str, Any]:
    """Return the forward's arguments for synthetic tokens: the call's, except those that depend on a row's text."""
    of_call, is_encoder_decoder = call.model_kwargs, call.model.config.is_encoder_decoder
    names = ["use_cache", "logits_to_keep", *(["encoder_outputs", "attention_mask"] if is_encoder_decoder else [])]
    kwargs = {name: of_call[name] for name in names if name in of_call}
    for name in caches.CACHE_NAMES:
        if of_call.get(name) is not None:
            kwargs[name] = caches.default_cache(call.model) if cache is None else cache
    if is_encoder_decoder:
        return kwargs
    kwargs["attention_mask"] = mask
    if of_call.get("position_ids") is not None:
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        kwargs["position_ids"] = positions.expand(*of_call["position_ids"].shape[:-2], *positions.shape)
    return kwargs
