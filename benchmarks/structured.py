"""Structured output: the tokens that a grammar forces as candidates, compared with plain decoding.

    python benchmarks/structured.py TARGET [--draft DRAFT] [--library llguidance xgrammar] [--prompts 30] [--tokens 200]
                                    [--trials 1] [--output FILE]

30 short texts, five for each of six JSON schemas; the target writes the JSON object that they describe. The grammar is
llguidance's or xgrammar's, with the layout of `json.dumps`. Arms, interleaved prompt by prompt:

- plain `generate` with the grammar's logits processor;
- uag without a draft: the same loop with uag's kernels;
- uag with lookup: prompt lookup alone, with the grammar hidden from uag;
- uag with forced tokens: prompt lookup and what the grammar forces;
- with `--draft`, the last two with the draft beside prompt lookup.

Every output is compared with plain decoding's, and every text that ends within `--tokens` is validated against its
schema. Needs jsonschema (the extra `bench`).
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import common
import torch
from transformers import LogitsProcessor

import uag
from uag.loading import load_model, load_tokenizer, open_draft
from uag.structured import JsonSchemas

TEXT, WORD, DATE = (
    {"type": "string", "maxLength": 60},
    {"type": "string", "maxLength": 30},
    {"type": "string", "pattern": r"^20[0-9]{2}-[01][0-9]-[0-3][0-9]$"},
)
COUNT, MONEY = {"type": "integer", "minimum": 0, "maximum": 9999}, {"type": "number", "minimum": 0, "maximum": 99999}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": 3}


TASKS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "order": (
        _object(
            item=WORD,
            quantity=COUNT,
            unit_price=MONEY,
            currency={"enum": ["EUR", "USD", "GBP"]},
            in_stock={"type": "boolean"},
            delivery_address=_object(recipient=WORD, street=WORD, city=WORD, postal_code=WORD),
        ),
        (
            "Please send 3 hammers at 12.50 euros each to Anna Berg, 5 Elm Street, Oslo 0150. They are in stock.",
            "I want two oak tables for 249 dollars apiece, for Tom Hill, 18 Mill Road, Boston 02110. Not in stock yet.",
            "Can I get 40 light bulbs, 1.99 pounds each? Ship to Sara Jones, 7 High Street, Leeds LS1 4DY. In stock.",
            "Order: 1 garden hose, 30 euros. Deliver to Paul Klein, Lindenweg 12, Bonn 53111. It is in stock.",
            "We need 12 office chairs at 89 dollars. Address: Ruth Lee, 300 Pine Avenue, Seattle 98101. Out of stock.",
        ),
    ),
    "support ticket": (
        _object(
            customer_name=WORD,
            product=WORD,
            category={"enum": ["billing", "technical_issue", "delivery", "account_access", "other"]},
            priority={"enum": ["low", "normal", "high", "urgent"]},
            summary=TEXT,
            needs_callback={"type": "boolean"},
        ),
        (
            "This is Maria Lopez. My Aqua 300 dishwasher leaks on every run, please call me today, the floor is wet!",
            "Hi, Ben here. I was charged twice for the Plus plan in May. No hurry, an e-mail is fine.",
            "The parcel with my Nova tablet never came, it is two weeks late now. Regards, Chen Wei",
            "I cannot log in to MyCloud since the update; our whole team is locked out. Call me. Olga Novak",
            "Could the next Readit app have a dark theme? Thanks, Liam O'Neill",
        ),
    ),
    "calendar event": (
        _object(
            title=WORD,
            event_date=DATE,
            start_time={"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"},
            duration_minutes=COUNT,
            location=_object(room=WORD, building=WORD),
            participants=_list(WORD),
            is_recurring={"type": "boolean"},
        ),
        (
            "Budget review on 3 June 2026 at 9:30, one hour, room 204 in the Main Building, with Ana and Joe.",
            "Every Monday from 11 May 2026, 8:45: stand-up of 15 minutes, room Blue, Tower B. Kim, Lee and Max.",
            "Interview with Dana Fox on 2026-07-14, 14:00 to 14:45, room 12, North Wing.",
            "Choir practice, Thursdays at 19:00 for 90 minutes, from 1 October 2026, hall of the Old School, with Eva.",
            "Fire drill: 21 August 2026, 10:00, 20 minutes, Room 1, Factory 2; Sam and Petra lead it.",
        ),
    ),
    "product listing": (
        _object(
            product_name=WORD,
            brand=WORD,
            dimensions=_object(width_cm=MONEY, height_cm=MONEY, depth_cm=MONEY),
            weight_kg=MONEY,
            material={"enum": ["wood", "metal", "plastic", "fabric", "glass"]},
            colors=_list(WORD),
            warranty_years=COUNT,
        ),
        (
            "Shelf Billa by Norden: oak, 80 cm wide, 180 high, 30 deep, 24.5 kg, natural or white. Warranty: 5 years.",
            "The steel trolley Rollo (Ferro) is 45 x 70 x 35 cm, weighs 9 kg, comes in black, with a 2 year warranty.",
            "Cushion Softy from Lana, cotton, 40 by 40 by 12 cm, 0.6 kg; red, blue or green; 1 year.",
            "Glass vase Vita, maker Klar: 15 wide, 32 high, 15 deep, 1.2 kilograms, clear. No warranty.",
            "Storage box Stack-It (Boxo), plastic: 60 x 40 x 30 cm, 2.1 kg, grey or blue, guaranteed for 10 years.",
        ),
    ),
    "job posting": (
        _object(
            job_title=WORD,
            company=WORD,
            employment_type={"enum": ["full_time", "part_time", "contract", "internship"]},
            salary_range=_object(minimum=COUNT, maximum=MONEY, currency={"enum": ["EUR", "USD", "GBP"]}),
            required_skills=_list(WORD),
            years_of_experience=COUNT,
            remote_allowed={"type": "boolean"},
        ),
        (
            "Datalake GmbH seeks a full-time data engineer: SQL, Python, Spark; 3 years; 6000 to 7500 EUR; remote.",
            "Cafe Luna needs a part-time barista in Leeds, 1200-1400 pounds monthly, latte art, no experience needed.",
            "Internship at Brightside Media, New York: video editing, 2000 dollars a month up to 2500, on site.",
            "Contract: network administrator for Portix, 5 years with Cisco and Linux, 7000-9000 USD, remote possible.",
            "Nurse (full time) at St. Anne Hospital, 2 years, night shifts, 3100 to 3900 EUR, not remote.",
        ),
    ),
    "server alert": (
        _object(
            host_name=WORD,
            service=WORD,
            severity={"enum": ["info", "warning", "critical"]},
            detected_on=DATE,
            metric=_object(metric_name=WORD, measured_value=MONEY, threshold_value=MONEY),
            probable_cause=TEXT,
            acknowledged={"type": "boolean"},
        ),
        (
            "2026-02-03 web-04 nginx CRITICAL: error_rate 12.5 over 5, upstream timed out. Nobody has looked yet.",
            "2026-02-04 db-01 postgres warning: disk_usage 91 (limit 90), old write-ahead logs. Acknowledged by Ivo.",
            "2026-02-04 mail-2 postfix info: queue_length 130, threshold 100, newsletter being sent. Acknowledged.",
            "2026-02-07 gpu-11 trainer CRITICAL: temperature 96 above 85, a fan has failed. Not acknowledged.",
            "2026-02-09 cache-3 redis warning: memory_percent 88 of at most 80, keys without expiry. Open.",
        ),
    ),
}
PROMPT = "{text}\n\nThe {kind} in this text, as a JSON object:\n"
COLUMNS = {
    "library and arm": "{arm}",
    "tokens per target pass": "{tokens_per_pass:.2f}",
    "seconds per answer": "{seconds:.2f}",
    "relative to plain": "{speed:.2f}",
    "forced tokens accepted": "{forced}",
    "and rejected": "{rejected}",
    "valid": "{valid}",
    "equal": "{equal}",
}


class Hidden(LogitsProcessor):
    """A processor whose grammar uag does not see."""

    def __init__(self, processor: LogitsProcessor) -> None:
        self._call = processor.__call__

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Process the scores."""
        processed: torch.Tensor = self._call(input_ids, scores)
        return processed


def main() -> None:
    """Measure every library and arm, and print one row for each."""
    parser = common.make_parser(__doc__, tokens=200, trials=1, prompts=30)
    parser.add_argument("target", help="hub name or folder")
    parser.add_argument("--draft", help="hub name, folder or GGUF file; without it, prompt lookup alone")
    parser.add_argument("--library", nargs="+", default=["llguidance", "xgrammar"], help="default: both")
    arguments = common.parse(parser)
    common.show(arguments, "structured output, greedy", COLUMNS, _measure(arguments))


def _measure(arguments: argparse.Namespace) -> Iterator[common.Row]:
    target, tokenizer = load_model(arguments.target, role="target"), load_tokenizer(arguments.target, role="target")
    arms: dict[str, tuple[Callable[..., Any], uag.Assistant | None, bool]] = {"plain": (target.generate, None, True)}

    def add(name: str, assistant: uag.Assistant, is_seen: bool) -> None:
        arms[name] = (lambda **given: assistant.generate(target, **given), assistant, is_seen)

    add("uag, no draft", uag.Assistant(None, None, tokenizer), True)
    add("uag, lookup", uag.Assistant.from_prompt_lookup(tokenizer), False)
    add("uag, forced tokens", uag.Assistant.from_prompt_lookup(tokenizer), True)
    if arguments.draft is not None:
        opened = open_draft(arguments.draft, None)
        add("uag, draft", uag.Assistant(*opened, tokenizer), False)
        add("uag, draft and forced tokens", uag.Assistant(*opened, tokenizer), True)
    tasks = [(kind, schema, text) for kind, (schema, texts) in TASKS.items() for text in texts]
    size = min(arguments.prompts, len(tasks))
    chosen = [tasks[index * len(tasks) // size] for index in range(size)]
    for library in arguments.library:
        schemas = JsonSchemas(tokenizer, target, library)
        yield from _rows(arguments, target, tokenizer, schemas, chosen, arms, library)


def _rows(
    arguments: argparse.Namespace,
    target: Any,
    tokenizer: Any,
    schemas: JsonSchemas,
    tasks: list[tuple[str, dict[str, Any], str]],
    arms: dict[str, tuple[Callable[..., Any], uag.Assistant | None, bool]],
    library: str,
) -> Iterator[common.Row]:
    counts = {arm: dict.fromkeys(("tokens", "passes", "seconds", "forced", "rejected", "equal"), 0.0) for arm in arms}
    num_valid = num_answers = 0
    for trial in range(arguments.trials + 1):
        for kind, schema, text in tasks if trial else tasks[:1]:  # a short first call warms each arm up
            inputs, expected = tokenizer(PROMPT.format(text=text, kind=kind), return_tensors="pt"), None
            length = inputs["input_ids"].shape[1]
            for arm, (generate, assistant, is_seen) in arms.items():
                processor = schemas.processor(schema)
                start = time.perf_counter()
                ids = generate(
                    **inputs,
                    do_sample=False,
                    max_new_tokens=arguments.tokens if trial else 16,
                    logits_processor=[processor if is_seen else Hidden(processor)],
                )
                seconds = time.perf_counter() - start
                expected = ids if expected is None else expected
                if not trial:
                    continue
                size, count = ids.shape[1] - length, counts[arm]
                stats = None if assistant is None else assistant.stats
                accepted = 0 if stats is None else stats.accepted_by_source.get("constraint", 0)
                proposed = 0 if stats is None else stats.candidates_by_source.get("constraint", 0)
                count["tokens"] += size
                count["passes"] += size if stats is None else stats.num_target_forwards
                count["seconds"] += seconds
                count["forced"] += accepted
                count["rejected"] += proposed - accepted
                count["equal"] += torch.equal(ids, expected)
            if trial and expected is not None:
                num_answers += 1
                num_valid += is_valid(tokenizer.decode(expected[0, length:], skip_special_tokens=True), schema)
    for arm, count in counts.items():
        yield {
            "arm": f"{library}: {arm}",
            "tokens_per_pass": count["tokens"] / count["passes"],
            "seconds": count["seconds"] / num_answers,
            "speed": counts["plain"]["seconds"] / count["seconds"],
            "forced": f"{count['forced'] / count['tokens']:.0%}",
            "rejected": f"{count['rejected'] / count['tokens']:.0%}",
            "valid": f"{num_valid} of {num_answers}",
            "equal": f"{count['equal']:.0f} of {num_answers}",
            "dtype": target.dtype,
        }


def is_valid(text: str, schema: dict[str, Any]) -> bool:
    """Whether a text is JSON that matches a schema."""
    from jsonschema import ValidationError, validate

    try:
        validate(json.loads(text), schema)
    except (ValueError, ValidationError):
        return False
    return True


if __name__ == "__main__":
    main()
