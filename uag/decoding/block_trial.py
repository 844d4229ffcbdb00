"""Does a block of tokens give what one token after the other gives? Three passes over synthetic ids tell.

The passes are those of a call: `Target` reads a prompt, checks a block behind it, and is put back to the block's first
token; then the second token runs alone. Its logits must be those that it had in the block.

The trial runs a target in the mode that it is in. In training mode, passes that draw random numbers are refused for
that alone: plain decoding draws once per token, and the random generator must end where plain decoding leaves it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from transformers import StoppingCriteriaList

from uag.decoding.call import Call
from uag.decoding.candidates import Candidates, Outcome
from uag.decoding.rows import Rows
from uag.decoding.stopping import Stopping
from uag.decoding.target import Target
from uag.hf import models
from uag.hf.cache import caches
from uag.hf.evaluation import is_training
from uag.hf.layers import modules
from uag.hf.trials.once import forget, once, random_states, remembered
from uag.proposal import Proposal
from uag.stats import TARGET, Stats

_NUM_FIRST, _WIDTH = 6, 3
"""Tokens of the prompt, and of the block: the fewest that show masks, positions and the rollback of the cache."""

_MAX_DIFFERENCE = {torch.float32: 1e-3, torch.float64: 1e-3}
_MAX_DIFFERENCE_IN_HALF = 0.1
"""Root mean square difference of two rows of logits, as a share of their standard deviation, that counts as rounding.

Rounding made up to 3e-6 in float32 and 0.03 in bfloat16 where it was measured; faults make 0.2 and more.
"""

_NAME = "block"


def refusal(call: Call) -> str:
    """Say why blocks do not give what single tokens give, to stand behind "the target"; empty where they do.

    Costs three passes, once for each model and mode. The passes are run by all ranks together.
    """
    model, ranks, key = call.model, call.ranks, _key(call.model)
    answer = ranks.tell(remembered(model, _NAME, key))
    if answer is None:
        forget(model, _NAME)  # ranks may remember different things, and must run the same passes
        failed = "could not be tried ({})".format
        answer = ranks.tell(once(model, _NAME, lambda: _compare(call), failed, key, as_it_is=True))
    found: str = answer
    return found if not found or not is_training(model) else f"{found} in training mode (call model.eval() first)"


def _key(model: Any) -> Any:
    """Return what the answer depends on: the kinds of layers, the number type, and in training mode all rates."""
    everything = modules(model)
    kinds = tuple(map(type, everything)), model.dtype, model.device.type, models.attention_of(model)
    if not is_training(model):
        return kinds
    numbers = [v for m in everything for v in list(vars(m).values()) if isinstance(v, bool | int | float)]
    return *kinds, tuple(numbers), repr(model.config)


def _compare(call: Call) -> str:
    before = random_states(call.model)
    passes = _TrialPasses(call, synthetic_ids(call.model, _NUM_FIRST + _WIDTH))
    in_block, alone = passes.in_block_and_alone()
    if random_states(call.model) != before:
        return "draws random numbers in its passes"
    difference = (in_block - alone).pow(2).mean().sqrt() / alone.std()
    share = float(torch.nan_to_num(difference, nan=float("inf")))
    if share <= _MAX_DIFFERENCE.get(call.model.dtype, _MAX_DIFFERENCE_IN_HALF):
        return ""
    return f"gives a block other logits than single tokens ({share:.2g} of their standard deviation)"


def synthetic_ids(model: Any, size: int) -> list[int]:
    """Return so many ids from all over the vocabulary, none of which stands for an image or the like."""
    config = model.config
    special = {
        value
        for part in (config, config.get_text_config(decoder=True))
        for name, value in part.to_dict().items()
        if name.endswith(("token_id", "token_index")) and isinstance(value, int)
    }
    vocab_size = int(model.get_input_embeddings().weight.shape[0])
    scattered = ((7919 * place) % vocab_size for place in range(3, 3 + vocab_size))
    usual = [token_id for token_id in scattered if token_id not in special][:size]
    return [usual[place % len(usual)] for place in range(size)]


class _TrialPasses:
    """Three passes over synthetic tokens, with a cache of their own.

    Args:
        call: whose model, settings and encoder output are used; it is left as it is.
        ids: the tokens of the prompt and of the block.
    """

    def __init__(self, call: Call, ids: list[int]) -> None:
        self._block = ids[_NUM_FIRST:]
        num_rows = call.input_ids.shape[0] if call.model.config.is_encoder_decoder else 1
        prompt = torch.tensor([ids[:_NUM_FIRST]] * num_rows, device=call.input_ids.device)
        trial = replace(
            call,
            input_ids=prompt,
            stopping_criteria=StoppingCriteriaList(),
            model_kwargs=_kwargs(call, prompt),
            streamer=None,
        )
        self._target = Target(trial, Stats(), ())
        self._rows = Rows(trial, Stopping(trial.stopping_criteria))
        self._all = list(range(num_rows))

    def in_block_and_alone(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits behind the block's second token, in the block and by itself."""
        self._pass(self._target.read, [])
        self._write(self._block[0])
        in_block = self._pass(self._target.verify, self._block[1:])
        self._write(self._block[1])
        return in_block[:, 1], self._pass(self._target.verify, [])[:, 0]

    def _write(self, token_id: int) -> None:
        self._rows.grow(len(self._rows.all[0].outputs) + 1)
        for row, progress in enumerate(self._rows.all):
            progress.outputs.append(token_id)
            progress.sources.append(TARGET)
            self._rows.buffer[row, self._rows.length(row) - 1] = token_id

    def _pass(self, run: Callable[..., torch.Tensor], candidates: list[int]) -> torch.Tensor:
        """Run one pass and keep its first token only."""
        is_first = not self._rows.all[0].outputs
        lines = [[Proposal(token_id, 1.0) for token_id in candidates] for _ in self._all]
        offered = Candidates(self._all, lines)
        logits = run(self._rows, offered)
        counts = [1] * len(self._all), [0] * len(self._all)
        self._target.keep(Outcome(offered, *counts, is_first=is_first))
        return logits


def _kwargs(call: Call, prompt: torch.Tensor) -> dict[str, Any]:
    """Return the forward's arguments for synthetic tokens: those of the call that belong to no row's text."""
    given = call.model_kwargs
    names = ["use_cache", "logits_to_keep"]
    if call.model.config.is_encoder_decoder:
        names += ["encoder_outputs", "attention_mask"]
    kwargs = {name: given[name] for name in names if name in given}
    for name in caches.cache_names():
        if given.get(name) is not None:
            kwargs[name] = caches.default_cache(call.model)
    if call.model.config.is_encoder_decoder:
        return kwargs
    mask = torch.ones_like(prompt)
    kwargs["attention_mask"] = mask
    if given.get("position_ids") is not None:
        places = mask.cumsum(-1) - 1
        kwargs["position_ids"] = places.expand(*given["position_ids"].shape[:-2], *places.shape)
    return kwargs
