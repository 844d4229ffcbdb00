"""The arms of a benchmark: ways to generate, all called and counted in the same way.

plain            the target alone, `model.generate`
uag-no-draft     uag's passes alone: its kernels, no draft and no lookup
uag              uag with the draft, and lookup where it promises more
uag-lookup       uag with lookup in the prompt, without the draft
uag-draft        uag with the draft, without lookup
uag-useless      uag with a draft whose candidates are all replaced by wrong ones
transformers     transformers' own assisted generation with the same draft
prompt-lookup    transformers' own n-gram lookup in the prompt
"""

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch

from uag.assistant import Assistant
from uag.bench.options import ARM_NAMES, LOOKUP, USELESS, WITHOUT_DRAFT, BenchOptions
from uag.drafting import Ask, CopyPairing, Counts, Drafter, Pairing, PromptLookup
from uag.gguf import GgufDraft
from uag.hf import passes
from uag.hf.decoder import COPY
from uag.hf.devices import synchronize
from uag.loading import Pair
from uag.proposal import Proposal
from uag.stats import Stats

NUM_LOOKUP_TOKENS = 10  # tokens that transformers' prompt lookup copies

_COUNTS = ("num_rounds", "num_target_forwards", "num_candidate_tokens", "num_accepted_tokens")
_OF_EACH_DRAFT = ("uag", "uag-draft", "transformers")


@dataclass(frozen=True)
class Arm:
    """One way to generate, called with the arguments of `model.generate`.

    `stats` returns the statistics of the last call; if None, a hook on the target counts passes. `note` says why the
    output may differ from plain decoding's; empty if it must be equal.
    """

    name: str
    generate: Callable[..., Any]
    stats: Callable[[], Stats] | None = None
    note: str = ""
    draft: str = ""


class _Useless(Drafter):
    """A draft of which nothing is accepted: another drafter's candidates, each replaced by a distant id."""

    strategy, source, has_free = "useless", "useless draft", False

    def __init__(self, drafter: Drafter) -> None:
        self._drafter, self.draws = drafter, drafter.draws

    @property
    def counts(self) -> Counts:
        return self._drafter.counts

    def start(self, prompts: Sequence[Sequence[int]], source_ids: Sequence[Sequence[int]] | None = None) -> None:
        self._drafter.start(prompts, source_ids)

    def propose(self, ask: Ask) -> list[list[Proposal]]:
        size = ask.vocab_size
        lines = self._drafter.propose(ask)
        return [[replace(each, target_id=(each.target_id + size // 2) % size) for each in line] for line in lines]

    def accept(self, row: int, num_accepted: int, output_ids: Sequence[int]) -> None:  # noqa: ARG002
        self._drafter.accept(row, 0, output_ids)  # none of them was its candidate

    def release(self) -> None:
        self._drafter.release()


def build_arms(pair: Pair, options: BenchOptions, others: Sequence[Pair] = ()) -> list[Arm]:
    """Return the arms of `options`, plain decoding first; `others` are pairs with other drafts, which get arms, too."""
    chosen = {"plain", *options.arm_names, *([WITHOUT_DRAFT] if options.draft_independent else ())}
    return [
        _build(name, each, options)
        for name in ARM_NAMES
        if name in chosen
        for each in (pair, *(others if name in _OF_EACH_DRAFT else ()))
    ]


def _build(name: str, pair: Pair, options: BenchOptions) -> Arm:
    target, tokenizer, drafts = pair.target, pair.target_tokenizer, (pair.draft, pair.draft_tokenizer)
    if name == "plain":
        return Arm(name, target.generate)
    if name == "transformers":
        return Arm(name, _transformers_own(pair), draft=pair.draft_name)
    if name == "prompt-lookup":
        return Arm(name, partial(target.generate, prompt_lookup_num_tokens=NUM_LOOKUP_TOKENS))
    if name in ("uag", "uag-draft"):
        options = replace(options, prompt_lookup=options.prompt_lookup and name == "uag")
        assistant, draft = Assistant(*drafts, tokenizer, options=options), pair.draft_name
    else:
        drafter: Drafter | None = PromptLookup() if name == LOOKUP else None
        if name == USELESS and _is_copy(pair):
            drafter = _Useless(CopyPairing(options.draft_weights or "int4").drafter_for(target)[0])
        elif name == USELESS:
            drafter = Pairing(pair.draft, tokenizer, drafts[1], compile_draft=options.compile_draft).for_all
            drafter = drafter and _Useless(drafter)
        assistant, draft = Assistant(None, None, tokenizer, drafter=drafter, options=options, compile_draft=False), ""
    note = "run by uag's own passes" if options.draft_independent else ""
    return replace(assisted(name, assistant, target, note), draft=draft)


def _is_copy(pair: Pair) -> bool:
    """Whether the target drafts for itself."""
    return isinstance(pair.draft, str) and pair.draft == COPY


def assisted(name: str, assistant: Assistant, target: Any, note: str = "") -> Arm:
    """Return the arm of an assistant and a target."""
    return Arm(name, lambda **kwargs: assistant.generate(target, **kwargs), lambda: assistant.stats, note)


def _transformers_own(pair: Pair) -> Callable[..., Any]:
    """Return transformers' own assisted generation, with the tokenizers only if they differ.

    It runs on copies of the draft: when sampling, transformers 5.16 to 5.23 prune the head of the draft permanently.
    """
    is_file = isinstance(pair.draft, GgufDraft)
    is_shared = is_file or pair.target_tokenizer.get_vocab() == pair.draft_tokenizer.get_vocab()
    tokenizers = {} if is_shared else {"tokenizer": pair.target_tokenizer, "assistant_tokenizer": pair.draft_tokenizer}
    draft_for = cache(lambda _: copy.deepcopy(pair.draft))

    def generate(*, do_sample: bool = False, **kwargs: Any) -> Any:
        if is_file or _is_copy(pair):
            raise NotImplementedError("transformers does not support drafts in GGUF files, nor a target's own copy")
        return pair.target.generate(**kwargs, **tokenizers, do_sample=do_sample, assistant_model=draft_for(do_sample))

    return generate


def run_arm(
    arm: Arm, pair: Pair, inputs: dict[str, torch.Tensor], options: dict[str, Any], seed: int
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Run one arm once on one batch, with the same seed as every other arm.

    Returns target ids without the prompt, [batch_size, num_steps], int64, and figures named as in `Record`, summed over
    rows.
    """
    prompt_width = pair.prompt_width(inputs)
    torch.manual_seed(seed)
    # A hook on the target would make uag fall back to plain decoding, and would be compiled with its forward.
    is_hooked = arm.stats is None and "compile_config" not in options
    widths: list[int] = []
    note = partial(_note_width, widths)
    with pair.target.register_forward_pre_hook(note, with_kwargs=True) if is_hooked else nullcontext():
        sequences, seconds = timed(pair.target.device, arm.generate, **inputs, **options)
    output_ids = sequences[:, prompt_width:].cpu()
    num_output_tokens = int(is_output(output_ids, passes.eos_ids(pair.target.generation_config)).sum())
    figures: dict[str, Any] = {"seconds": seconds, "num_output_tokens": num_output_tokens}
    if arm.stats is not None:
        stats = arm.stats().to_dict()
        return output_ids, figures | {name: stats[name] for name in _COUNTS} | {"stats": stats}
    num_rows, num_steps = output_ids.shape
    num_passes = len(widths) or num_steps  # none are seen if compiled, or run by another model or engine
    # Each pass has one position besides its candidates; the first one has the prompt's positions instead.
    num_candidates = num_rows * max(0, sum(widths) - prompt_width - (len(widths) - 1))
    # Each pass yields one token of the target's own per row; all others are accepted candidates.
    num_accepted = max(0, num_output_tokens - num_rows * num_passes)
    return output_ids, figures | dict(zip(_COUNTS, (num_passes, num_passes, num_candidates, num_accepted), strict=True))


def is_output(output_ids: torch.Tensor, eos_ids: Iterable[int]) -> torch.Tensor:
    """Mark the tokens up to and including each row's first EOS: [batch, num_steps], bool.

    >>> is_output(torch.tensor([[5, 2, 0, 0], [5, 6, 7, 2]]), [2]).sum(dim=1).tolist()
    [2, 4]
    """
    is_eos = torch.isin(output_ids, output_ids.new_tensor(sorted(eos_ids))).long()
    return is_eos.cumsum(dim=1) == is_eos


def timed(device: torch.device, call: Callable[..., Any], /, **kwargs: Any) -> tuple[Any, float]:
    """Return the result of a call and its seconds, with the device idle before and after."""
    synchronize(device)
    start_s = time.perf_counter()
    returned = call(**kwargs)
    synchronize(device)
    return returned, time.perf_counter() - start_s


def _note_width(widths: list[int], _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    inputs = (kwargs.get(name) for name in ("decoder_input_ids", "input_ids", "inputs_embeds"))
    ids = next((tensor for tensor in inputs if tensor is not None), None)
    widths.append((args[0] if ids is None else ids).shape[1])
