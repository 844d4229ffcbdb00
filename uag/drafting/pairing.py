"""The tokenizers of a pair of models: find them, and decide whether both models use the same ids.

Wrong guesses cost acceptance, never output: the target verifies ids. So if only the sizes are known, models whose heads
are equal or differ by padding alone are assumed to share their ids, and the statistics say so.
"""

import weakref
from typing import Any

from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.drafting.drafter import Drafter
from uag.drafting.lookup import PromptLookup
from uag.drafting.models.model_drafter import ModelDrafter
from uag.drafting.models.opening import check, head_size, is_encoder_decoder, pair_of, special_id, tokenizer_of
from uag.drafting.ranked import FreeFirst
from uag.errors import PairError
from uag.gguf import GgufDraft
from uag.hf import wrapped
from uag.projection import TokenizerPair

_MOST_PADDING = 512
_MOST_PADDING_SHARE = 0.08
"""Heads are padded to a multiple of 64 to 512; Qwen2.5-7B and 0.5B differ by 128 of 152,064. Increase to pair more
models by guess; decrease to refuse more that do not share their ids."""

ASSUMED = "no tokenizers were given: ids are taken to mean the same to the target and the draft"


class Pairing:
    """A draft model with its drafters: one for all targets if both tokenizers are known, else one for each target.

    Args:
        draft: the draft model.
        tokenizer: the targets' tokenizer, None if unknown.
        draft_tokenizer: the draft's tokenizer, None if unknown.
        prompt_lookup: propose from the prompt where that promises more.
        options: of `ModelDrafter`.

    Attributes:
        draft: as given.
        for_all: the drafter for all targets, None if there is one for each.

    Raises:
        PairError: the pair cannot work.
        UnsupportedError: the draft cannot draft.
    """

    def __init__(
        self, draft: Any, tokenizer: Any = None, draft_tokenizer: Any = None, *, prompt_lookup: bool, **options: Any
    ) -> None:
        self.draft = wrapped.unwrapped(draft)
        check(self.draft)
        if draft_tokenizer is None and isinstance(self.draft, GgufDraft):
            draft_tokenizer = self.draft.tokenizer
        self._tokenizers = tokenizer, draft_tokenizer
        self._looks_up = prompt_lookup
        self._options = options
        self._by_target: weakref.WeakKeyDictionary[Any, tuple[Drafter, bool]] = weakref.WeakKeyDictionary()
        draft_adapter = None if draft_tokenizer is None else from_tokenizer(draft_tokenizer)
        self.for_all: Drafter | None = None
        if tokenizer is not None and draft_adapter is not None:
            pair = pair_of(from_tokenizer(tokenizer), draft_adapter, self.draft)
            self.for_all = self._with_lookup(ModelDrafter(self.draft, pair, **options))

    def drafter_for(self, target: Any) -> tuple[Drafter, bool]:
        """Return the drafter for a target, and whether ids are assumed to mean the same; errors as above."""
        check_kinds(target, self.draft)
        if self.for_all is not None:
            return self.for_all, False
        if target not in self._by_target:
            drafter, is_assumed = pair_drafter(target, self.draft, *self._tokenizers, **self._options)
            self._by_target[target] = self._with_lookup(drafter), is_assumed
        return self._by_target[target]

    def _with_lookup(self, drafter: Drafter) -> Drafter:
        return FreeFirst(drafter, [PromptLookup()]) if self._looks_up else drafter


def pair_drafter(
    target: Any, draft: Any, tokenizer: Any = None, draft_tokenizer: Any = None, **options: Any
) -> tuple[ModelDrafter, bool]:
    """Make the drafter of a pair of models, whatever is known of their tokenizers.

    A tokenizer that is None is looked for where its model was loaded from; nothing is downloaded.

    Args:
        target: the target model.
        draft: the draft model.
        tokenizer: the target's tokenizer, None if unknown.
        draft_tokenizer: the draft's tokenizer, None if unknown.
        options: of `ModelDrafter`.

    Returns:
        The drafter, and whether ids are assumed to mean the same.

    Raises:
        PairError: the tokenizers are unknown, and the models cannot share their ids.
        UnsupportedError: the draft cannot draft.
    """
    draft = wrapped.unwrapped(draft)
    check_kinds(target, draft)
    target_adapter, draft_adapter = _adapter(tokenizer, target), _adapter(draft_tokenizer, draft)
    if target_adapter is not None and draft_adapter is not None:
        return ModelDrafter(draft, pair_of(target_adapter, draft_adapter, draft), **options), False
    known = draft_adapter or target_adapter
    if may_share_ids(target, draft):
        return ModelDrafter(draft, None if known is None else TokenizerPair.of(known, known), **options), True
    sizes = f"{head_size(target)} entries for the target, {head_size(draft)} for the draft"
    missing = "tokenizer" if target_adapter is None else "draft_tokenizer"
    if known is None:
        missing = "tokenizer and draft_tokenizer"
    raise PairError(
        f"The models have heads of different size ({sizes}), so their tokenizers differ, and {missing} cannot be "
        "found. Pass both: uag.Assistant(draft, draft_tokenizer, tokenizer), or after uag.install() "
        "model.generate(..., assistant_model=draft, tokenizer=tokenizer, assistant_tokenizer=draft_tokenizer)."
    )


def check_kinds(target: Any, draft: Any) -> None:
    """Refuse an encoder-decoder draft for a decoder-only target, which has no source text.

    Raises:
        PairError: for such a pair.
    """
    if is_encoder_decoder(draft) and not target.config.is_encoder_decoder:
        raise PairError(
            f"The draft {draft.__class__.__name__!r} is an encoder-decoder and the target {type(target).__name__!r} is "
            "not. Use a decoder-only draft."
        )


def may_share_ids(target: Any, draft: Any) -> bool:
    """Return whether two models may have the same tokenizer, from their heads and special ids alone."""
    first, second = head_size(target), head_size(draft)
    if first == second:
        return True
    difference = abs(first - second)
    if difference > min(_MOST_PADDING, _MOST_PADDING_SHARE * max(first, second)):
        return False
    pairs = [(special_id(target, name), special_id(draft, name)) for name in ("eos_token_id", "bos_token_id")]
    known = [(of_target, of_draft) for of_target, of_draft in pairs if of_target is not None and of_draft is not None]
    return bool(known) and all(of_target == of_draft for of_target, of_draft in known)


def _adapter(tokenizer: Any, model: Any) -> TokenizerAdapter | None:
    if tokenizer is None:
        tokenizer = tokenizer_of(model)
    return None if tokenizer is None else from_tokenizer(tokenizer)
