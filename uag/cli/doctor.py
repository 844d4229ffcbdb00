"""Report on a target and a draft before anyone runs them together: what they share, what their passes cost.

The expected speed-up is arithmetic on measured costs, not a measurement: with acceptance `a` per candidate a round of
`k` candidates gives `1 + a + ... + a**k` tokens (arXiv:2211.17192, section 3.1) for one target pass and `k`
candidates' worth of draft steps. What the assistant itself costs comes on top.

Passes are timed as the assistant runs them, with its fast products (docs/products.md); what they are compared with is a
pass as transformers runs it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from uag.adapters import TokenizerAdapter, from_tokenizer
from uag.bench import heldout_prompts, spread, time_draft_passes, time_passes
from uag.drafting import adapter_for, head_size, open_passes
from uag.errors import OptionError
from uag.gguf import GgufDraft
from uag.loading import Pair
from uag.products import Choice, FastProducts, choices
from uag.projection import vocabulary_map

ACCEPTANCES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
MAX_CANDIDATES = 16
PASS_WIDTHS = (1, 2, 4, 8, MAX_CANDIDATES + 1)
"""Positions of the target passes that are timed: each takes eight passes, and costs in between lie on a line."""


@dataclass(frozen=True)
class ModelReport:
    """One half of the pair; `loss` says what its tokenizer loses where it is not exact."""

    name: str
    architecture: str
    num_parameters: int
    head_size: int
    family: str
    num_tokens: int
    is_exact: bool
    loss: str | None


@dataclass(frozen=True)
class Expectation:
    """The best number of candidates at one acceptance, and the speed-up that it should give."""

    acceptance: float
    num_candidate_tokens: int
    speed_up: float


@dataclass(frozen=True)
class Report:
    """What `diagnose` finds. Shares are of 1; `target_pass_s` maps a number of positions to seconds.

    `plain_pass_s` is a pass over one position as transformers runs it, without fast products; `products` are the forms
    that both models' layers take.
    `draft_to_target_controls` lists the draft's control tokens beside the target's of the same role.
    `break_even_acceptance` is None where no acceptance pays.
    """

    target: ModelReport
    draft: ModelReport
    is_identity: bool
    vocabulary_share: float
    reachable_share: float
    text_share: float
    draft_tokens_per_target_token: float
    draft_to_target_controls: tuple[tuple[str, str], ...]
    plain_pass_s: float
    target_pass_s: dict[int, float]
    draft_step_s: float
    products: tuple[Choice, ...]
    expectations: tuple[Expectation, ...]
    break_even_acceptance: float | None
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        """Return the report ready for JSON."""
        products = [
            {
                "num_out": choice.shape.num_out,
                "num_in": choice.shape.num_in,
                "num_rows": choice.shape.num_rows,
                "dtype": str(choice.shape.dtype).removeprefix("torch."),
                "form": choice.name,
                "s": choice.chosen_s,
                "as_is_s": choice.as_is_s,
            }
            for choice in self.products
        ]
        return asdict(self) | {"products": products}


def diagnose(pair: Pair, text: str | None = None) -> Report:
    """Examine a pair; `text` is the running text to compare on, None for the bundled held-out Python.

    Raises:
        OptionError: the text is too short to time a pass on.
        UagError: a tokenizer that no adapter serves, or a pair with nothing in common.
    """
    if text is None:
        text = "\n".join(prompt.text for prompt in spread(heldout_prompts(), 8))
    target_adapter, draft_adapter = from_tokenizer(pair.target_tokenizer), from_tokenizer(pair.draft_tokenizer)
    vocabularies = vocabulary_map(target_adapter, adapter_for(target_adapter, draft_adapter, pair.draft))
    target_ids, draft_ids = (adapter.encode_continuation(text.encode()) for adapter in (target_adapter, draft_adapter))
    if min(len(target_ids), len(draft_ids)) < 2:
        raise OptionError(f"the text to compare on is {text!r}: give a page of what the pair is to write")
    ratio = len(draft_ids) / len(target_ids)
    plain_pass_s = time_passes(pair.target, target_ids, (1,))[1]
    with FastProducts(pair.target).in_place():
        target_pass_s = time_passes(pair.target, target_ids, PASS_WIDTHS)
    draft_step_s = time_draft_passes(pair.draft, draft_ids, (1,))[1]
    costs = target_pass_s, draft_step_s * ratio, plain_pass_s
    expectations = tuple(expect(acceptance, *costs) for acceptance in ACCEPTANCES)
    break_even = break_even_acceptance(*costs)
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
        text_share=share_of_text(target_adapter, target_ids, draft_adapter, draft_ids),
        draft_tokens_per_target_token=ratio,
        draft_to_target_controls=tuple(controls),
        plain_pass_s=plain_pass_s,
        target_pass_s=target_pass_s,
        draft_step_s=draft_step_s,
        products=tuple(choices()),
        expectations=expectations,
        break_even_acceptance=break_even,
        verdict=judge(break_even, target_pass_s[1] / draft_step_s, expectations),
    )


def expect(
    acceptance: float, target_pass_s: dict[int, float], candidate_s: float, plain_pass_s: float | None = None
) -> Expectation:
    """Return the number of candidates, from 1 to `MAX_CANDIDATES`, that promises most, and its speed-up.

    `acceptance` is the probability that a candidate is accepted where all before it were; `target_pass_s` maps numbers
    of positions, ascending, to seconds of a target pass; drafting one candidate takes `candidate_s`; plain decoding
    takes `plain_pass_s` for a token, None for what one position takes.

    >>> expect(0.5, {1: 1.0, 17: 1.0}, 0.0).speed_up
    1.9999847412109375
    """
    num_candidates = np.arange(1, MAX_CANDIDATES + 1)
    num_tokens = 1 + np.cumsum(acceptance**num_candidates)
    pass_s = np.interp(num_candidates + 1, list(target_pass_s), list(target_pass_s.values()))
    speed_ups = num_tokens * (plain_pass_s or target_pass_s[1]) / (num_candidates * candidate_s + pass_s)
    best = int(speed_ups.argmax())
    return Expectation(acceptance, best + 1, float(speed_ups[best]))


def break_even_acceptance(
    target_pass_s: dict[int, float], candidate_s: float, plain_pass_s: float | None = None
) -> float | None:
    """Return the lowest acceptance, to one hundredth, at which a draft costs no time; None where there is none."""
    shares = (hundredths / 100 for hundredths in range(101))
    costs = target_pass_s, candidate_s, plain_pass_s
    return next((share for share in shares if expect(share, *costs).speed_up >= 1), None)


def judge(break_even: float | None, steps_per_pass: float, expectations: Sequence[Expectation]) -> str:
    """Say in one line whether the pair can pay."""
    cost = f"a target pass costs {steps_per_pass:.1f} draft steps"
    if break_even is None:
        return f"does not pay: {cost}, too few at any acceptance"
    best = expectations[-1]
    rates = f"break-even at {break_even:.0%} acceptance, about {best.speed_up:.1f}x at {best.acceptance:.0%}"
    if break_even > 0.8:
        return f"will hardly pay: {cost}, {rates}"
    return f"can pay: {cost}, {rates}"


def share_of_text(
    target: TokenizerAdapter, target_ids: Sequence[int], draft: TokenizerAdapter, draft_ids: Sequence[int]
) -> float:
    """Return the share of the draft's tokens in a text that cover exactly the bytes of one target token."""
    target_spans = set(_spans(target, target_ids))
    draft_spans = list(_spans(draft, draft_ids))
    return sum(span in target_spans for span in draft_spans) / max(1, len(draft_spans))


def _spans(adapter: TokenizerAdapter, ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield where each token begins and ends, in bytes."""
    return pairwise(accumulate((len(adapter.join([token_id]) or b"") for token_id in ids), initial=0))


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
