"""Compares a class's assisted output with plain decoding's, for mostly right and mostly wrong candidates."""

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

import uag
from benchmarks.replay import Replay, Text
from tests.support.callers import OracleDrafter
from tests.support.calls import seeded
from tests.support.class_inputs import inputs_of
from tests.support.models import tiny_of_class
from tests.support.tiny_classes import class_names
from uag.drafting import ModelDrafter
from uag.errors import UagError
from uag.hf import models
from uag.proposal import Proposal

NEW = 12
SHARES = (0.7, 0.25)
_SEEDS = {"Speech2TextForConditionalGeneration": 2}  # with others it writes padding only


class SharedDrafter(OracleDrafter):
    """Proposes the target's own continuation, with a given share of correct ids, and does not check what is written."""

    strategy = "share"

    def __init__(self, outputs: Sequence[Sequence[int]], vocab_size: int, share: float, seed: int = 7) -> None:
        draws = random.Random(seed)
        rows = [
            [i if draws.random() < share else (i + 1 + draws.randrange(vocab_size - 1)) % vocab_size for i in row]
            for row in outputs
        ]
        super().__init__(rows, vocab_size)
        self.confidences = [draws.random() ** 0.3 for _ in range(64)]

    def _row(self, row: int, limit: int) -> list[Proposal]:
        done, known = len(self.seen[row]), self.outputs[row] if row < len(self.outputs) else []
        ids = enumerate(known[done : done + limit], done)
        return [Proposal(i, self.confidences[place % len(self.confidences)]) for place, i in ids]


@dataclass(frozen=True)
class Verdict:
    """The result for one class.

    Attributes:
        class_name: name of the model class.
        kind: "equal", "plain", "different", "error", or "not built" or "not run" if transformers itself fails.
        reason: the reason, for all but "equal".
        num_runs: number of compared calls.
        acceptance: share of accepted candidates, by share of correct ones.
        as_draft: "drafts", or why it does not.
        independence: "yes" if the draft changes no bit of its logits in any dtype, or why it may.
    """

    class_name: str
    kind: str
    reason: str = ""
    num_runs: int = 0
    acceptance: tuple[float, ...] = ()
    as_draft: str = ""
    independence: str = ""


CALLS = ((1, False), (3, True), (1, True), (3, False))
"""Calls of a class: the number of rows, and whether to sample."""


DTYPES = torch.float32, torch.bfloat16, torch.float16


def examine(class_name: str, num_calls: int = len(CALLS), dtypes: Sequence[torch.dtype] = DTYPES) -> Verdict:
    """Compare the first calls of a class with plain decoding, and its logits with and without candidates by dtype."""
    try:
        model = tiny_of_class(class_name, seed=_SEEDS.get(class_name, 0))
    except Exception as error:  # noqa: BLE001 - a constructor may raise anything
        return Verdict(class_name, "not built", _line(error))
    num_runs, reasons = 0, set()
    offered, accepted = [0] * len(SHARES), [0] * len(SHARES)
    for num_rows, do_sample in CALLS[:num_calls]:
        given = options_for(class_name, num_rows, do_sample)
        try:
            expected = seeded(5, copied(model).generate, **given)
        except Exception as error:  # noqa: BLE001 - as above
            return Verdict(class_name, "not run", _line(error))
        if not isinstance(expected, torch.Tensor) or expected.dim() != 2:
            return Verdict(class_name, "not run", "its own generate writes more than one row of ids")
        state = torch.get_rng_state()
        written = expected[:, -NEW:].tolist()
        for place, share in enumerate(SHARES):
            where = f"{num_rows} rows, {'sampled' if do_sample else 'greedy'}, {share:.0%} right"
            drafter = SharedDrafter(written, models.head_size(model), share)
            assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=4)
            try:
                found = seeded(5, assistant.generate, copied(model), **given)
            except Exception as error:  # noqa: BLE001 - as above
                return Verdict(class_name, "error", f"{where}: {_line(error)}")
            if found.tolist() != expected.tolist():
                return Verdict(class_name, "different", where)
            if not torch.equal(torch.get_rng_state(), state):
                return Verdict(class_name, "different", f"{where}: generator state")
            num_runs += 1
            offered[place] += assistant.stats.num_candidate_tokens
            accepted[place] += assistant.stats.num_accepted_tokens
            reasons.update(assistant.stats.fallbacks)
    kind = "equal" if any(offered) else "plain"
    independence = "" if kind == "plain" else independence_of(class_name, model, dtypes)
    if independence.startswith("differs"):
        return Verdict(class_name, "different", independence)
    shares = tuple(a / b if b else 0.0 for a, b in zip(accepted, offered, strict=True))
    drafts = as_draft(class_name, model)
    return Verdict(class_name, kind, "; ".join(sorted(reasons)), num_runs, shares, drafts, independence)


def independence_of(class_name: str, model: Any, dtypes: Sequence[torch.dtype]) -> str:
    """Compare logits with and without candidates, alone and in a batch, in some dtypes; see `Verdict`."""
    for dtype in dtypes:
        converted = model if dtype == model.dtype else copy.deepcopy(model).to(dtype)
        for num_rows in (1, 3):
            given: dict[str, Any] = options_for(class_name, num_rows, False)
            given |= {"return_dict_in_generate": True, "output_logits": True}
            for name, value in given.items():
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    given[name] = value.to(dtype)
            try:
                reference = uag.Assistant(None)
                expected = reference.generate(copied(converted), **given)
                written = expected.sequences[:, -len(expected.logits) :].tolist()
                drafter = SharedDrafter(written, expected.logits[0].shape[-1], SHARES[0])
                assistant = uag.Assistant(None, drafter=drafter, num_candidate_tokens=4)
                found = assistant.generate(copied(converted), **given)
            except Exception as error:  # noqa: BLE001 - some classes run in float32 only
                return f"not run in {dtype}: {_line(error)}"
            for stats in (reference.stats, assistant.stats):
                if not stats.is_draft_independent:
                    return stats.draft_dependence
            if not all(map(torch.equal, found.logits, expected.logits)):
                return f"differs in {dtype}, {num_rows} rows"
    return "yes"


def options_for(class_name: str, num_rows: int, do_sample: bool, num_new: int = NEW) -> dict[str, Any]:
    # The decoder of an audio or vision model can read text on its own.
    inputs = inputs_of("" if class_name.endswith("ForCausalLM") else class_names()[class_name], num_rows)
    options = {"max_new_tokens": num_new, "do_sample": do_sample, "top_k": 0, "num_beams": 1}
    return inputs | options | {"eos_token_id": None, "pad_token_id": 0}


def copied(model: Any) -> Any:
    """Return a copy that has not run yet if the first pass changes the model (BigBird's attention type)."""
    return copy.deepcopy(model) if "BigBird" in type(model).__name__ else model


def as_draft(class_name: str, model: Any) -> str:
    given = options_for(class_name, 3, False)
    model = copied(model)
    try:
        assistant = uag.Assistant(model, num_candidate_tokens=3)
    except UagError as error:
        return str(error)
    try:
        found = assistant.generate(copied(model), **given)
        drafts = assistant.stats.num_draft_forwards > 0 or _replays(model, given, found)
    except Exception as error:  # noqa: BLE001 - as above
        return f"error: {_line(error)}"
    if found.tolist() != model.generate(**given).tolist():
        return "error: another output"
    return "drafts" if drafts else "; ".join(assistant.stats.fallbacks)


def _replays(model: Any, given: dict[str, Any], found: torch.Tensor) -> bool:
    """Return whether a model that falls back to plain decoding as a target drafts its own outputs."""
    if model.config.is_encoder_decoder or "input_ids" not in given:
        return False
    width = given["input_ids"].shape[1]
    texts = [Text("", tuple(ids[:width]), output_ids=tuple(ids[width:])) for ids in found.tolist()]
    counts = list(Replay(ModelDrafter(model, None), models.head_size(model)).count(texts))
    return sum(accepted for _, accepted in counts) > 0


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:200]
