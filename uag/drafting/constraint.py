"""Forced tokens: where the call's own `prefix_allowed_tokens_fn` allows a single token, that token is a free candidate.

A grammar or a JSON schema forces many tokens: braces, keys, the rest of an enumeration's value. The function is asked
ahead of the target, along the forced tokens, and the processor then uses these answers instead of asking again. So the
function gets the calls of plain decoding in plain decoding's order, each once, even if it keeps state, and asking costs
nothing. Only a call that ends within forced tokens (by a stop string or a time limit) has asked for more.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from uag import forks
from uag.drafting.drafter import Ask
from uag.drafting.ranked import AcceptanceRates, FreeSource
from uag.hf.devices import default_generator
from uag.hf.processors import prefix_constraint, with_prefix_function

Allowed = Callable[[int, torch.Tensor], Sequence[int]]  # maps a row and its ids [length] to the ids that may follow

_PRIORS = (0.999,)  # initial acceptance rate of a forced token. It is rejected only if another processor excludes it


class ForcedTokens(FreeSource):
    """Candidates from the constraint of a call with one row, whose prompt is `prompt_ids`, with padding."""

    source = "constraint"

    def __init__(self, function: Allowed, prompt_ids: torch.Tensor) -> None:
        super().__init__(AcceptanceRates(_PRIORS))
        self._function = function
        self._ids = prompt_ids.long()  # of the output so far
        self._forced = deque[int]()  # that follow it
        self._answers = deque[tuple[torch.Tensor, Any]]()  # asked ahead: the ids, and the answer or the error to raise
        # None until a call at its usual place has shown that the function draws no random numbers; False for good.
        self._may_ask: bool | None = None

    @classmethod
    def of(cls, processors: Any, prompt_ids: torch.Tensor) -> tuple[Any, "ForcedTokens | None"]:
        """Return a copy of a call's prepared processors, which uses what the source has asked for, and the source.

        The source is None without a constraint, with other code of the caller's beside it, which may share state with
        it, and with several rows, which advance only as far as the least constrained one.
        """
        constraint = prefix_constraint(processors)
        if constraint is None or prompt_ids.shape[0] != 1:
            return processors, None
        source = cls(constraint, prompt_ids[0])
        return with_prefix_function(processors, source.answer), source

    def answer(self, row: int, ids: torch.Tensor) -> Any:
        """Return what the function allows after a row's ids: called by the processor in place of the function."""
        while self._answers:
            asked, found = self._answers.popleft()
            if torch.equal(asked, ids):
                if isinstance(found, Exception):
                    raise found
                return found
            self._forget()  # a forced token was rejected: another processor excludes it
        states = self._generator_states(ids.device)
        found = self._function(row, ids)
        after = self._generator_states(ids.device)
        # A function that draws from the target's generators needs them in plain decoding's state.
        self._may_ask = self._may_ask is not False and all(map(torch.equal, states, after))
        return found

    @staticmethod
    def _generator_states(device: torch.device) -> list[torch.Tensor]:
        generators = {default_generator(kind) for kind in (torch.device("cpu"), device)}
        return [generator.get_state() for generator in generators if generator is not None]

    def _forget(self) -> None:
        self._answers.clear()
        self._forced.clear()
        self._may_ask = False

    def _candidates(self, row: int, num: int, ask: Ask) -> tuple[list[int], list[int]]:
        ids = torch.cat([self._ids, self._ids.new_tensor(list(self._forced))])
        is_open = self._may_ask and len(self._answers) == len(self._forced)
        while is_open and len(self._forced) < num and not (self._forced and self._forced[-1] in ask.stop_ids):
            token_id, found = self._ask(row, ids)
            self._answers.append((ids, found))
            is_open = token_id is not None
            if token_id is not None:
                self._forced.append(token_id)
                ids = torch.cat([ids, ids.new_tensor([token_id])])
        forced = list(self._forced)[:num]
        return forced, [0] * len(forced)

    def _ask(self, row: int, ids: torch.Tensor) -> tuple[int | None, Any]:
        """Return the single token that may follow, or None, and the function's answer or the error that it raised."""
        try:
            found = self._function(row, ids.clone())
            return (int(found[0]) if len(found) == 1 else None), found
        except Exception as error:  # noqa: BLE001 - raised where plain decoding would, after the tokens before it
            forks.let_pass(error)
            return None, error

    def _written(self, row: int, output_ids: Sequence[int], num_right: int) -> None:  # noqa: ARG002
        self._ids = torch.cat([self._ids, self._ids.new_tensor(list(output_ids))])
        for token_id in output_ids:
            if not self._forced:
                break
            if self._forced.popleft() != token_id:
                self._forget()
