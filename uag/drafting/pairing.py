"""Finds the tokenizers of a pair of models, and decides whether both models use the same ids.

Without tokenizers, models whose heads have the same size are assumed to share their ids: a wrong assumption reduces
acceptance, and the statistics report it.
"""

import weakref
from typing import Any

from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.drafting.drafter import Drafter
from uag.drafting.models.model_drafter import ModelDrafter
from uag.drafting.models.open_draft import adapter_for, head_size, is_encoder_decoder, tokenizer_of
from uag.drafting.models.trials import check_draft
from uag.errors import PairError
from uag.gguf import GgufDraft
from uag.hf import wrapped
from uag.projection import TokenizerPair

ASSUMED = "no tokenizers are known: the target and the draft are assumed to use the same ids"


class Pairing:
    """A draft model with its drafters: one `for_all` targets if both tokenizers are passed, else one per target.

    A tokenizer that is None is looked for where its model was loaded from.

    Raises:
        PairError: the tokenizers cannot work together.
        UnsupportedError: the draft cannot draft.
    """

    def __init__(
        self,
        draft: Any,
        tokenizer: Any = None,
        draft_tokenizer: Any = None,
        *,
        compile_draft: bool = False,
        draft_weights: str = "int8",
    ) -> None:
        self._draft = wrapped.unwrapped(draft)
        check_draft(self._draft)  # at once, since its drafters may be created later
        if isinstance(self._draft, GgufDraft) and draft_tokenizer is None:
            draft_tokenizer = self._draft.tokenizer
        self._target_adapter, self._draft_adapter = adapter_of(tokenizer), adapter_of(draft_tokenizer)
        self._compile_draft, self._draft_weights = compile_draft, draft_weights
        self._by_target: weakref.WeakKeyDictionary[Any, tuple[Drafter, bool]] = weakref.WeakKeyDictionary()
        is_known = self._target_adapter is not None and self._draft_adapter is not None
        self.for_all = self._drafter(self._target_adapter, self._draft_adapter) if is_known else None
        self.mismatch = mismatch_of("draft", self._draft, self._draft_adapter)

    def drafter_for(self, target: Any) -> tuple[Drafter, bool]:
        """Return the drafter for a target, and whether shared ids are only assumed, or raise a `PairError`."""
        if is_encoder_decoder(self._draft) and not target.config.is_encoder_decoder:
            raise PairError(
                f"The draft {self._draft.__class__.__name__!r} is an encoder-decoder and the target "
                f"{type(target).__name__!r} is not. Use a decoder-only draft."
            )
        if self.for_all is not None:
            return self.for_all, False
        if target not in self._by_target:
            of_target = self._target_adapter or adapter_of(tokenizer_of(target))
            of_draft = self._draft_adapter or adapter_of(tokenizer_of(self._draft))
            is_assumed = of_target is None or of_draft is None
            if is_assumed and head_size(target) != head_size(self._draft):
                unknown = {"tokenizer": of_target, "draft_tokenizer": of_draft}
                missing = " and ".join(name for name, adapter in unknown.items() if adapter is None)
                raise PairError(
                    f"The models have heads of different sizes ({head_size(target)} entries for the target, "
                    f"{head_size(self._draft)} for the draft), so their tokenizers may differ, and {missing} cannot be "
                    "found. Pass both: uag.Assistant(draft, draft_tokenizer, tokenizer), or after uag.install() "
                    "model.generate(..., assistant_model=draft, tokenizer=tokenizer, "
                    "assistant_tokenizer=draft_tokenizer)."
                )
            self._by_target[target] = self._drafter(of_target or of_draft, of_draft or of_target), is_assumed
        return self._by_target[target]

    def _drafter(self, of_target: TokenizerAdapter | None, of_draft: TokenizerAdapter | None) -> Drafter:
        pair = None
        if of_target is not None and of_draft is not None:
            pair = TokenizerPair.of(of_target, adapter_for(of_target, of_draft, self._draft))
        weights = self._draft_weights
        return ModelDrafter(self._draft, pair, compile_draft=self._compile_draft, draft_weights=weights)


def adapter_of(tokenizer: Any) -> TokenizerAdapter | None:
    """Return a tokenizer's adapter; None for None."""
    return None if tokenizer is None else from_tokenizer(tokenizer)


def dtypes_of(target: Any, draft: Any) -> str:
    """Return the dtypes of a target and a draft if they differ; else empty, also without a draft or for a GGUF file."""
    of_target, of_draft = (str(getattr(model, "dtype", "")).removeprefix("torch.") for model in (target, draft))
    return f"target {of_target}, draft {of_draft}" if of_draft not in ("", of_target) else ""


def mismatch_of(role: str, model: Any, adapter: TokenizerAdapter | None) -> str:
    """Return a message if a tokenizer has tokens beyond its model's head, as another model's would; else empty."""
    token_bytes, size = () if adapter is None else adapter.token_bytes, head_size(model)
    if all(text is None for text in token_bytes[size:]):
        return ""
    return (
        f"The {role}'s tokenizer has {len(token_bytes):,} entries and the {role}'s head {size:,}, so it is "
        "probably another model's, and few candidates will be accepted. The order is "
        "uag.Assistant(draft, draft_tokenizer, tokenizer), the target's last"
    )
