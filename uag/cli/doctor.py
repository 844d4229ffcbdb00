"""A report on a pair of models: the overlap of their tokenizers and the cost of their passes.

Passes are timed as the assistant runs them, with fast products (docs/products.md).
"""

from dataclasses import asdict, dataclass
from typing import Any

from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.bench import heldout_prompts, spread, time_draft_passes, time_passes
from uag.cli.measured import PASS_WIDTHS
from uag.drafting import adapter_for, head_size, open_passes
from uag.gguf import GgufDraft
from uag.loading import Pair
from uag.products import FastProducts
from uag.projection import TokenizerPair


@dataclass(frozen=True)
class ModelReport:
    """One model of the pair; `loss` is why its tokenizer cannot represent every text, or None."""

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
    """The result of `diagnose`. Shares are fractions; `target_pass_s` maps a number of positions to seconds.

    `plain_pass_s` is a pass over one position as transformers runs it, without fast products.
    """

    target: ModelReport
    draft: ModelReport
    is_identity: bool
    vocabulary_share: float
    reachable_share: float
    draft_tokens_per_target_token: float
    plain_pass_s: float
    target_pass_s: dict[int, float]
    draft_step_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        return asdict(self)


def diagnose(pair: Pair) -> Report:
    """Examine a pair; the tokenizers are compared on the bundled held-out Python.

    Raises:
        UagError: a tokenizer without an adapter, or a pair with nothing in common.
    """
    text = "\n".join(prompt.text for prompt in spread(heldout_prompts(), 8))
    target_adapter, draft_adapter = from_tokenizer(pair.target_tokenizer), from_tokenizer(pair.draft_tokenizer)
    tokenizers = TokenizerPair.of(target_adapter, adapter_for(target_adapter, draft_adapter, pair.draft))
    vocabularies = tokenizers.maps
    target_ids, draft_ids = (adapter.encode_continuation(text.encode()) for adapter in (target_adapter, draft_adapter))
    plain_pass_s = time_passes(pair.target, target_ids, (1,))[1]
    with FastProducts(pair.target).in_place():
        target_pass_s = time_passes(pair.target, target_ids, PASS_WIDTHS)
    draft_step_s = time_draft_passes(pair.draft, draft_ids, (1,))[1]
    num_texts = max(1, vocabularies.num_draft_texts)
    return Report(
        target=_describe(pair.target, pair.target_name, target_adapter),
        draft=_describe(pair.draft, pair.draft_name, draft_adapter),
        is_identity=vocabularies.is_identity,
        vocabulary_share=vocabularies.num_one_to_one / num_texts,
        reachable_share=tokenizers.num_reachable / num_texts,
        draft_tokens_per_target_token=len(draft_ids) / len(target_ids),
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
