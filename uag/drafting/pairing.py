"""Whose tokenizer is whose: find the tokenizers of a pair, and decide from them whether ids mean the same.

Wrong guesses cost acceptance, never output: the target verifies ids. So where nothing is known but the sizes, models
whose heads agree (or differ by padding alone) are taken to share their ids, and the statistics say so.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from transformers import AutoTokenizer

from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.drafting.model_drafter import ModelDrafter, model_drafter
from uag.errors import PairError
from uag.hf.models import head_size

_MOST_PADDING = 512

_MOST_PADDING_SHARE = 0.08
"""Heads are padded to a multiple of 64 to 512; Qwen2.5-7B and 0.5B differ by 128 of 152,064."""

ASSUMED = "no tokenizers were given: ids are taken to mean the same to the target and the draft"


def pair_drafter(
    target: Any, draft: Any, tokenizer: Any = None, draft_tokenizer: Any = None, **options: Any
) -> tuple[ModelDrafter, bool]:
    """Make the drafter of a pair of models, whatever is known of their tokenizers.

    A tokenizer that was not given is looked for where its model was loaded from; nothing is downloaded.

    Args:
        target: the target model.
        draft: the draft model.
        tokenizer: the target's tokenizer, None where unknown.
        draft_tokenizer: the draft's tokenizer, None where unknown.
        options: of `ModelDrafter`.

    Returns:
        The drafter, and whether ids had to be taken to mean the same.

    Raises:
        PairError: the tokenizers cannot be told, and the models cannot share their ids.
        UnsupportedError: the draft cannot draft.
    """
    target_adapter = _adapter(tokenizer, target)
    draft_adapter = _adapter(draft_tokenizer, draft)
    if target_adapter is not None and draft_adapter is not None:
        return model_drafter(draft, target_adapter, draft_adapter, **options), False
    if not may_share_ids(target, draft):
        sizes = f"{head_size(target)} entries for the target, {head_size(draft)} for the draft"
        missing = "draft_tokenizer" if target_adapter is not None else "tokenizer"
        if target_adapter is None and draft_adapter is None:
            missing = "tokenizer and draft_tokenizer"
        raise PairError(
            f"The models have heads of different size ({sizes}), so their tokenizers differ, and {missing} cannot be "
            "found. Pass both: uag.Assistant(draft, draft_tokenizer, tokenizer), or after uag.install() "
            "model.generate(..., assistant_model=draft, tokenizer=tokenizer, assistant_tokenizer=draft_tokenizer)."
        )
    return model_drafter(draft, target_adapter, draft_adapter, **options), True


def may_share_ids(target: Any, draft: Any) -> bool:
    """Say whether two models may have one tokenizer, from their heads and special ids alone."""
    first, second = head_size(target), head_size(draft)
    if first == second:
        return True
    difference = abs(first - second)
    if difference > min(_MOST_PADDING, _MOST_PADDING_SHARE * max(first, second)):
        return False
    pairs = [(_special(target, name), _special(draft, name)) for name in ("eos_token_id", "bos_token_id")]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    return bool(known) and all(a == b for a, b in known)


def _special(model: Any, name: str) -> Any:
    value = getattr(model.config.get_text_config(decoder=True), name, None)
    if value is None:
        value = getattr(getattr(model, "generation_config", None), name, None)
    return sorted(value) if isinstance(value, list) else value


def _adapter(tokenizer: Any, model: Any) -> TokenizerAdapter | None:
    if tokenizer is None:
        tokenizer = tokenizer_of(model)
    return None if tokenizer is None else from_tokenizer(tokenizer)


def tokenizer_of(model: Any) -> Any:
    """Load the tokenizer that lies with a model's weights, from local files only; None where there is none."""
    name = getattr(model, "name_or_path", None) or getattr(model.config, "name_or_path", None)
    return _load(name) if isinstance(name, str) and name else None


@lru_cache(maxsize=8)
def _load(name: str) -> Any:
    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError):
        return None  # no tokenizer there, or one that needs code or a package that is not here
