"""Milliseconds that the host spends between passes: the search per candidate, and the rest of a round.

    python benchmarks/search.py [TARGET DRAFT] [--tokens 96] [--candidates 4] [--repeats 20] [--temperatures 0 0.7]

The script records the logits of both models in one call, then repeats this call with models that return the recorded
logits. Every repeat does the same work, split at the same calls. Figures are CPU time, and of each split the minimum
over all repeats, which depends little on other processes. The models' forwards are not included.

    search      per candidate: choosing target tokens from the draft's distributions
    passes      per candidate: preparing the draft's passes, softmax, copies
    draw        per candidate: drawing the noise, which plain sampling draws too
    selection   per round: logits processors and selection of the target's tokens
    rest        per round: everything else

For "new texts", the caches of encoded texts are cleared before each repeat.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import wraps
from typing import Any, NamedTuple
from unittest.mock import patch

import common
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

import uag
from uag.decoding.drafts import Drafts
from uag.decoding.target import Limits
from uag.decoding.verdict import Verdict
from uag.drafting.models.base import Passes
from uag.hf.cache.caches import CACHE
from uag.loading import Pair, load_pair
from uag.proposal import Proposal
from uag.sampling import Selector
from uag.sampling.noise import NoiseTape

PARTS = {"search": "candidate", "passes": "candidate", "draw": "candidate", "selection": "round", "rest": "round"}
COLUMNS = {"T": "{temperature:g}", "texts": "{texts}"}
COLUMNS |= {f"{part}/{unit}": f"{{{part}:.3f}}" for part, unit in PARTS.items()}
COLUMNS |= {"rounds": "{num_rounds}", "candidates": "{num_candidates}"}
PROMPT = "def fibonacci(n):\n    "
NUM_WARM = 2
"""First rounds, which read the prompt, are not measured."""


def main() -> None:
    """Measure at each temperature."""
    parser = common.make_parser(__doc__, tokens=96, candidates=4, repeats=20)
    parser.add_argument("pair", nargs="*", help="folders of the target and the draft; the demo pair by default")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7])
    arguments = common.parse(parser)
    common.show(arguments, "milliseconds of the host", COLUMNS, _measure(arguments))


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    pair = load_pair(*arguments.pair, dtype="float32", device="cpu")
    for temperature in arguments.temperatures:
        call = Call(_record(pair, temperature, arguments), [pair.target_tokenizer, pair.draft_tokenizer])
        for texts in ("known", "new"):
            times = call.times(arguments.repeats, are_known=texts == "known")
            yield {"temperature": temperature, "texts": texts, "dtype": "float32"} | times


def _record(pair: Pair, temperature: float, arguments: argparse.Namespace) -> common.Row:
    """Record the target's logits in plain decoding, then the draft's in an assisted call."""
    ids = pair.target_tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    options: common.Row = {"max_new_tokens": arguments.tokens, "do_sample": temperature > 0}
    if temperature > 0:
        options |= {"temperature": temperature, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
    pair.target.generation_config.eos_token_id = None
    torch.manual_seed(0)
    plain = pair.target.generate(ids, **options, output_logits=True, return_dict_in_generate=True)
    recording = {"ids": ids, "options": options, "output": plain.sequences, "logits": torch.cat(plain.logits)}
    recording["num_candidates"] = arguments.candidates
    call = Call(recording, [pair.target_tokenizer, pair.draft_tokenizer], pair.draft)
    recording["passes"] = []
    passes = call.assistant._sessions[0].drafter.model
    call_model = passes._call_model

    def recorded(ids: Any, positions: Any, mask: Any, kept: int, cache: Any) -> torch.Tensor:
        logits = call_model(ids, positions, mask, kept, cache)[:, -kept:]
        recording["passes"].append((ids.tolist(), logits.clone()))
        return logits

    with patch.object(passes, "_call_model", recorded):
        call.run()
    return recording


class Replayed(LlamaForCausalLM):
    """A model that returns recorded logits, and fills the cache with zeros."""

    answer: Callable[[torch.Tensor, int, int], torch.Tensor] | None = None
    """Returns logits from the ids of a pass, the cache's length and the number of positions; None for random ones."""

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        logits_to_keep: int = 1,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Run a pass."""
        if self.answer is None:
            return super().forward(input_ids, attention_mask, position_ids, kwargs[CACHE], logits_to_keep=0)
        zeros = torch.zeros((1, 2, input_ids.shape[1], 64))
        for index in range(self.config.num_hidden_layers):
            kwargs[CACHE].update(zeros, zeros, index)
        logits = self.answer(input_ids, kwargs[CACHE].get_seq_length(), logits_to_keep)
        return CausalLMOutputWithPast(logits=logits, **{CACHE: kwargs[CACHE]})


def _replayed(vocab_size: int) -> Replayed:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 24, "num_attention_heads": 2}
    special = {"bos_token_id": None, "eos_token_id": None}
    return Replayed(LlamaConfig(vocab_size=vocab_size, tie_word_embeddings=True, **sizes, **special)).eval()


class Call:
    """An assisted call whose passes return recorded logits.

    Args:
        recording: the ids, the options, and the logits.
        tokenizers: the target's and the draft's.
        draft: a draft to run; None to replay the recorded one.
    """

    def __init__(self, recording: common.Row, tokenizers: list[Any], draft: Any = None) -> None:
        self.recorded = recording
        self.target = _replayed(recording["logits"].shape[1])
        self.target.answer = self._of_target
        is_replayed = draft is None
        draft = _replayed(recording["passes"][0][1].shape[-1]) if is_replayed else draft
        num = recording["num_candidates"]
        self.assistant = uag.Assistant(draft, *reversed(tokenizers), num_candidate_tokens=num, own_kernels=False)
        if is_replayed:
            draft.answer = self._of_draft

    def _of_target(self, _: torch.Tensor, length: int, num: int) -> torch.Tensor:
        first = length - num - (self.recorded["ids"].shape[1] - 1)
        steps = torch.arange(first, first + num).clamp(0, len(self.recorded["logits"]) - 1)
        return self.recorded["logits"][steps][None]

    def _of_draft(self, ids: torch.Tensor, *_: int) -> torch.Tensor:
        expected, logits = self.recorded["passes"][self._num_passes]
        self._num_passes += 1
        if ids.tolist() != expected:
            raise SystemExit(f"draft pass {self._num_passes} has the ids {ids.tolist()} instead of {expected}")
        return logits

    def run(self, clock: "Clock | None" = None) -> list[list[Proposal]]:
        """Run the call, compare its output with plain decoding's, and return the candidates of each round."""
        self._num_passes, candidates, propose = 0, [], Drafts.propose

        def recorded(drafts: Drafts, active: Any) -> Any:
            proposed = propose(drafts, active)
            candidates.append(proposed.by_row[0])
            return proposed

        with ExitStack() as stack:
            # Otherwise uag would notice that the forwards are replaced.
            stack.enter_context(patch("uag.decoding.loop.examine", lambda call: Verdict(limits=Limits(call, ()))))
            stack.enter_context(patch.object(Drafts, "propose", recorded))
            for owner, name, part in TIMED if clock else ():
                stack.enter_context(patch.object(owner, name, clock.timed(getattr(owner, name), part)))
            torch.manual_seed(0)
            output = self.assistant.generate(self.target, self.recorded["ids"], **self.recorded["options"])
        if not torch.equal(output, self.recorded["output"]):
            raise SystemExit("the output differs from plain decoding")
        return candidates

    def times(self, num_repeats: int, *, are_known: bool) -> common.Row:
        """Return the milliseconds of each part."""
        projection = self.assistant._sessions[0].drafter._maker.projection
        minima: list[float] | None = None
        for _ in range(num_repeats):
            if not are_known:
                projection.reader.of_text.cache_clear()
                projection.maps.target_sorted.neighbors.cache_clear()
            clock = Clock()
            candidates = self.run(clock)
            seconds = [each.seconds for each in clock.segments]
            minima = seconds if minima is None else list(map(min, minima, seconds))
        ms: Counter[str] = Counter()
        for segment, least in zip(clock.segments, minima or [], strict=True):
            if NUM_WARM < segment.num_rounds < len(candidates):
                ms[segment.part] += 1e3 * least
        num = {"round": len(candidates) - 1 - NUM_WARM, "candidate": sum(map(len, candidates[NUM_WARM:-1]))}
        counts = {"num_rounds": num["round"], "num_candidates": num["candidate"]}
        return {part: ms[part] / num[unit] for part, unit in PARTS.items()} | counts


class Segment(NamedTuple):
    """Time between two calls or returns of timed functions."""

    num_rounds: int
    part: str
    seconds: float


class Clock:
    """Measures CPU time, split at every call and return of a timed function."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._parts, self._num_rounds = ["rest"], 0
        self._last = time.thread_time()

    def _split(self) -> None:
        now = time.thread_time()
        self.segments.append(Segment(self._num_rounds, self._parts[-1], now - self._last))
        self._last = time.thread_time()

    def timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """Return a function whose time counts for a part; drafting begins a round."""

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._split()
            self._parts.append(part)
            self._num_rounds += part == "search"
            try:
                return function(*args, **kwargs)
            finally:
                self._split()
                self._parts.pop()

        return run


TIMED = (
    (Drafts, "propose", "search"),
    (Passes, "feed", "passes"),
    (NoiseTape, "_draw", "draw"),
    (Selector, "select_block", "selection"),
    (Replayed, "forward", "forwards"),
)
"""The functions of each part. Whatever no part includes is the rest of a round."""


if __name__ == "__main__":
    main()
