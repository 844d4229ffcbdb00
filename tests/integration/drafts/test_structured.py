"""Grammars of llguidance and xgrammar: what they force is a candidate, and processors see what plain decoding shows."""

import importlib
import json
import re
import sys
import types
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, LogitsProcessor

import uag
from tests.conftest import ROOT
from tests.support.callers import Puts, Watches
from tests.support.calls import ids_of, left_padded, seeded
from uag.errors import OptionError
from uag.loading import demo_folder, load_tokenizer
from uag.structured import JsonSchemas

LIBRARIES = ("llguidance", "xgrammar")
GREEDY: dict[str, Any] = {"max_new_tokens": 100, "do_sample": False}
SAMPLED: dict[str, Any] = {"max_new_tokens": 100, "do_sample": True, "temperature": 0.8}
MODES = pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
TEXTS = ("def read_lines(path):\n", "class Reader:\n", "import os\nimport json\n")


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


COUNT = {"type": "integer", "minimum": 0, "maximum": 99}
SCHEMA = closed(
    file_name={"type": "string", "pattern": "^[a-z_]{1,8}$"},
    encoding={"enum": ["utf-8", "latin-1"]},
    options=closed(newline={"type": "boolean"}, buffering=COUNT),
)


def check(text: str) -> None:
    answer = json.loads(text)
    assert re.fullmatch("[a-z_]{1,8}", answer.pop("file_name"))
    assert answer.pop("encoding") in ("utf-8", "latin-1")
    options = answer.pop("options")
    assert not answer
    assert type(options.pop("newline")) is bool
    assert 0 <= options.pop("buffering") <= 99
    assert not options


@cache
def demo() -> tuple[Any, Any]:
    folder = demo_folder("target")
    return AutoModelForCausalLM.from_pretrained(folder, num_hidden_layers=2), load_tokenizer(folder)


@cache
def schemas_of(library: str) -> JsonSchemas:
    pytest.importorskip(library)
    model, tokenizer = demo()
    return JsonSchemas(tokenizer, model, library)


@pytest.fixture(params=LIBRARIES)
def schemas(request: pytest.FixtureRequest) -> JsonSchemas:
    return schemas_of(request.param)


def lookup(**options: Any) -> uag.Assistant:
    return uag.Assistant.from_prompt_lookup(demo()[1], **options)


@cache
def drafted(length: int | None) -> uag.Assistant:
    return uag.Assistant(demo_folder("draft"), None, demo()[1], num_candidate_tokens=length)


def encoded(num_rows: int = 1) -> dict[str, Any]:
    return left_padded([demo()[1](text)["input_ids"] for text in TEXTS[:num_rows]])


def answers(ids: torch.Tensor, width: int) -> list[str]:
    return [demo()[1].decode(row[width:], skip_special_tokens=True) for row in ids]


class Records(LogitsProcessor):
    """Records what a processor gets and returns; its grammar stays in sight."""

    def __init__(self, processor: Any) -> None:
        self.__dict__.update(vars(processor))
        self.processor, self.seen = processor, list[Any]()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.seen.append(input_ids.tolist())
        processed: torch.Tensor = self.processor(input_ids, scores)
        self.__dict__.update(vars(self.processor))
        self.seen.append(processed.isfinite().sum(-1).tolist())
        return processed


def both(
    make: Callable[[], Any],
    assistant: uag.Assistant,
    options: dict[str, Any],
    num_rows: int = 1,
    others: Callable[[], dict[str, Any]] = dict,
) -> tuple[uag.Stats, list[str]]:
    """Run a call plainly and assisted; compare ids, generators, and all that the processor got and returned."""
    model, results, given = demo()[0], [], encoded(num_rows)
    for generate in (model.generate, partial(assistant.generate, model)):
        processor, extra = Records(make()), others()
        extra["logits_processor"] = [processor, *extra.get("logits_processor", [])]
        ids = ids_of(seeded(5, generate, **given, **options, **extra))
        state = [standing(matcher) for matcher in getattr(processor, "matchers", ())]
        results.append((ids.tolist(), torch.get_rng_state().tolist(), processor.seen, state))
    assert results[0] == results[1]
    return assistant.stats, answers(ids, given["input_ids"].shape[1])


def standing(matcher: Any) -> Any:
    if hasattr(matcher, "compute_ff_bytes"):
        return matcher.is_stopped(), matcher.get_error(), matcher.compute_ff_bytes(), matcher.compute_bitmask()
    ended = matcher.is_terminated()
    return ended, matcher.is_completed(), "" if ended else matcher.find_jump_forward_string()


@MODES
@pytest.mark.parametrize("source", ["lookup", "draft", "draft of a fixed length"])
def test_forced_tokens_save_passes(schemas: JsonSchemas, source: str, options: dict[str, Any]) -> None:
    assistant = lookup() if source == "lookup" else drafted(None if source == "draft" else 4)
    stats, (text,) = both(partial(schemas.processor, SCHEMA), assistant, options)
    check(text)
    assert stats.accepted_by_source["constraint"] > 10
    assert stats.num_target_forwards < 0.7 * stats.num_output_tokens


@MODES
def test_batches_whose_rows_end_at_different_steps(schemas: JsonSchemas, options: dict[str, Any]) -> None:
    for assistant in (lookup(), drafted(None)):
        stats, texts = both(partial(schemas.processor, SCHEMA), assistant, options, num_rows=3)
        for text in texts:
            check(text)
        assert stats.accepted_by_source.get("constraint", 0) > 0


def test_the_end_of_a_text_is_forced_too(schemas: JsonSchemas) -> None:
    """The text has one choice; xgrammar lets the target split the rest as it likes."""
    stats, (text,) = both(partial(schemas.processor, closed(kind={"enum": ["x", "y"]})), lookup(), GREEDY)
    assert json.loads(text)["kind"] in ("x", "y")
    assert stats.sources[0][-1] == "constraint"
    assert stats.num_target_forwards <= (4 if schemas is schemas_of("llguidance") else 6)


def test_a_text_that_splits_a_character(schemas: JsonSchemas) -> None:
    """Of both values, the first byte of the second character is forced."""
    stats, (text,) = both(partial(schemas.processor, closed(name={"enum": ["xé1", "xè2"]})), lookup(), GREEDY)
    assert json.loads(text)["name"] in ("xé1", "xè2")
    assert stats.accepted_by_source["constraint"] > 3


@MODES
@pytest.mark.parametrize("limit", [5, 11, 17])
def test_a_call_that_ends_within_the_text(schemas: JsonSchemas, options: dict[str, Any], limit: int) -> None:
    both(partial(schemas.processor, SCHEMA), lookup(), options | {"max_new_tokens": limit})
    both(
        partial(schemas.processor, SCHEMA),
        lookup(),
        options,
        others=lambda: {"stop_strings": ["enc"], "tokenizer": demo()[1]},
    )


def test_other_code_of_the_caller_and_a_streamer_beside_it(schemas: JsonSchemas) -> None:
    streams: list[Puts] = []

    def others() -> dict[str, Any]:
        streams.append(Puts())
        return {"stopping_criteria": [Watches()], "streamer": streams[-1]}

    stats, _ = both(partial(schemas.processor, SCHEMA), lookup(), GREEDY, others=others)
    assert streams[0].puts == streams[1].puts
    assert stats.accepted_by_source["constraint"] > 10


class Single(LogitsProcessor):
    """A user's processor for one row."""

    def __init__(self, matcher: Any, reads: bool = True) -> None:
        self.matcher, self.reads, self.length = matcher, reads, 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self.length and self.reads:
            assert self.matcher.consume_token(int(input_ids[0, -1]))
        self.length = input_ids.shape[1]
        mask = torch.tensor(list(self.matcher.compute_logit_bias())) == 0
        return scores.masked_fill(mask[: scores.shape[-1]], -torch.inf) if self.reads else scores


@pytest.mark.parametrize("reads", [True, False])
def test_a_processor_of_the_users_own(reads: bool) -> None:
    """A matcher that does not read the output forces nothing."""
    llguidance = pytest.importorskip("llguidance")
    made = schemas_of("llguidance").processor(SCHEMA)
    assert isinstance(made, LogitsProcessor)
    tokenizer, grammar = vars(made)["_tokenizer"], vars(made)["_grammar"]
    stats, _ = both(lambda: Single(llguidance.LLMatcher(tokenizer, grammar), reads), lookup(), GREEDY)
    assert ("constraint" in stats.accepted_by_source) == reads


def test_fast_forward_tokens_need_no_tokenizer() -> None:
    schemas = schemas_of("llguidance")
    model = demo()[0]
    name, model.name_or_path = model.name_or_path, ""
    try:
        stats, _ = both(partial(schemas.processor, SCHEMA), uag.Assistant.from_prompt_lookup(), GREEDY)
    finally:
        model.name_or_path = name
    assert stats.accepted_by_source["constraint"] > 5


def test_any_object_and_schemas_that_cannot_be_used(schemas: JsonSchemas) -> None:
    _, (text,) = both(schemas.processor, lookup(), GREEDY | {"max_new_tokens": 12})
    assert text.startswith("{")
    for schema in ({"type": "strin"}, {"type": "object", "properties": 3}, {"type": {1, 2}}):
        with pytest.raises(OptionError, match="The JSON schema cannot be used: "):
            schemas.processor(schema)


def test_a_token_against_the_grammar_is_an_error() -> None:
    processor = schemas_of("llguidance").processor(SCHEMA)
    processor(torch.tensor([[5, 1]]), torch.zeros(1, 1536))
    with pytest.raises(RuntimeError, match="llguidance: "):
        processor(torch.tensor([[5, 1, 7]]), torch.zeros(1, 1536))


def test_an_unknown_library_is_refused() -> None:
    target, tokenizer = demo()
    with pytest.raises(OptionError, match="library is 'outlines', it must be one of llguidance, xgrammar"):
        JsonSchemas(tokenizer, target, "outlines")


@pytest.mark.parametrize("library", [None, *LIBRARIES])
def test_a_missing_package_is_named(library: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LIBRARIES:
        monkeypatch.setitem(sys.modules, name, None)
    model, tokenizer = demo()
    with pytest.raises(ImportError, match=rf"needs {library or 'llguidance or xgrammar'}\. Install it: pip install "):
        JsonSchemas(tokenizer, model, library)


def test_the_example_of_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance")
    page = (ROOT / "docs" / "free-candidates.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^### JSON of a schema\n.*?^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert len(code.splitlines()) <= 15
    exec(compile(code, "free-candidates.md", "exec"), {})
    assert re.search(r'\{"encoding": "(utf-8|latin-1)"\}.* \{.*\'constraint\': [5-9]', capsys.readouterr().out)


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar", "outlines_core"])
def test_outlines_as_it_is(backend: str) -> None:
    outlines = pytest.importorskip("outlines")
    if backend != "outlines_core":
        pytest.importorskip(backend)
    model, tokenizer = demo()
    wrapped = outlines.from_transformers(model, tokenizer)
    get = importlib.import_module("outlines.backends").get_regex_logits_processor
    pattern = r'\{"file_name": "[a-z_]{1,8}", "encoding": "(utf-8|latin-1)"\}'
    stats, (text,) = both(lambda: get(backend, wrapped, pattern), lookup(), GREEDY)
    assert re.fullmatch(pattern, text)
    assert backend == "outlines_core" or stats.accepted_by_source["constraint"] > 3


def test_lm_format_enforcer_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    lmformatenforcer = pytest.importorskip("lmformatenforcer")
    module = types.ModuleType("transformers.tokenization_utils")  # which version 0.11 imports from transformers 5
    vars(module)["PreTrainedTokenizerBase"] = transformers.PreTrainedTokenizerBase
    monkeypatch.setitem(sys.modules, module.__name__, module)
    integration = importlib.import_module("lmformatenforcer.integrations.transformers")
    parser = lmformatenforcer.JsonSchemaParser(SCHEMA)
    function = integration.build_transformers_prefix_allowed_tokens_fn(demo()[1], parser)
    model, assistant, given = demo()[0], lookup(), encoded()
    options = GREEDY | {"prefix_allowed_tokens_fn": function}
    expected = model.generate(**given, **options)
    assert assistant.generate(model, **given, **options).tolist() == expected.tolist()
    assert "{\n" in answers(expected, given["input_ids"].shape[1])[0]  # with free whitespace, this target writes on
