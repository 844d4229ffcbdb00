"""Structured output: forced tokens of a JSON schema as candidates, compared with plain decoding.

    python benchmarks/structured.py TARGET [--draft DRAFT] [--tokens 120] [--trials 3] [--enforcer] [--output FILE]

The prompts are orders as a customer writes them; the target fills in a JSON object. Two constraints:

- `schema`: this script's own `prefix_allowed_tokens_fn`. Keys, punctuation and layout are fixed, as in a template, and
  a string ends at its quotation mark. Wherever only one token is allowed, it is a candidate;
- `enforcer` (with `--enforcer`, if lm-format-enforcer is installed): the same schema. It allows every tokenization of
  every layout, so hardly ever a single token.

Arms: plain `generate`; uag without forced tokens (an unknown stopping criterion turns them off); uag with them. Without
`--draft`, uag's other candidates come from prompt lookup. Each output is compared with plain decoding's.
"""

import argparse
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import common
import torch
import transformers
from transformers import StoppingCriteria

import uag
from uag.loading import load_model, load_tokenizer, open_draft

ORDERS = (
    "Please send 3 hammers at 12.50 euros each to Anna Berg, 5 Elm Street, Oslo 0150. They are in stock.",
    "I want two oak tables for 249 dollars apiece, for Tom Hill, 18 Mill Road, Boston 02110. Not in stock yet.",
    "Can I get 40 light bulbs, 1.99 pounds each? Ship to Sara Jones, 7 High Street, Leeds LS1 4DY. In stock.",
    "Order: 1 garden hose, 30 euros. Deliver to Paul Klein, Lindenweg 12, Bonn 53111. It is in stock.",
    "We need 12 office chairs at 89 dollars. Address: Ruth Lee, 300 Pine Avenue, Seattle 98101. Out of stock.",
    "6 paint brushes, 4.25 pounds each, please; Ian Watt, 2 Harbour Lane, Bristol BS1 5TY. In stock.",
)
PROMPT = "{order}\nThe same order as a JSON object:\n"
CURRENCIES = ("EUR", "USD", "GBP")
STRING, NUMBER, CHOICE = "string", "number", "choice"
FIELDS: tuple[tuple[str, str, Sequence[str]], ...] = (
    ('{"item": "', STRING, ()),
    (', "quantity": ', NUMBER, ()),
    (', "unit_price": ', NUMBER, ()),
    (', "currency": "', CHOICE, [f'{name}"' for name in CURRENCIES]),
    (', "in_stock": ', CHOICE, ["true", "false"]),
    (', "delivery_address": {"recipient": "', STRING, ()),
    (', "street": "', STRING, ()),
    (', "city": "', STRING, ()),
    (', "postal_code": "', STRING, ()),
)
"""The text before each field, and the field: a string with its closing quotation mark, a number, or a choice."""

LAST = "}}"
COLUMNS = {
    "constraint": "{constraint}",
    "arm": "{arm}",
    "tokens per target pass": "{tokens_per_pass:.2f}",
    "seconds per prompt": "{seconds:.2f}",
    "relative to plain": "{speed:.2f}",
    "forced tokens accepted": "{forced}",
    "constraint asked, ms per token": "{asked_ms:.2f}",
}


class Schema:
    """Allows what continues a JSON object of `FIELDS`; a pure function of the ids."""

    def __init__(self, tokenizer: Any, prompt_length: int, vocab_size: int) -> None:
        def encode(text: str) -> list[int]:
            ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
            return ids

        texts = [tokenizer.decode([token_id]) for token_id in range(len(tokenizer))]
        plain = [i for i, text in enumerate(texts) if text and text.isprintable() and "\\" not in text]
        special = set(tokenizer.all_special_ids)
        self.inside = [i for i in plain if '"' not in texts[i] and i not in special and i < vocab_size]
        self.closing = {i for i in plain if texts[i].endswith('"') and texts[i].count('"') == 1}
        self.digits = [i for i, text in enumerate(texts) if text and set(text) <= set("0123456789.") and i < vocab_size]
        self.fields = [(encode(text), kind, [encode(choice) for choice in choices]) for text, kind, choices in FIELDS]
        self.last = encode(LAST)
        self.end = [tokenizer.eos_token_id]
        self.prompt_length = prompt_length
        self.strings = sorted({*self.inside, *self.closing})

    def __call__(self, row: int, ids: torch.Tensor) -> list[int]:  # noqa: ARG002 - transformers passes it
        """Return what may follow the ids of a row."""
        written = ids[self.prompt_length :].tolist()
        place = 0
        for index, (before, kind, choices) in enumerate(self.fields):
            if len(written) < place + len(before):
                return [before[len(written) - place]]
            place += len(before)
            following = self.fields[index + 1][0][0] if index + 1 < len(self.fields) else self.last[0]
            start = place
            while place < len(written) and not self._has_ended(kind, written[start:place], written[place], choices):
                place += 1
            if place == len(written):
                return self._allowed(kind, written[start:], choices, following)
        done = len(written) - place
        return [self.last[done]] if done < len(self.last) else self.end

    def _has_ended(self, kind: str, value: list[int], token_id: int, choices: list[list[int]]) -> bool:
        """Return whether a value is complete, so that `token_id` belongs to the text after it."""
        if kind == STRING:
            return bool(value) and value[-1] in self.closing
        return value in choices if kind == CHOICE else token_id not in set(self.digits)

    def _allowed(self, kind: str, value: list[int], choices: list[list[int]], following: int) -> list[int]:
        if kind == STRING:
            return [following] if value and value[-1] in self.closing else self.strings
        if kind == CHOICE:
            return sorted({c[len(value)] for c in choices if c[: len(value)] == value and len(c) > len(value)}) or [
                following
            ]
        return [*self.digits, following] if value else self.digits


def main() -> None:
    """Measure every constraint and arm, and print one row for each."""
    parser = common.make_parser(__doc__, tokens=120, trials=3, prompts=len(ORDERS))
    parser.add_argument("target", help="hub name or folder")
    parser.add_argument("--draft", help="hub name, folder or GGUF file; without it, prompt lookup")
    parser.add_argument("--enforcer", action="store_true", help="also with lm-format-enforcer")
    arguments = common.parse(parser)
    common.show(arguments, "structured output, greedy", COLUMNS, _measure(arguments))


class Never(StoppingCriteria):
    """Never ends a row. Beside unknown criteria, uag does not ask a constraint ahead."""

    def __call__(self, input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Return that no row ends."""
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


class Timed:
    """A constraint whose calls are counted and timed."""

    def __init__(self, function: Callable[[int, torch.Tensor], Any]) -> None:
        self.function, self.num_calls, self.seconds = function, 0, 0.0

    def __call__(self, row: int, ids: torch.Tensor) -> Any:
        """Return what the constraint allows."""
        start = time.perf_counter()
        allowed = self.function(row, ids)
        self.seconds += time.perf_counter() - start
        self.num_calls += 1
        return allowed


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    target, tokenizer = load_model(arguments.target, role="target"), load_tokenizer(arguments.target, role="target")
    if arguments.draft is None:
        assistant = uag.Assistant.from_prompt_lookup(tokenizer)
    else:
        assistant = uag.Assistant(*open_draft(arguments.draft, None), tokenizer)
    prompts = [tokenizer(PROMPT.format(order=order), return_tensors="pt") for order in ORDERS[: arguments.prompts]]
    schemas = {"schema": lambda length: Schema(tokenizer, length, target.config.vocab_size)}
    if arguments.enforcer:
        enforce = _enforcer(tokenizer)
        schemas["enforcer"] = lambda _: enforce
    for constraint, make in schemas.items():
        constraints = [Timed(make(inputs["input_ids"].shape[1])) for inputs in prompts]
        yield from _arms(arguments, constraint, target, assistant, list(zip(prompts, constraints, strict=True)))


def _arms(
    arguments: argparse.Namespace,
    name: str,
    target: Any,
    assistant: uag.Assistant,
    calls: list[tuple[Any, Timed]],
) -> Iterator[common.Row]:
    def assisted(**given: Any) -> Any:
        return assistant.generate(target, **given)

    arms = {
        "plain": (target.generate, {}),
        "uag, none forced": (assisted, {"stopping_criteria": [Never()]}),
        "uag": (assisted, {}),
    }
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    num_tokens = dict.fromkeys(arms, 0)
    num_passes, forced = dict.fromkeys(arms, 0), dict.fromkeys(arms, 0)
    asked: dict[str, list[float]] = {arm: [0.0, 0.0] for arm in arms}
    for trial in range(arguments.trials + 1):  # the first one warms up
        for inputs, function in calls:
            expected = None
            for arm, (generate, options) in arms.items():
                function.num_calls, function.seconds = 0, 0.0
                start = time.perf_counter()
                ids = generate(
                    **inputs,
                    **options,
                    do_sample=False,
                    max_new_tokens=arguments.tokens,
                    prefix_allowed_tokens_fn=function,
                    pad_token_id=0,
                )
                took = time.perf_counter() - start
                expected = ids if expected is None else expected
                if not torch.equal(ids, expected):
                    raise SystemExit(f"{arm}: the output differs from plain decoding's")
                if not trial:
                    continue
                seconds[arm].append(took)
                stats, size = assistant.stats, ids.shape[1] - inputs["input_ids"].shape[1]
                num_tokens[arm] += size
                num_passes[arm] += size if arm == "plain" else stats.num_target_forwards
                forced[arm] += 0 if arm == "plain" else stats.accepted_by_source.get("constraint", 0)
                asked[arm][0] += function.seconds
                asked[arm][1] += size
    for arm in arms:
        yield {
            "constraint": name,
            "arm": arm,
            "tokens_per_pass": num_tokens[arm] / num_passes[arm],
            "seconds": sum(seconds[arm]) / len(seconds[arm]),
            "speed": sum(seconds["plain"]) / sum(seconds[arm]),
            "forced": f"{forced[arm] / num_tokens[arm]:.0%}",
            "asked_ms": 1e3 * asked[arm][0] / asked[arm][1],
            "dtype": target.dtype,
        }


def _enforcer(tokenizer: Any) -> Any:
    """Return lm-format-enforcer's constraint; version 0.11 imports a module that transformers 5 has renamed."""
    module = types.ModuleType("transformers.tokenization_utils")
    vars(module)["PreTrainedTokenizerBase"] = transformers.PreTrainedTokenizerBase
    sys.modules[module.__name__] = module
    from lmformatenforcer import JsonSchemaParser
    from lmformatenforcer.integrations.transformers import build_transformers_prefix_allowed_tokens_fn

    text, number = {"type": "string"}, {"type": "number"}
    address = {name: text for name in ("recipient", "street", "city", "postal_code")}
    properties = {
        **{"item": text, "quantity": {"type": "integer"}, "unit_price": number, "currency": {"enum": [*CURRENCIES]}},
        **{"in_stock": {"type": "boolean"}, "delivery_address": _object(address)},
    }
    return build_transformers_prefix_allowed_tokens_fn(tokenizer, JsonSchemaParser(_object(properties)))


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


if __name__ == "__main__":
    main()
