"""Texts of a target, and replays of drafting on them: what a draft would propose, and how much would be accepted.

The target is not run: a candidate is accepted if it is the next token of the text. Otherwise rounds are the
assistant's, with the same drafter, noise and acceptance. Sampled texts must have been generated on a CPU.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from uag.bench import is_output
from uag.drafting import Ask, Drafter
from uag.hf import passes
from uag.loading import pad_left
from uag.lookahead import Lookahead
from uag.projection import Scoring
from uag.proposal import Proposal, Warpers, num_equal
from uag.sampling import Choice, make_choice


@dataclass(frozen=True)
class Text:
    """A prompt, how the target should continue it, and the output once it exists.

    Attributes:
        text_id: unique among the texts of a run.
        prompt_ids: target ids.
        temperature: 0 is greedy.
        seed: the output equals plain sampling after `torch.manual_seed(seed)`; None if the noise is unknown.
        output_ids: target ids, including the end-of-text token; empty until they are generated.
    """

    text_id: str
    prompt_ids: tuple[int, ...]
    temperature: float = 0.0
    seed: int | None = None
    output_ids: tuple[int, ...] = ()


class RowChoices(LogitsProcessor):
    """Makes greedy decoding select each row's own token: the most probable one, or a sampled one.

    A row with a temperature gets the token of plain sampling after `torch.manual_seed(seed)`, independently of other
    rows. Must be the last processor.
    """

    def __init__(self, texts: Sequence[Text], device: torch.device) -> None:
        self._sampled = [
            (row, text.temperature, torch.Generator(device).manual_seed(text.seed))
            for row, text in enumerate(texts)
            if text.temperature and text.seed is not None
        ]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Return [batch_size, vocab_size]: 0 at the selected token, and minus infinity elsewhere."""
        selected = scores.argmax(dim=-1, keepdim=True)
        for row, temperature, generator in self._sampled:
            probs = (scores[row].float() / temperature).softmax(dim=-1)
            selected[row] = torch.multinomial(probs, 1, generator=generator)
        return torch.full_like(scores, -torch.inf).scatter_(1, selected, 0.0)


def write(target: Any, due: Sequence[Text], max_new_tokens: int) -> list[Text]:
    """Generate one batch with a loaded, decoder-only target, and return its texts with their outputs."""
    eos_ids = passes.eos_ids(target.generation_config)
    inputs = pad_left([text.prompt_ids for text in due], 0, target.device)
    sequences = target.generate(
        **inputs,
        logits_processor=LogitsProcessorList([RowChoices(due, target.device)]),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        num_beams=1,
        pad_token_id=min(eos_ids, default=0),
    )
    outputs = sequences[:, inputs["input_ids"].shape[1] :]
    kept = is_output(outputs, eos_ids)
    return [replace(text, output_ids=tuple(outputs[row][kept[row]].tolist())) for row, text in enumerate(due)]


@dataclass(frozen=True)
class ReplayRound:
    """One round.

    Attributes:
        candidates: what was drafted.
        num_accepted: how many of them are the next tokens of the text.
        draft_s: seconds of drafting, without reading the prompt and compiling.
    """

    candidates: list[Proposal]
    num_accepted: int
    draft_s: float


@dataclass(frozen=True)
class Replay:
    """Replays drafting on texts with one drafter.

    Attributes:
        drafter: the drafter.
        vocab_size: entries of the target's head.
    """

    drafter: Drafter
    vocab_size: int

    def count(self, texts: Iterable[Text]) -> Iterator[tuple[int, int]]:
        """Yield the number of output tokens of each text, and how many of them the draft would have proposed."""
        for text in texts:
            rounds = self.rounds(text, Lookahead(fixed=1), lambda left: 1 if left else None, every_token=True)
            yield len(text.output_ids), sum(drafted.num_accepted for drafted in rounds)

    def rounds(
        self,
        text: Text,
        lookahead: Lookahead,
        budget: Callable[[int], int | None],
        *,
        start: int = 0,
        every_token: bool = False,
    ) -> Iterator[ReplayRound]:
        """Replay a text; the caller may update the lookahead between rounds.

        Args:
            text: with its output.
            lookahead: decides how many candidates to draft; its `begin` must have been called.
            budget: maps the remaining output tokens to the maximum number of candidates of the next round, or None to
                end.
            start: number of output tokens before the first round.
            every_token: advance by one token per round, however many candidates were accepted.
        """
        position = start
        choice = _sampling_choice(text, self.vocab_size)

        def scoring(_: int, num_before: int) -> Scoring:
            noise = None if choice is None else choice.noise_at(position + num_before, 0)
            return Scoring(self.vocab_size, Warpers(text.temperature or 1.0), noise)

        self.drafter.start([text.prompt_ids])
        try:
            if start:
                self.drafter.accept(0, 0, text.output_ids[:start])
            while (size := budget(len(text.output_ids) - position)) is not None:
                before, start_s = copy(self.drafter.counts), time.perf_counter()
                (candidates,) = Ask([size], lookahead.plan(1), lookahead, scoring).put_to(self.drafter)
                seconds, counts = time.perf_counter() - start_s, self.drafter.counts
                other_s = counts.prefill_s - before.prefill_s + counts.compile_s - before.compile_s
                num_accepted = num_equal((each.target_id for each in candidates), text.output_ids[position:])
                end = position + (1 if every_token else num_accepted + 1)
                output_ids = text.output_ids[position:end]
                self.drafter.accept(0, min(num_accepted, len(output_ids)), output_ids)
                if choice is not None:
                    choice.release(position)  # later steps may not have been drawn yet
                position = end
                yield ReplayRound(candidates, num_accepted, seconds - other_s)
        finally:
            self.drafter.release()


def _sampling_choice(text: Text, vocab_size: int) -> Choice | None:
    """Return how plain sampling selects the tokens of a text; None if it is greedy, or its noise is unknown."""
    if not text.temperature or text.seed is None:
        return None
    generator = torch.Generator().manual_seed(text.seed)
    return make_choice("shared-noise", (1, vocab_size), torch.device("cpu"), generator)
