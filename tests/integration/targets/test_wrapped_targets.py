"""Targets inside other modules: the output equals the unassisted target's for every entry point."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.calls import GREEDY, assistant_of, batch, compare, pair
from uag.stats import Stats

peft = pytest.importorskip("peft", reason="pip install peft")
pytest.importorskip("accelerate", reason="pip install accelerate")

from tests.support import wrappers  # noqa: E402 - it needs both
from tests.support.wrappers import BOTH, CALLS, TRANSPARENT_NAMES  # noqa: E402

DOORS = ("generate", "install", "custom_generate")


pytestmark = pytest.mark.usefixtures("few_compilations")


def check(target: Any, rows: int, options: dict[str, Any], door: str = "generate", *, is_drafted: bool = True) -> Stats:
    stats = compare(target, batch(pair()[1], rows) | options, assistant_of(), door=door)
    assert (stats.num_candidate_tokens > 0) is is_drafted
    return stats


def check_all(target: Any, calls: list[tuple[int, dict[str, Any]]]) -> None:
    doors = DOORS[:: 1 if calls is CALLS else -1]
    stats = [check(target, rows, options, door) for (rows, options), door in zip(calls, doors, strict=False)]
    assert 0 < sum(s.num_accepted_tokens for s in stats) < sum(s.num_candidate_tokens for s in stats)


@BOTH
@pytest.mark.parametrize("name", [*TRANSPARENT_NAMES, *wrappers.ADAPTER_NAMES])
def test_wrapped_targets(name: str, calls: Any) -> None:
    check_all((wrappers.TRANSPARENT | wrappers.ADAPTERS)[name](pair()[0]), calls)


@BOTH
@pytest.mark.parametrize("wrap", [wrappers.on_disk, wrappers.spread_out])
def test_weights_on_the_disk(wrap: Any, calls: Any, tmp_path: Path) -> None:
    check_all(wrap(pair()[0], tmp_path), calls)


@BOTH
def test_an_adapter_for_each_row_falls_back_to_plain_decoding(calls: Any) -> None:
    """PEFT's hooks on each layer select adapters by batch row."""
    target = wrappers.lora(pair()[0], 0.2, ("other",))
    for rows, options in calls:
        names = ["default", "other", "__base__"][:rows]
        stats = check(target, rows, options | {"adapter_names": names}, is_drafted=False)
        assert "a forward hook" in stats.fallbacks[0]


@BOTH
@pytest.mark.parametrize(("kind", "door"), zip(wrappers.VIRTUAL, DOORS, strict=True))
def test_virtual_tokens_fall_back_to_plain_decoding(kind: str, door: str, calls: Any) -> None:
    target = wrappers.virtual(pair()[0], kind)
    for rows, options in calls:
        stats = check(target, rows, options, door, is_drafted=False)
        assert "prepare_inputs_for_generation of LlamaForCausalLM" in stats.fallbacks[0]


def test_an_adapter_that_counts_from_the_end_falls_back_to_plain_decoding() -> None:
    """aLoRA counts its start from the end of a pass, so with candidates it would start at other tokens."""
    tokens = batch(pair()[1])["input_ids"][0, -2:].tolist()
    target = wrappers.lora(pair()[0], 0.3, alora_invocation_tokens=tokens)
    for rows, options in CALLS:
        stats = check(target, rows, options, is_drafted=False)
        assert "a forward hook" in stats.fallbacks[0]
    with target.disable_adapter():
        assert not check(target, 1, GREEDY).fallbacks


def test_switching_adapters_of_a_target_between_calls() -> None:
    target = wrappers.lora(pair()[0], 0.3, ("other",))
    assistant, given, written = assistant_of(), batch(pair()[1], 3) | GREEDY, []
    for name in ("default", "other", "default"):
        target.set_adapter(name)
        assert compare(target, given, assistant).num_candidate_tokens > 0
        written.append(target.generate(**given).tolist())
    assert written[0] == written[2] != written[1]
