"""Finds the tokenizers of a pair of models, and decides whether both models use the same ids.

If no tokenizers are known, models whose heads have the same size are assumed to share their ids. A wrong assumption
reduces acceptance but never changes the output, because the target verifies ids. The statistics report it.
"""

import weakref
from typing import Any

from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.drafting.drafter import Drafter
from uag.drafting.models.model_drafter import ModelDrafter
from uag.drafting.models.opening import adapter_for, check, head_size, is_encoder_decoder, tokenizer_of
from uag.errors import PairError
from uag.gguf import GgufDraft
from uag.hf import wrapped
from uag.projection import TokenizerPair

ASSUMED = "no tokenizers are known: the target and the draft are assumed to use the same ids"


class Pairing:
    """A draft model with its drafters: one for all targets if both tokenizers are passed, else one per target.

    Args:
        draft: the draft model.
        tokenizer: the targets' tokenizer; None to look for it where a target was loaded from.
        draft_tokenizer: the draft's tokenizer; None to look for it where the draft was loaded from.
        compile_draft: see `ModelDrafter`.

    Attributes:
        draft: the draft model, without wrappers.
        for_all: the drafter for all targets; None if each target has its own.

    Raises:
        PairError: the tokenizers cannot work together.
        UnsupportedError: the draft cannot draft.
    """

    def __init__(
        self, draft: Any, tokenizer: Any = None, draft_tokenizer: Any = None, *, compile_draft: bool = False
    ) -> None:
        self.draft = wrapped.unwrapped(draft)
        check(self.draft)
        if draft_tokenizer is None and isinstance(self.draft, GgufDraft):
            draft_tokenizer = self.draft.tokenizer
        self._adapters = _adapter(tokenizer), _adapter(draft_tokenizer)
        self._compile_draft = compile_draft
        self._by_target: weakref.WeakKeyDictionary[Any, tuple[Drafter, bool]] = weakref.WeakKeyDictionary()
        self.for_all = None if None in self._adapters else self._drafter(*self._adapters)

    def drafter_for(self, target: Any) -> tuple[Drafter, bool]:
        """Return the drafter for a target, and whether the models are only assumed to share their ids.

        Raises:
            PairError: the tokenizers cannot work together; or they are unknown and the models cannot share their ids;
                or the draft is an encoder-decoder and the target is not, so there is no source text.
        """
        if is_encoder_decoder(self.draft) and not target.config.is_encoder_decoder:
            raise PairError(
                f"The draft {self.draft.__class__.__name__!r} is an encoder-decoder and the target "
                f"{type(target).__name__!r} is not. Use a decoder-only draft."
            )
        if self.for_all is not None:
            return self.for_all, False
        if target not in self._by_target:
            of_target, of_draft = self._adapters
            of_target, of_draft = (
                of_target or _adapter(tokenizer_of(target)),
                of_draft or _adapter(tokenizer_of(self.draft)),
            )
            is_assumed = of_target is None or of_draft is None
            if is_assumed and head_size(target) != head_size(self.draft):
                raise self._unknown(target, of_target, of_draft)
            self._by_target[target] = self._drafter(of_target or of_draft, of_draft or of_target), is_assumed
        return self._by_target[target]

    def _drafter(self, of_target: TokenizerAdapter | None, of_draft: TokenizerAdapter | None) -> Drafter:
        pair = None
        if of_target is not None and of_draft is not None:
            pair = TokenizerPair.of(of_target, adapter_for(of_target, of_draft, self.draft))
        return ModelDrafter(self.draft, pair, compile_draft=self._compile_draft)

    def _unknown(self, target: Any, of_target: Any, of_draft: Any) -> PairError:
        unknown = {"tokenizer": of_target, "draft_tokenizer": of_draft}
        missing = " and ".join(name for name, adapter in unknown.items() if adapter is None)
        return PairError(
            f"The models have heads of different sizes ({head_size(target)} entries for the target, "
            f"{head_size(self.draft)} for the draft), so their tokenizers may differ, and {missing} cannot be found. "
            "Pass both: uag.Assistant(draft, draft_tokenizer, tokenizer), or after uag.install() "
            "model.generate(..., assistant_model=draft, tokenizer=tokenizer, assistant_tokenizer=draft_tokenizer)."
        )


def _adapter(tokenizer: Any) -> TokenizerAdapter | None:
    return None if tokenizer is None else from_tokenizer(tokenizer)
