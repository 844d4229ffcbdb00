"""What speaks for a candidate from a known text, and how often candidates with such a ground were accepted."""

from collections import OrderedDict
from dataclasses import dataclass, field

from uag.drafting.texts.known_text import Known

FOLLOWS, RESUMES, INSERTED, NEAR, BEHIND, FAR, WORD, LINE, END = (
    "follows", "resumes", "inserted", "near", "behind", "far", "word", "line", "end",
)  # fmt: skip

Ground = tuple[str, int]
"""The kind of guess, and its class: how long the text was followed or the match is, or how often it was tried."""

Content = bytes | tuple[int, ...]
"""A text as the target would write it, or ids."""

_PRIOR_WEIGHT, _FADING = 4.0, 0.98
"""Measured candidates that a prior counts as, and what one counts after the next: higher is steadier, learns later."""

_MOST_KEPT = 8
"""Texts whose index is kept for later calls: more serve texts that come again, and hold more memory."""

_PRIORS: dict[str, tuple[float, ...]] = {
    FOLLOWS: (0.6, 0.75, 0.85, 0.9, 0.94, 0.97, 0.98),
    RESUMES: (0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95),
    INSERTED: (0.9, 0.8, 0.7, 0.4),
    NEAR: (0.9, 0.8, 0.65, 0.3),
    BEHIND: (0.7, 0.5, 0.3),
    FAR: (0.5,),
    WORD: (0.5, 0.35, 0.25),
    LINE: (0.5,),
    END: (0.5,),
}
"""Acceptance expected of a candidate, by kind and class, before anything was learnt."""


@dataclass
class Learnt:
    """What is kept of known texts between calls.

    Attributes:
        accepted: by ground, candidates that were accepted; faded.
        seen: by ground, candidates that were checked.
    """

    accepted: dict[Ground, float] = field(default_factory=dict)
    seen: dict[Ground, float] = field(default_factory=dict)
    _texts: OrderedDict[Content, Known] = field(default_factory=OrderedDict, repr=False)

    def rate(self, ground: Ground) -> float:
        """Predict the acceptance of a candidate."""
        kind, level = ground
        accepted = self.accepted.get(ground, 0.0) + _PRIOR_WEIGHT * _PRIORS[kind][level]
        return accepted / (self.seen.get(ground, 0.0) + _PRIOR_WEIGHT)

    def learn(self, ground: Ground, was_accepted: bool) -> None:
        """Add one checked candidate."""
        self.accepted[ground] = _FADING * self.accepted.get(ground, 0.0) + was_accepted
        self.seen[ground] = _FADING * self.seen.get(ground, 0.0) + 1.0

    def known(self, content: Content) -> Known:
        """Return a text, with the index of it that an earlier call has made.

        Raises:
            OptionError: a number that is no id.
        """
        found = self._texts.pop(content, None)
        if found is None:
            found = Known.of_bytes(content) if isinstance(content, bytes) else Known.of_ids(content)
        self._texts[content] = found
        while len(self._texts) > _MOST_KEPT:
            self._texts.popitem(last=False)
        return found

    def __getstate__(self) -> dict[str, object]:
        """Return what a copy or another process needs; texts are read again there."""
        return {"accepted": dict(self.accepted), "seen": dict(self.seen), "_texts": OrderedDict()}
