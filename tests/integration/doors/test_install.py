"""`uag.install()`: equal results, other calls unchanged, and everything restored by `uninstall`."""

import copy
import gc
import inspect
import json
import shutil
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, GenerationMixin

import uag
from tests.support.calls import GREEDY, assistant_of, batch, draft_options, pair
from tests.support.models import tiny_draft, tiny_target
from uag import installing, loading
from uag.errors import LoadingError, OptionError
from uag.loading import load_draft, load_tokenizer, open_draft


def test_arguments_by_position(installed: None) -> None:
    """As in transformers' own signature: inputs, generation_config, logits_processor, ..., assistant_model."""
    target, tokenizer = pair("gpt2")[:2]
    inputs, options = batch(tokenizer, 3), draft_options("gpt2")
    expected = target.generate(**inputs, **GREEDY).tolist()
    by_position = (inputs.pop("input_ids"), GenerationConfig(**GREEDY), None, None, None, None)
    output = target.generate(*by_position, options.pop("assistant_model"), **options, **inputs)
    assert output.tolist() == expected
    assert uag.last_stats(target).strategy == "cross-tokenizer"


@pytest.mark.parametrize("where", ["keyword", "config"])
@pytest.mark.parametrize("door", ["install", "generate", "custom_generate"])
def test_num_assistant_tokens_is_the_number_of_this_call(installed: None, door: str, where: str) -> None:
    if (door, where) == ("custom_generate", "config"):
        pytest.skip("transformers puts its default of 20 into the config")
    target, tokenizer = pair("gpt2")[:2]
    assistant = assistant_of("gpt2", length=None)

    def run(size: int | None) -> uag.Stats:
        call: dict[str, Any] = GREEDY | ({} if size is None else {"num_assistant_tokens": size})
        if where == "config":
            call = {"generation_config": GenerationConfig(**call)}
        if door == "install":
            call |= draft_options("gpt2")
        elif door == "custom_generate":
            call["custom_generate"] = assistant
        generate = partial(assistant.generate, target, None) if door == "generate" else target.generate
        output = generate(**batch(tokenizer), **call)
        assert output.tolist() == expected.tolist()
        return uag.last_stats(target)

    expected = target.generate(**batch(tokenizer), **GREEDY)
    for size in (3, 2):
        stats = run(size)
        assert stats.num_candidate_tokens > 0
        assert (size - 1) * stats.num_rounds < stats.num_candidate_tokens + size <= size * (stats.num_rounds + 1)
    assert run(0).num_candidate_tokens == 0
    assert run(None).fallbacks == []
    for wrong in (-1, "5", 2.5, True):
        with pytest.raises(OptionError, match=rf"num_assistant_tokens={wrong!r} must be a whole number of 0 or more"):
            run(wrong)  # type: ignore[arg-type]


def test_num_assistant_tokens_with_another_schedule_is_left_to_the_lookahead(installed: None) -> None:
    target, tokenizer = pair("gpt2")[:2]
    assistant = assistant_of("gpt2", length=None)
    options: dict[str, Any] = {"num_assistant_tokens": 0, "num_assistant_tokens_schedule": "heuristic"}
    assistant.generate(target, **batch(tokenizer), **GREEDY, **options)
    assert assistant.lookahead.fixed is None
    assert assistant.stats.num_rounds


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []

    def load(name: str, **options: Any) -> Any:
        names.append(name)
        return load_draft(name, **options)

    monkeypatch.setattr("uag.loading.load_draft", load)
    return names


def test_a_draft_by_its_name(installed: None, tmp_path: Path, loads: list[str]) -> None:
    target, tokenizer, draft, draft_tokenizer = pair("gpt2")
    expected = target.generate(**batch(tokenizer), **GREEDY).tolist()
    draft.save_pretrained(tmp_path / "draft")
    draft_tokenizer.save_pretrained(tmp_path / "draft")
    for name in (tmp_path / "draft", str(tmp_path / "draft")):
        options = {"assistant_model": name, "tokenizer": tokenizer, "num_assistant_tokens": 3}
        assert target.generate(**batch(tokenizer), **GREEDY, **options).tolist() == expected
        stats = uag.last_stats(target)
        assert stats.strategy.startswith("cross-tokenizer")
        assert stats.num_accepted_tokens > 0
    assert len(loads) == 1
    # A tokenizer that was given is used, and the type is the target's.
    rough = copy.deepcopy(target).to(torch.bfloat16)
    options["assistant_tokenizer"] = draft_tokenizer
    rough.generate(**batch(tokenizer), **GREEDY, **options)
    kept = open_draft(str(tmp_path / "draft"), None, rough, is_kept=True)[0]
    assert kept.dtype == torch.bfloat16
    assert len(loads) == 2
    freed = weakref.ref(kept)
    del kept
    uag.uninstall()
    gc.collect()
    assert freed() is None
    assistant = uag.Assistant(str(tmp_path / "draft"), tokenizer=tokenizer, num_candidate_tokens=3)
    assert assistant.generate(target, **batch(tokenizer), **GREEDY).tolist() == expected
    assert assistant.stats.num_accepted_tokens > 0


def test_a_draft_by_name_in_threads_is_loaded_once(installed: None, tmp_path: Path, loads: list[str]) -> None:
    target, tokenizer, draft, draft_tokenizer = pair("gpt2")
    expected = target.generate(**batch(tokenizer), **GREEDY).tolist()
    draft.save_pretrained(tmp_path)
    draft_tokenizer.save_pretrained(tmp_path)

    def run(_: int) -> Any:
        options = GREEDY | {"assistant_model": str(tmp_path), "tokenizer": tokenizer}
        return target.generate(**batch(tokenizer), **options).tolist()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == [expected] * 4
    assert loads == [str(tmp_path)]


@pytest.mark.parametrize("is_kept", [False, True])
def test_draft_by_name_with_new_weights_is_loaded_again(is_kept: bool, tmp_path: Path, loads: list[str]) -> None:
    """A draft that was trained further and saved under the same name; an assistant keeps none of its own."""
    target = tiny_target("llama")[0]

    def opened() -> Any:
        name = str(tmp_path)
        return open_draft(name, None, target, is_kept=True)[0] if is_kept else uag.Assistant(name).draft

    target.save_pretrained(tmp_path)
    before = opened()
    assert (opened() is before) is is_kept
    changed = copy.deepcopy(before)
    with torch.no_grad():
        changed.lm_head.weight.mul_(2)
    changed.save_pretrained(tmp_path)
    assert torch.equal(opened().lm_head.weight, 2 * before.lm_head.weight)
    assert len(loads) == (2 if is_kept else 3)


def test_a_second_install_keeps_trust_changes(installed: None) -> None:
    target, tokenizer = pair("gpt2")[:2]
    options = draft_options("gpt2")
    with target.lm_head.register_forward_hook(lambda *_: None):
        uag.install(trust_changes=True)
        uag.install()
        target.generate(**batch(tokenizer), **GREEDY, **options)
        assert not any("other code" in reason for reason in uag.last_stats(target).fallbacks)
        uag.install(trust_changes=False)
        target.generate(**batch(tokenizer), **GREEDY, **options)
        assert any("other code" in reason for reason in uag.last_stats(target).fallbacks)
    with pytest.raises(OptionError, match="trust_changes='yes' must be True or False"):
        uag.install(trust_changes="yes")


@pytest.mark.parametrize("name", ["./no-such-folder", "no-such/model-on-the-hub"])
def test_a_name_that_holds_no_draft(installed: None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    target, tokenizer, _, _ = pair("gpt2")
    with pytest.raises(LoadingError, match=rf"The draft '{name}' cannot be loaded: .*Pass the name of a hub model"):
        target.generate(**batch(tokenizer), **GREEDY, assistant_model=name, tokenizer=tokenizer)
    with pytest.raises(LoadingError, match=rf"The draft '{name}' cannot be loaded"):
        uag.Assistant(name, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1"),
        ("model.safetensors", b""),
        ("config.json", None),  # with other sizes
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"version https://git-lfs.github.com/spec/v1"),
    ],
)
def test_files_that_are_incomplete(file: str, content: bytes | None, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(loading.demo_folder("draft"), tmp_path / "draft"))
    if content is None:
        config = json.loads((folder / file).read_text())
        content = json.dumps(config | {"intermediate_size": 2 * config["intermediate_size"]}).encode()
    (folder / file).write_bytes(content)
    load = load_tokenizer if file == "tokenizer.json" else loading.load_model
    with pytest.raises(LoadingError, match=r"cannot be loaded: .* Its files may be incomplete, or of a later transf"):
        load(str(folder))


def test_an_assistant_is_no_draft(installed: None) -> None:
    target, tokenizer = pair("gpt2")[:2]
    with pytest.raises(OptionError, match=r"assistant_model is a uag\.Assistant\. Pass it as custom_generate"):
        target.generate(**batch(tokenizer), **GREEDY, assistant_model=uag.Assistant(None), tokenizer=tokenizer)


@pytest.mark.parametrize(
    "name", ["~nosuch/model", "x" * 300, f"x/{'y' * 300}", "~nosuch/draft.gguf", "x" * 300 + ".gguf"]
)
@pytest.mark.parametrize("is_home_known", [True, False])
def test_a_name_that_cannot_be_a_path(name: str, is_home_known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    if not is_home_known:
        monkeypatch.delenv("HOME", raising=False)
        monkeypatch.setattr("os.path.expanduser", lambda path: path)
        name = name.replace("~nosuch", "~")
    kept = (lambda name: open_draft(name, None, is_kept=True)[0].path,)  # the path of a GGUF file, at its first use
    for load in (uag.Assistant, uag.load_pair, load_tokenizer, *kept):
        with pytest.raises(LoadingError, match=r"cannot be loaded: |There is no GGUF file "):
            load(name)


def test_install_is_idempotent_and_uninstall_restores_exactly() -> None:
    original = GenerationMixin.generate
    uag.uninstall()
    assert GenerationMixin.generate is original
    uag.install()
    wrapped = GenerationMixin.generate
    uag.install()
    assert GenerationMixin.generate is wrapped is not original
    uag.uninstall()
    assert GenerationMixin.generate is original
    uag.uninstall()
    assert GenerationMixin.generate is original


def test_the_wrapper_looks_like_the_original(installed: None) -> None:
    wrapped = GenerationMixin.generate
    original = wrapped.__wrapped__
    assert inspect.signature(wrapped) == inspect.signature(original)
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(wrapped, name) == getattr(original, name)
    assert "GenerationMixin" in str(wrapped)  # auto classes look for it
    target, _, _, _ = pair("gpt2")
    assert target.can_generate()


NOT_OURS: list[dict[str, Any]] = [
    *({}, {"num_beams": 2}, {"generation_config": GenerationConfig(num_beams=3)}, {"prompt_lookup_num_tokens": 3}),
    *({"penalty_alpha": 0.6, "top_k": 4}, {"assistant_early_exit": 1}, {"token_healing": True}, {"use_mtp": True}),
    *({"is_assistant": True}, {"speculation_type": "dflash"}, {"assistant_ensemble_weight": 0.5}),
    *({"cache_implementation": "paged"}, {"custom_generate": "somewhere/else"}),
]


@pytest.mark.parametrize("options", NOT_OURS)
@pytest.mark.parametrize("with_draft", [False, True])
def test_other_calls_are_untouched(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], with_draft: bool) -> None:
    target, _, draft, _ = pair("gpt2")
    if with_draft and not options:
        pytest.skip("this one is ours")
    calls = []

    def generate(self: Any, *args: Any, **kwargs: Any) -> str:
        calls.append((self, args, kwargs))
        return "untouched"

    monkeypatch.setattr(GenerationMixin, "generate", generate)
    uag.install()
    try:
        given = {"inputs": torch.ones((1, 2), dtype=torch.long), **options}
        if with_draft:
            given["assistant_model"] = draft
        assert target.generate(**given) == "untouched"
    finally:
        uag.uninstall()
    (model, args, kwargs) = calls[0]
    assert model is target
    assert args == ()
    assert kwargs.keys() == given.keys()
    assert all(kwargs[name] is given[name] for name in given)


def test_a_prediction_for_the_callers_own_decoding(installed: None) -> None:
    def own(model: Any, input_ids: torch.Tensor, prediction: Any = None, **_: Any) -> Any:
        return prediction

    target, tokenizer = pair("gpt2")[:2]
    assert target.generate(**batch(tokenizer), **GREEDY, custom_generate=own, prediction="the text") == "the text"


@pytest.mark.parametrize("is_attached", [False, True])
def test_a_prediction_of_a_call_that_is_not_assisted_is_left_out_with_a_warning(
    installed: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_attached: bool
) -> None:
    monkeypatch.setattr(installing, "_logged", set())
    target, tokenizer, *_ = pair("gpt2")
    beams = {**batch(tokenizer), "num_beams": 2, "max_new_tokens": 4}
    expected = target.generate(**beams)
    if is_attached:
        uag.attach(target, None, tokenizer=tokenizer)
    for _ in range(2):
        assert torch.equal(target.generate(**beams, prediction="the text"), expected)
    uag.detach(target)
    assert [record.getMessage() for record in caplog.records if record.name == "uag"] == [
        "A call of GPT2LMHeadModel is not assisted by uag: num_beams=2"
    ]


@pytest.mark.usefixtures("detached")
@pytest.mark.parametrize("is_attached", [False, True])
def test_no_model_is_kept_alive(installed: None, is_attached: bool) -> None:
    (target, tokenizer), (draft, draft_tokenizer) = tiny_target("gpt2"), tiny_draft("gpt2")
    own = {} if is_attached else {"assistant_model": draft, "tokenizer": tokenizer}
    own |= {} if is_attached else {"assistant_tokenizer": draft_tokenizer}
    if is_attached:
        uag.attach(target, draft, tokenizer=tokenizer, draft_tokenizer=draft_tokenizer)
    target.generate(**batch(tokenizer), max_new_tokens=4, do_sample=False, **own)
    assert uag.last_stats(target).num_output_tokens == 4
    alive = {"target": weakref.ref(target), "draft": weakref.ref(draft)}
    own.clear()
    for name in ("target", "draft") if is_attached else ("draft", "target"):
        if name == "target":
            del target
        else:
            del draft
        gc.collect()
        assert alive[name]() is None
