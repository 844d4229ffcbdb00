"""What one call of an assistant uses at a time, so that calls that overlap share a draft and learn separately."""

from typing import Any

from uag.drafting.drafter import Drafter
from uag.drafting.models.own_copy import CopyPairing
from uag.drafting.optional import OptionalSources
from uag.drafting.pairing import Pairing
from uag.errors import PairError
from uag.lookahead import Lookahead


class Session:
    """A drafter with its caches, and what its calls have taught it. `call` is the call that uses it, or None.

    `source` is a draft model with its drafters, or a drafter for all targets; None for the `optional` sources alone.
    With `is_rejection`, a drafter that cannot provide its probabilities is refused with a `PairError`.
    """

    def __init__(
        self,
        source: Pairing | CopyPairing | Drafter | None,
        optional: OptionalSources,
        lookahead: Lookahead,
        *,
        is_rejection: bool,
    ) -> None:
        self.call: object = None
        self.pairing = None if source is None or isinstance(source, Drafter) else source
        self.drafter = source if source is None or isinstance(source, Drafter) else source.for_all
        self.optional, self.lookahead, self._is_rejection = optional, lookahead, is_rejection
        self._check_sampling(self.drafter)

    def drafter_for(self, model: Any) -> tuple[Drafter | None, bool]:
        """Return a target's drafter or None, and whether shared ids are only assumed; see `Pairing.drafter_for`."""
        if self.pairing is None:
            return self.drafter, False
        drafter, is_assumed = self.pairing.drafter_for(model)
        self._check_sampling(drafter)
        return drafter, is_assumed

    def _check_sampling(self, drafter: Drafter | None) -> None:
        """Raise a `PairError` for rejection sampling with a drafter that cannot provide the probabilities."""
        if self._is_rejection and drafter is not None and drafter.strategy == "cross-tokenizer":
            raise PairError(
                "sampling='rejection' needs the draft's exact probability of every target token, which a draft with "
                "another tokenizer cannot provide. Use the default sampling='shared-noise', exact for any draft."
            )
