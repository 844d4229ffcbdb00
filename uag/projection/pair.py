"""Two tokenizers that are to work together, with what was worked out between them."""

from dataclasses import dataclass
from typing import Self

from uag.adapters import TokenizerAdapter
from uag.errors import PairError
from uag.projection.vocabulary import VocabularyMap, vocabulary_map


@dataclass(frozen=True)
class TokenizerPair:
    """A target's and a draft's tokenizer.

    Attributes:
        target: adapter of the target's tokenizer.
        draft: adapter of the draft's tokenizer.
        maps: the byte-exact maps between them.
    """

    target: TokenizerAdapter
    draft: TokenizerAdapter
    maps: VocabularyMap

    @classmethod
    def of(cls, target: TokenizerAdapter, draft: TokenizerAdapter) -> Self:
        """Pair two tokenizers that can work together.

        Raises:
            PairError: the draft's text can never become target tokens.
        """
        maps = vocabulary_map(target, draft)
        if not maps.is_identity and not maps.has_reachable:
            raise PairError(
                f"The tokenizers {type(target.tokenizer).__name__!r} (target) and {type(draft.tokenizer).__name__!r} "
                "(draft) have no bytes in common: no token of the draft begins any text that the target can write. "
                "Use a draft whose tokenizer covers the target's text, or call generate without an assistant."
            )
        return cls(target, draft, maps)
