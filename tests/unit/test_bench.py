"""The benchmark: prompts, equality, counting, refusals, summaries. Stub models; no weights."""

import gzip
import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from uag.bench import arms as arms_module
from uag.bench import measuring
from uag.bench.arms import Arm, build_arms, eos_ids, run_arm
from uag.bench.environment import describe_environment
from uag.bench.equality import MARGIN, Difference, first_difference, replay, sampling_noise
from uag.bench.measuring import BenchOptions, Record, measure, num_groups
from uag.bench.passes import PassCounter
from uag.bench.prompts import Prompt, heldout_prompts, read_prompts, spread
from uag.bench.report import save_plot, summarize, summary_table
from uag.errors import OptionError
from uag.loading import Pair

EOS = 1


class StubTokenizer:
    """A token per character, the id its code point."""

    pad_token_id = 0
    eos_token_id = EOS

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) for character in text]}

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))

    def get_vocab(self) -> dict[str, int]:
        return {}


class StubTarget(torch.nn.Module):
    """Writes a fixed continuation, with one forward pass for each token."""

    device = torch.device("cpu")
    dtype = torch.float32
    config = SimpleNamespace(is_encoder_decoder=False)
    generation_config = SimpleNamespace(eos_token_id=EOS)

    def __init__(self, continuation: str = "abcd") -> None:
        super().__init__()
        self.continuation = [ord(character) for character in continuation]

    def get_output_embeddings(self) -> torch.nn.Linear:
        return torch.nn.Linear(1, 200)

    def forward(self, input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        logits = torch.zeros(*input_ids.shape, 200)
        logits[..., self.continuation[0]] = 1.0
        return SimpleNamespace(logits=logits, past_key_values=None)

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> torch.Tensor:
        for step in range(len(self.continuation)):
            self(input_ids=input_ids[:, -1:] if step else input_ids)
        rows = input_ids.shape[0]
        return torch.cat([input_ids, torch.tensor([self.continuation] * rows)], dim=1)


def stub_pair(target: Any = None) -> Pair:
    tokenizer = StubTokenizer()
    return Pair(target or StubTarget(), tokenizer, "stub target", None, tokenizer, "stub draft")


def use_arms(monkeypatch: pytest.MonkeyPatch, *arms: Arm) -> None:
    monkeypatch.setattr(measuring, "build_arms", lambda *_, **__: list(arms))


def plain_arm(pair: Pair) -> Arm:
    return Arm("plain", pair.target.generate)


def writer(pair: Pair, text: str, name: str = "uag", seconds: float = 0.0) -> Arm:
    """Return an arm that writes `text` whatever the prompt, in one pass."""

    def generate(input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        pair.target(input_ids=torch.cat([input_ids, input_ids[:, :1]], dim=1))
        time.sleep(seconds)
        return torch.cat([input_ids, torch.tensor([[ord(character) for character in text]])], dim=1)

    return Arm(name, generate)


# Prompts ------------------------------------------------------------------------------------------------------------


def write_lines(path: Path, *entries: Any) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return path


def test_spec_bench_file_gives_the_first_turn(tmp_path: Path) -> None:
    entry = {"question_id": 81, "category": "writing", "turns": ["Compose a post.", "Rewrite it."]}
    assert read_prompts(write_lines(tmp_path / "spec.jsonl", entry)) == [Prompt("81", "Compose a post.", "writing")]


def test_human_eval_file_is_read_packed_and_unpacked(tmp_path: Path) -> None:
    entry = {"task_id": "HumanEval/0", "prompt": "def f():\n", "test": "..."}
    plain = write_lines(tmp_path / "he.jsonl", entry)
    packed = tmp_path / "he.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_prompts(plain) == read_prompts(packed) == [Prompt("HumanEval/0", "def f():\n")]


def test_text_file_holds_a_prompt_on_each_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes("Été\r\n\n  two \n".encode())
    assert read_prompts(path) == [Prompt("1", "Été"), Prompt("3", "  two ")]


def test_bundled_prompts_are_named_by_module_and_line() -> None:
    prompts = heldout_prompts()
    assert len(prompts) >= 50
    assert all(".py:" in prompt.prompt_id for prompt in prompts)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"question": "?"}\n', r"line 1 is no prompt: it needs 'turns'"),
        ('{"prompt": "a"}\n\n[1]\n', r"line 3 is no prompt"),
        ("{prompt\n", r"line 1 is not JSON"),
        ("\n", r"holds no prompt"),
        ('{"turns": []}\n', r"line 1 is no prompt"),
    ],
)
def test_a_bad_prompt_file_is_refused_by_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(OptionError, match=message):
        read_prompts(path)


def test_spread_takes_all_categories_in_order() -> None:
    prompts = [Prompt(str(index), "x", category=str(index // 10)) for index in range(40)]
    chosen = spread(prompts, 8)
    assert [prompt.category for prompt in chosen] == ["0", "0", "1", "1", "2", "2", "3", "3"]
    assert spread(prompts, None) == spread(prompts, 99) == prompts


# Equality -----------------------------------------------------------------------------------------------------------


def test_first_difference_is_the_earliest_step_of_any_row() -> None:
    plain = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    arm = torch.tensor([[1, 2, 3, 9], [5, 0, 7, 8]])
    assert first_difference(plain, plain.clone()) is None
    assert first_difference(plain, arm) == Difference(row=1, step=1, plain_id=6, arm_id=0)


def test_first_difference_of_an_output_that_goes_on() -> None:
    difference = first_difference(torch.tensor([[1]]), torch.tensor([[1, 65]]))
    assert difference == Difference(row=0, step=1, plain_id=None, arm_id=65)
    assert difference.describe(StubTokenizer()) == "row 0, output token 1: 'A' where plain decoding has the end"


class WidthDependentTarget(StubTarget):
    """Selects id 2 in a one-token pass and id 3 in a block, by a margin that the test sets."""

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        logits = torch.zeros(*input_ids.shape, 5)
        logits[..., 2] = 1.0
        logits[..., 3] = 1.0 + (self.margin if input_ids.shape[1] > 1 else -self.margin)
        return SimpleNamespace(logits=logits, past_key_values=None)


def replayed(target: StubTarget, arm_id: int) -> Difference:
    inputs = {"input_ids": torch.tensor([[4, 4]]), "attention_mask": torch.ones(1, 2, dtype=torch.long)}
    difference = Difference(row=0, step=2, plain_id=2, arm_id=arm_id)
    return replay(target, inputs, torch.tensor([[2, 2, 2, 2]]), difference, noise=None)


def test_replay_calls_a_close_difference_that_both_forms_show_rounding() -> None:
    found = replayed(WidthDependentTarget(MARGIN / 10), arm_id=3)
    assert found.is_rounding
    assert found.margin == pytest.approx(MARGIN / 10, rel=0.1)


def test_replay_does_not_excuse_a_wide_margin() -> None:
    assert not replayed(WidthDependentTarget(MARGIN * 10), arm_id=3).is_rounding


def test_replay_does_not_excuse_a_token_that_no_block_selects() -> None:
    assert not replayed(WidthDependentTarget(MARGIN / 10), arm_id=4).is_rounding
    assert not replayed(WidthDependentTarget(-MARGIN / 10), arm_id=3).is_rounding  # not plain's token alone


def test_sampling_noise_is_what_multinomial_adds() -> None:
    num_rows, vocabulary_size, num_steps = 3, 50, 6
    logits = torch.randn(num_steps, num_rows, vocabulary_size, generator=torch.Generator().manual_seed(7))
    torch.manual_seed(11)
    drawn = [torch.multinomial(step_logits.softmax(dim=-1), 1).squeeze(1) for step_logits in logits]
    state = torch.get_rng_state()
    for step in range(num_steps):
        for row in range(num_rows):
            noise = sampling_noise(11, step, num_rows, row, vocabulary_size, torch.device("cpu"))
            assert int((logits[step, row] + noise).argmax()) == int(drawn[step][row])
    assert torch.equal(torch.get_rng_state(), state)


# Arms ---------------------------------------------------------------------------------------------------------------


def test_counter_sees_passes_and_candidates() -> None:
    target = StubTarget()
    with PassCounter(target) as counter:
        for width in (7 + 2, 1 + 3, 1):  # a prompt of 7 with 2 candidates, then 3, then none
            target(input_ids=torch.zeros(1, width, dtype=torch.long))
    target(input_ids=torch.zeros(1, 1, dtype=torch.long))  # not counted any more
    assert counter.widths == [9, 4, 1]
    assert counter.num_candidate_tokens(7) == 5


def test_run_counts_tokens_up_to_eos_and_what_was_accepted() -> None:
    pair = stub_pair()
    inputs = {"input_ids": torch.tensor([[9, 9]]), "attention_mask": torch.ones(1, 2, dtype=torch.long)}
    run = run_arm(writer(pair, "ab\x01\x00"), pair, inputs, {}, seed=0)
    assert (run.num_output_tokens, run.num_target_forwards, run.num_accepted_tokens) == (3, 1, 2)
    assert run.output_ids.tolist() == [[97, 98, EOS, 0]]
    plain = run_arm(plain_arm(pair), pair, inputs, {}, seed=0)
    assert (plain.num_target_forwards, plain.num_candidate_tokens, plain.num_accepted_tokens) == (4, 0, 0)


def test_every_run_starts_from_its_seed() -> None:
    pair = stub_pair()
    drawn: list[float] = []

    def generate(input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        drawn.append(torch.rand(1).item())
        return torch.cat([input_ids, input_ids], dim=1)

    arm = Arm("plain", generate)
    inputs = {"input_ids": torch.tensor([[9]]), "attention_mask": torch.ones(1, 1, dtype=torch.long)}
    for seed in (3, 4, 3):
        run_arm(arm, pair, inputs, {}, seed=seed)
    assert drawn[0] == drawn[2] != drawn[1]


def test_unknown_arm_is_refused_with_the_list() -> None:
    with pytest.raises(OptionError, match=r"unknown arm 'fast': the arms are plain, transformers, prompt-lookup"):
        build_arms(stub_pair(), ["plain", "fast"])
    with pytest.raises(OptionError, match="unknown arm 'fast'"):
        BenchOptions(arm_names=("fast",))


@pytest.mark.parametrize(("eos", "expected"), [(None, []), (2, [2]), ([2, 3], [2, 3])])
def test_eos_ids_of_a_generation_config(eos: Any, expected: list[int]) -> None:
    assert eos_ids(SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=eos))) == expected


def test_transformers_arm_never_touches_the_callers_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    target = StubTarget()
    monkeypatch.setattr(target, "generate", lambda **kwargs: seen.append(kwargs["assistant_model"]))
    draft = SimpleNamespace(name="draft")
    pair = Pair(target, StubTokenizer(), "t", draft, StubTokenizer(), "d")
    (arm,) = build_arms(pair, ["transformers"])
    for do_sample in (False, True, False):
        arm.generate(do_sample=do_sample)
    assert draft not in [id(model) for model in seen]
    assert all(model is not draft for model in seen)
    assert seen[0] is seen[2] is not seen[1]  # sampling spoils a draft for greedy calls


# Measuring ----------------------------------------------------------------------------------------------------------


def records_of(monkeypatch: pytest.MonkeyPatch, pair: Pair, *arms: Arm, **options: Any) -> dict[str, Record]:
    use_arms(monkeypatch, plain_arm(pair), *arms)
    prompts = [Prompt("p1", "xyz", "code")]
    return {record.arm: record for record in measure(pair, prompts, BenchOptions(num_trials=2, **options))}


def test_equal_arms_are_reported_with_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = stub_pair()
    records = records_of(monkeypatch, pair, writer(pair, "abcd", seconds=0.002))
    record = records["uag"]
    assert record.is_reported
    assert len(record.trial_seconds) == 2
    assert record.seconds is not None
    assert record.seconds >= 0.002
    assert (record.num_output_tokens, record.num_target_forwards, record.num_accepted_tokens) == (4, 1, 3)
    assert record.rounding is None
    assert records["plain"].num_candidate_tokens == 0


def test_an_arm_that_differs_is_not_reported_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = stub_pair()
    record = records_of(monkeypatch, pair, writer(pair, "abXd"))["uag"]
    assert record.refusal == "differs from plain decoding in row 0, output token 2: 'X' where plain decoding has 'c'"
    assert record.seconds is None
    assert record.trial_seconds == ()


def test_an_arm_that_differs_later_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = stub_pair()
    texts = iter(["abcd", "abcd", "abcX"])
    arm = Arm("uag", lambda **kwargs: writer(pair, next(texts)).generate(**kwargs))
    assert records_of(monkeypatch, pair, arm)["uag"].refusal is not None


def test_rounding_is_counted_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = stub_pair()
    monkeypatch.setattr(measuring, "replay", lambda *arguments: Difference(0, 2, ord("c"), ord("X"), is_rounding=True))
    records = records_of(monkeypatch, pair, writer(pair, "abXd"))
    assert records["uag"].rounding == "row 0, output token 2: 'X' where plain decoding has 'c'"
    table = shown(summary_table(summarize(list(records.values()))))
    assert "uag: 1 outputs differ by the target's own rounding, each replayed" in table


def test_what_transformers_refuses_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = stub_pair()

    def refuse(**_: Any) -> torch.Tensor:
        raise ValueError("assisted generate is only supported\nfor batch_size = 1")

    record = records_of(monkeypatch, pair, Arm("transformers", refuse))["transformers"]
    assert record.refusal == "ValueError: assisted generate is only supported for batch_size = 1"
    with pytest.raises(ValueError, match="only supported"):  # an error of uag's own is never hidden
        records_of(monkeypatch, pair, Arm("uag", refuse))


def test_arms_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = stub_pair()
    calls: list[str] = []

    def logged(name: str) -> Arm:
        def generate(**kwargs: Any) -> Any:
            calls.append(name)
            return writer(pair, "abcd").generate(**kwargs)

        return Arm(name, generate)

    use_arms(monkeypatch, logged("plain"), logged("uag"))
    list(measure(pair, [Prompt("p", "x")], BenchOptions(num_trials=3)))
    assert calls == ["plain", "uag"] * 4  # one untimed turn first


def test_groups_cover_batches_and_temperatures(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = stub_pair()
    use_arms(monkeypatch, plain_arm(pair))
    options = BenchOptions(batch_sizes=(1, 2), temperatures=(0.0, 1.0), num_trials=1)
    prompts = [Prompt(str(index), "x" * (index + 1)) for index in range(3)]
    num_done = 0

    def count() -> None:
        nonlocal num_done
        num_done += 1

    records = list(measure(pair, prompts, options, on_group=count))
    assert num_done == num_groups(3, options) == 10
    assert [record.prompt_ids for record in records if record.batch_size == 2] == [("0", "1"), ("2",)] * 2
    assert [len(summarize([record])) for record in records[:1]] == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_trials": 0}, "must be 1 or more"),
        ({"batch_sizes": (1, 0)}, "must be 1 or more"),
        ({"temperatures": (-1.0,)}, r"temperatures are \(-1.0,\)"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        BenchOptions(**options)


def test_a_record_is_one_line_of_json_with_its_circumstances(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = stub_pair()
    record = records_of(monkeypatch, pair, writer(pair, "abcd"))["uag"]
    entry = json.loads(json.dumps(record.to_dict(pair)))
    assert entry["dtype"] == "float32"
    assert entry["prompt_ids"] == ["p1"]
    assert entry["categories"] == ["code"]
    assert set(entry["versions"]) >= {"uag", "python", "torch", "transformers", "tokenizers"}
    assert set(entry["hardware"]) >= {"processor", "num_cores", "num_threads", "accelerator"}
    assert {"commit", "seconds", "num_rounds", "num_candidate_tokens", "num_accepted_tokens"} <= set(entry)


def test_environment_names_no_commit_outside_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_git(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr("subprocess.run", no_git)
    describe_environment.cache_clear()
    try:
        assert describe_environment()["commit"] is None
    finally:
        describe_environment.cache_clear()


# Reports ------------------------------------------------------------------------------------------------------------


def record(arm: str, seconds: float | None, prompt_id: str = "p", **values: Any) -> Record:
    counts = {"num_output_tokens": 10, "num_target_forwards": 5, **values}
    return Record(arm, (prompt_id,), (None,), 1, 0.0, 3, seconds=seconds, **counts)


def shown(table: Any, width: int = 80) -> str:
    console = Console(width=width, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_summary_is_over_all_prompts_together() -> None:
    records = [
        record("plain", 1.0, "a"),
        record("uag", 0.5, "a", num_candidate_tokens=8, num_accepted_tokens=6),
        record("plain", 3.0, "b"),
        record("uag", 0.5, "b", num_candidate_tokens=8, num_accepted_tokens=2),
    ]
    plain, ours = summarize(records)
    assert plain.speed_up == 1.0
    assert plain.acceptance_rate is None
    assert ours.tokens_per_s == 20.0
    assert ours.speed_up == pytest.approx(4.0)
    assert ours.speed_up_quartiles == pytest.approx((3.0, 5.0))
    assert ours.acceptance_rate == 0.5
    assert ours.tokens_per_target_pass == 2.0


def test_tokens_per_pass_are_those_of_one_row() -> None:
    batch = Record(
        "plain", ("a", "b"), (None, None), 2, 0.0, 6, seconds=1.0, num_output_tokens=10, num_target_forwards=5
    )
    assert summarize([batch])[0].tokens_per_target_pass == 1.0


def test_summary_refuses_an_arm_that_differed_once() -> None:
    records = [
        record("plain", 1.0),
        record("uag", 0.5),
        record("plain", 1.0, "q"),
        record("uag", None, "q", refusal="no"),
    ]
    ours = summarize(records)[1]
    assert ours.speed_up is None
    assert ours.refusal == "on 1 of 2, first q: no"
    assert "refused" in shown(summary_table(summarize(records)))


def test_table_fits_eighty_columns_and_escapes_markup() -> None:
    records = [record("plain", 1.0), record("prompt-lookup", None, refusal="wrote '[/b]'"), record("uag", 0.5)]
    lines = shown(summary_table(summarize(records))).splitlines()
    assert any("tokens/s" in line and "accepted" in line for line in lines)
    assert any("prompt-lookup is not reported: wrote '[/b]'" in line for line in lines)
    both = shown(summary_table(summarize([*records, replace(records[0], temperature=1.0)])))
    assert "batch 1, T=0" in both
    assert "batch 1, T=1" in both
    assert "…" not in both


def test_plot_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    records = [record("plain", 1.0), record("uag", 0.5, num_candidate_tokens=4, num_accepted_tokens=2)]
    save_plot(records, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(OptionError, match=r"pip install 'uag\[bench\]'"):
        save_plot([record("plain", 1.0)], tmp_path / "plot.png")


def test_arm_names_are_all_buildable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uag.bench.arms.Assistant", lambda *_, **__: SimpleNamespace(stats=None))
    assert [arm.name for arm in build_arms(stub_pair(), arms_module.ARM_NAMES)] == list(arms_module.ARM_NAMES)
