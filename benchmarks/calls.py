"""Calls without a draft model, replayed on texts that the target has generated: for memory.py and predictions.py.

The target is not run. A pass takes 10 ms, each candidate in it 0.1 ms more, and the sources take their real time.
"""

from collections.abc import Sequence
from itertools import zip_longest

import common
from replay import Replay, Text

import uag
from uag.drafting import PromptLookup, Session
from uag.hf import models
from uag.loading import Pair
from uag.lookahead import Lookahead, Round

PASS_S, CANDIDATE_S = 10e-3, 0.1e-3
COLUMNS = {
    "case": "{case}",
    "tokens per pass": "{tokens_per_pass:.2f}",
    "prompt lookup alone": "{lookup_tokens_per_pass:.2f}",
    "speed": "{speed:.2f}",
    "prompt lookup's": "{lookup_speed:.2f}",
    "drafting per round": "{draft_us:.0f} us",
}


class Calls:
    """The calls of one assistant.

    Args:
        pair: a target with its tokenizer.
        looks_up: use prompt lookup.
        memory: a memory, to which each call is added.
    """

    def __init__(self, pair: Pair, *, looks_up: bool = True, memory: uag.Memory | None = None) -> None:
        self._pair, self._memory = pair, memory
        self._lookup = PromptLookup() if looks_up else None
        self._lookahead = Lookahead()
        self._session = Session(None, uag.Options(prompt_lookup=looks_up), memory)

    def replay(self, texts: Sequence[Text], predictions: Sequence[str] = ()) -> common.Row:
        """Replay a call for each text, with a prediction if there are any, and return figures over all calls."""
        target, tokenizer, lookahead = self._pair.target, self._pair.target_tokenizer, self._lookahead
        num_tokens = num_passes = len(texts)  # the passes over the prompts
        seconds, draft_s = num_passes * PASS_S, 0.0
        for text, prediction in zip_longest(texts, predictions):
            drafter = self._session.with_free_sources(self._lookup, prediction, target, 1, tokenizer, [])
            if drafter is None:
                raise ValueError("a call needs prompt lookup, a memory or a prediction")
            lookahead.begin(1, "sample" if text.temperature else "greedy")
            replay = Replay(drafter, models.head_size(target))
            for drafted in replay.rounds(text, lookahead, lambda left: left - 1 if left else None, start=1):
                width = len(drafted.candidates)
                pass_s = PASS_S + CANDIDATE_S * width
                lookahead.learn_round(Round(width, drafted.draft_s, pass_s, []))
                num_tokens += 1 + drafted.num_accepted
                num_passes, seconds, draft_s = num_passes + 1, seconds + pass_s, draft_s + drafted.draft_s
            if self._memory is not None:
                self._memory.add(text.prompt_ids, text.output_ids)
        return {
            "tokens_per_pass": num_tokens / num_passes,
            "speed": num_tokens * PASS_S / (seconds + draft_s),
            "draft_us": 1e6 * draft_s / max(num_passes - len(texts), 1),
        }


def compared(case: str, ours: common.Row, lookup: common.Row) -> common.Row:
    """Return a row of a table: our figures, and those of prompt lookup alone."""
    return {"case": case, "dtype": "float32"} | ours | {f"lookup_{name}": value for name, value in lookup.items()}
