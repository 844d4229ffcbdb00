"""A report on a pair of models: what their tokenizers share, and what their passes cost.

Passes are timed as the assistant runs them, with its fast products (docs/products.md), and compared with a pass as
transformers runs it.
"""

from dataclasses import asdict, dataclass
from typing import Any

from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.bench import heldout_prompts, spread, time_draft_passes, time_passes
from uag.cli.measured import PASS_WIDTHS
from uag.drafting import adapter_for, head_size, open_passes
from uag.errors import OptionError
from uag.gguf import GgufDraft
from uag.loading import Pair
from uag.products import FastProducts
from uag.projection import vocabulary_map


@dataclass(frozen=True)
class ModelReport:
    """One model of the pair; `loss` is what its tokenizer cannot represent if it is not exact."""

    name: str
    architecture: str
    num_parameters: int
    head_size: int
    family: str
    num_tokens: int
    is_exact: bool
    loss: str | None


@dataclass(frozen=True)
class Report:
    """What `diagnose` returns. Shares are of 1; `target_pass_s` maps a number of positions to seconds.

    `plain_pass_s` is a pass over one position as transformers runs it, without fast products.
    `draft_to_target_controls` pairs control tokens of the same role.
    """

    target: ModelReport
    draft: ModelReport
    is_identity: bool
    vocabulary_share: float
    reachable_share: float
    draft_tokens_per_target_token: float
    draft_to_target_controls: tuple[tuple[str, str], ...]
    plain_pass_s: float
    target_pass_s: dict[int, float]
    draft_step_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return the report ready for JSON."""
        return asdict(self)


def diagnose(pair: Pair, text: str | None = None) -> Report:
    """Examine a pair; `text` is text to compare the tokenizers on, None for the bundled held-out Python.

    Raises:
        OptionError: the text is too short to time a pass on.
        UagError: a tokenizer without an adapter, or a pair with nothing in common.
    """
    if text is None:
        text = "\n".join(prompt.text for prompt in spread(heldout_prompts(), 8))
    target_adapter, draft_adapter = from_tokenizer(pair.target_tokenizer), from_tokenizer(pair.draft_tokenizer)
    vocabularies = vocabulary_map(target_adapter, adapter_for(target_adapter, draft_adapter, pair.draft))
    target_ids, draft_ids = (adapter.encode_continuation(text.encode()) for adapter in (target_adapter, draft_adapter))
    if min(len(target_ids), len(draft_ids)) < 2:
        raise OptionError(f"the text to compare on is too short ({text!r}): give a page of what the pair is to write")
    ratio = len(draft_ids) / len(target_ids)
    plain_pass_s = time_passes(pair.target, target_ids, (1,))[1]
    with FastProducts(pair.target).in_place():
        target_pass_s = time_passes(pair.target, target_ids, PASS_WIDTHS)
    draft_step_s = time_draft_passes(pair.draft, draft_ids, (1,))[1]
    num_texts = max(1, vocabularies.num_draft_texts)
    controls = [
        (pair.draft_tokenizer.convert_ids_to_tokens(draft_id), pair.target_tokenizer.convert_ids_to_tokens(target_id))
        for draft_id, target_id in sorted(vocabularies.control_to_target.items())
    ]
    return Report(
        target=_describe(pair.target, pair.target_name, target_adapter),
        draft=_describe(pair.draft, pair.draft_name, draft_adapter),
        is_identity=vocabularies.is_identity,
        vocabulary_share=vocabularies.num_one_to_one / num_texts,
        reachable_share=vocabularies.num_reachable / num_texts,
        draft_tokens_per_target_token=ratio,
        draft_to_target_controls=tuple(controls),
        plain_pass_s=plain_pass_s,
        target_pass_s=target_pass_s,
        draft_step_s=draft_step_s,
    )


def _describe(model: Any, name: str, adapter: TokenizerAdapter) -> ModelReport:
    return ModelReport(
        name=name,
        architecture=f"{model.file.architecture} (GGUF)" if isinstance(model, GgufDraft) else type(model).__name__,
        num_parameters=open_passes(model).counts.num_parameters
        if isinstance(model, GgufDraft)
        else model.num_parameters(),
        head_size=head_size(model),
        family=adapter.family,
        num_tokens=sum(text is not None for text in adapter.token_bytes),
        is_exact=adapter.is_exact,
        loss=adapter.loss,
    )
