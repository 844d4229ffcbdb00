"""The target learns from its own texts: which of them to write again, and not to repeat a line for ever.

Small models write the same line over and over when they are decoded greedily. Here the target goes on from random
places of the library, greedily and at a low temperature. Of the greedy texts lines that stand there for the third time
and phrases that go round are made unlikely; of the sampled ones those without are learned.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaForCausalLM

from benchmarks.demo_pair.fit import Batch, learned, windows
from benchmarks.demo_pair.models import write_on

logger = logging.getLogger(__name__)

NUM_PROMPT, NUM_TEXTS, STEPS_OF_ROUND = 48, 192, 25
"""Tokens of the library that the target goes on from, texts of each kind that it writes, and steps until the next."""

TEMPERATURE = 0.6
"""Of the texts that are learned: lower makes the target surer of itself, and its text plainer."""

MOST_OFTEN = 2
"""A line may stand in a text so often: code repeats itself, too."""

LONGEST_PHRASE = 12
"""Tokens of a phrase that may go round no more than `MOST_OFTEN` times."""


class Lines:
    """Finds the lines of a text in ids; indentation does not count, and newline tokens stand alone."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        texts = [tokenizer.decode([token_id]) for token_id in range(tokenizer.get_vocab_size())]
        self._newline_ids = {token_id for token_id, text in enumerate(texts) if text and not text.strip("\n")}
        self._blank_ids = {token_id for token_id, text in enumerate(texts) if not text.strip()}

    def of(self, ids: Sequence[int]) -> Iterator[list[int]]:
        """Yield the places of each whole line's tokens, those of the indentation left out."""
        places: list[int] = []
        for place, token_id in enumerate(ids):
            if token_id in self._newline_ids:
                if places:
                    yield places
                places = []
            elif token_id not in self._blank_ids or places:
                places.append(place)

    def repeated(self, ids: Sequence[int]) -> list[int]:
        """Return the places of all tokens in lines that stood there `MOST_OFTEN` times before."""
        seen: Counter[tuple[int, ...]] = Counter()
        found = []
        for places in self.of(ids):
            line = tuple(ids[place] for place in places)
            if seen[line] >= MOST_OFTEN:
                found += places
            seen[line] += 1
        return found

    def circling(self, ids: Sequence[int]) -> list[int]:
        """Return the places of tokens in phrases that stood there `MOST_OFTEN` times, one right behind the other."""
        found = []
        for period in range(1, LONGEST_PHRASE + 1):
            run = 0
            for place in range(period, len(ids)):
                run = run + 1 if ids[place] == ids[place - period] else 0
                if run > (MOST_OFTEN - 1) * period:
                    found.append(place)
        return found

    def avoidable(self, ids: Sequence[int]) -> list[int]:
        """Return the places of all tokens that a text would be better without."""
        return sorted({*self.repeated(ids), *self.circling(ids)})


class OwnTexts:
    """Batches of which half the rows are greedy texts, a quarter sampled ones, and a quarter the library's.

    Args:
        model: the target, as it is trained.
        library: ids, [num_tokens].
        lines: finds what repeats.
        num_rows: of a batch.
        length: of a row.
    """

    def __init__(self, model: LlamaForCausalLM, library: Tensor, lines: Lines, num_rows: int, length: int) -> None:
        self._model, self._library, self._lines = model, library, lines
        self._num_rows, self._length = num_rows, length
        self._round = -1
        self._own: list[Batch] = []

    def batch_at(self, step: int) -> Batch:
        """Return the batch of a step; the target writes anew every `STEPS_OF_ROUND` steps."""
        if step // STEPS_OF_ROUND != self._round:
            self._round = step // STEPS_OF_ROUND
            self._own = self._write(self._round)
        return self.batch_with_last(step)

    def batch_with_last(self, step: int) -> Batch:
        """Return a batch with the texts that were written last, of whatever model."""
        if not self._own:
            self._own = self._write(0)
        parts = [learned(windows(self._library, 500_000 + step, self._num_rows // 4, self._length))]
        generator = torch.Generator().manual_seed(step)
        for (ids, signs), num_rows in zip(self._own, (self._num_rows // 2, self._num_rows // 4), strict=True):
            if len(ids):
                rows = torch.randint(len(ids), (num_rows,), generator=generator)
                parts.append((ids[rows], signs[rows]))
        return torch.cat([ids for ids, _ in parts]), torch.cat([signs for _, signs in parts])

    def _write(self, number: int) -> list[Batch]:
        """Let the target write: texts with what is to become unlikely, and texts to learn from."""
        prompts = windows(self._library, 1_000_000 + number, 2 * NUM_TEXTS, NUM_PROMPT - 1)
        temperatures = torch.tensor([0.0, TEMPERATURE]).repeat_interleave(NUM_TEXTS)
        ids = write_on(self._model, prompts, self._length + 1 - NUM_PROMPT, temperatures, number).clone()
        signs = torch.zeros_like(ids)
        num_repeating = [0, 0]
        for row, text in enumerate(ids.tolist()):
            is_sampled = row >= NUM_TEXTS
            written = text[NUM_PROMPT:]
            size = written.index(0) + 1 if 0 in written else len(written)  # what stands behind an end says nothing
            avoidable = self._lines.avoidable(written[:size])
            num_repeating[is_sampled] += bool(self._lines.repeated(written[:size]))
            if is_sampled and not avoidable:
                signs[row, NUM_PROMPT : NUM_PROMPT + size] = 1
            if avoidable and not is_sampled:
                signs[row, torch.tensor(avoidable) + NUM_PROMPT] = -1
        greedy, sampled = (f"{number / NUM_TEXTS:.0%}" for number in num_repeating)
        logger.info(f"a line thrice: in {greedy} of the greedy texts, in {sampled} of the sampled ones")
        used = signs.any(dim=1).nonzero()[:, 0]
        kinds = used[used < NUM_TEXTS], used[used >= NUM_TEXTS]
        return [(ids[rows], signs[rows]) for rows in kinds]
