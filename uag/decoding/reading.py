"""Made-up tokens through the passes of a call: one after the other, in a block, and in rows of different length."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from transformers import StoppingCriteriaList

from uag.decoding.call import Call
from uag.decoding.candidates import Candidates, Outcome
from uag.decoding.ragged import Ragged
from uag.decoding.rows import Rows
from uag.decoding.stopping import Stopping
from uag.decoding.target import Target
from uag.hf import caches
from uag.proposal import Proposal
from uag.stats import TARGET, Stats


class Reading:
    """One run over made-up tokens, with a cache of its own.

    Args:
        call: whose model, settings and encoder are used; it is left as it is.
        ids: the tokens in front, and those behind them.
        num_first: how many are in front.
        num_pads: padding before them.
        num_rows: rows with these tokens; an encoder-decoder has those of the call.
    """

    def __init__(self, call: Call, ids: list[int], num_first: int, num_pads: int = 0, num_rows: int = 1) -> None:
        self._following = ids[num_first:]
        num_rows = call.input_ids.shape[0] if call.model.config.is_encoder_decoder else num_rows
        first = torch.tensor([[ids[0]] * num_pads + ids[:num_first]] * num_rows, device=call.input_ids.device)
        own = replace(
            call,
            input_ids=first,
            stopping_criteria=StoppingCriteriaList(),
            model_kwargs=_kwargs(call, first, num_pads),
            streamer=None,
            exact_half_precision=False,
            cuts=(),
        )
        self._target = Target(own, Stats())
        self._rows = Rows(own, Stopping(own.stopping_criteria))
        self._everyone = list(range(num_rows))

    def singly(self) -> list[torch.Tensor]:
        """One pass for each token; returns the logits behind each."""
        found = [self._pass(self._target.read, [])]
        return found + [self._append(token_id) for token_id in self._following]

    def in_a_block(self) -> list[torch.Tensor]:
        """All tokens in one pass behind the first ones; then all but one are put back, and the second goes alone."""
        found = [self._pass(self._target.read, [])]
        self._write(self._following[0])
        found += torch.split(self._pass(self._target.verify, self._following[1:]), 1, dim=1)
        return [*found, self._append(self._following[1])]

    def at_once(self) -> list[torch.Tensor]:
        """All tokens in the pass that reads the first ones."""
        if not self._target.takes_candidates_first():
            return self.singly()
        return list(torch.split(self._pass(self._target.read, self._following), 1, dim=1))

    def apart(self) -> list[torch.Tensor]:
        """Two rows, the first of which goes on faster: the logits behind its fourth token, and the other's second.

        Returns:
            Both, each [1, 1, vocab_size]; an empty list where rows go in step anyhow.
        """
        nothing = Candidates(self._everyone, [[] for _ in self._everyone])
        self._target.read(self._rows, nothing)
        if not self._target.can_be_ragged():
            return []
        ragged = Ragged(self._target, 1)
        ragged.keep(Outcome(nothing, [1, 1], [0, 0], is_first=True))
        self._write(self._following[0])
        line = [Proposal(token_id, 1.0) for token_id in self._following[1:3]]
        offered = Candidates(self._everyone, [line, line])
        ragged.verify(self._rows, offered)
        for row, written in zip(self._rows.all, (self._following[1:4], self._following[1:2]), strict=True):
            row.outputs.extend(written)
        ragged.keep(Outcome(offered, [3, 1], [2, 0], is_first=False))
        return list(torch.split(ragged.verify(self._rows, nothing), 1))

    def _append(self, token_id: int) -> torch.Tensor:
        self._write(token_id)
        return self._pass(self._target.verify, [])

    def _write(self, token_id: int) -> None:
        self._rows.grow(len(self._rows.all[0].outputs) + 1)
        for row, progress in enumerate(self._rows.all):
            progress.outputs.append(token_id)
            progress.sources.append(TARGET)
            self._rows.buffer[row, self._rows.length(row) - 1] = token_id

    def _pass(self, run: Callable[..., torch.Tensor], candidates: list[int]) -> torch.Tensor:
        """Run one pass and keep its first token only."""
        is_first = not self._rows.all[0].outputs
        lines = [[Proposal(token_id, 1.0) for token_id in candidates] for _ in self._everyone]
        offered = Candidates(self._everyone, lines)
        logits = run(self._rows, offered)
        counts = [1] * len(self._everyone), [0] * len(self._everyone)
        self._target.keep(Outcome(offered, *counts, is_first=is_first))
        return logits


def _kwargs(call: Call, ids: torch.Tensor, num_pads: int) -> dict[str, Any]:
    """Return the forward's arguments for made-up tokens: those of the call that belong to no row's text."""
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
    mask = torch.ones_like(ids)
    mask[:, :num_pads] = 0
    kwargs["attention_mask"] = mask
    if given.get("position_ids") is not None:
        places = (mask.cumsum(-1) - 1).clamp_(min=0)
        kwargs["position_ids"] = places.expand(*given["position_ids"].shape[:-2], *places.shape)
    return kwargs
