"""Lengths at which a forward changes, from the attributes of modules and configurations."""

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from uag.hf import positions
from uag.hf.positions import Cut, cuts


def model_of(model_type: str = "llama", original: Any = None, rope: Any = None, **attributes: Any) -> nn.Module:
    model, part = nn.Module(), nn.Identity()
    vars(part).update(attributes, config=SimpleNamespace(rope_parameters=rope))
    vars(model)["config"] = SimpleNamespace(model_type=model_type, original_max_position_embeddings=original)
    model.part = part
    return model


@pytest.fixture(autouse=True)
def of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "of_others", lambda model: "")


LONG = {"original_max_position_embeddings": 16}
CASES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "default": ({"rope_type": "default", "rope": LONG}, []),
    "dynamic": ({"rope_type": "dynamic", "original_max_seq_len": 32}, [31]),
    "dynamic of others": ({"rope_type": "dynamic"}, [0]),
    "longrope": ({"rope_type": "longrope", "rope": LONG}, [16]),
    "yarn with two scales": ({"rope_type": "yarn", "rope": LONG | {"long_mscale": 1.4}}, [16]),
    "one kind of layer": ({"rope_type": {"a": "longrope", "b": "default"}, "rope": {"a": LONG, "b": LONG}}, [16]),
    "original length of others": ({"original": 12}, []),
}


@pytest.mark.parametrize("name", CASES)
def test_cuts_are_at_the_lengths_that_the_attributes_name(name: str) -> None:
    attributes, lengths = CASES[name]
    assert [cut.at for cut in cuts(model_of(**attributes))] == lengths


def test_cuts_are_sorted_by_length() -> None:
    found = cuts(model_of("phi3", 12, rope_type="dynamic", original_max_seq_len=9, index_topk=24))
    assert [cut.at for cut in found] == [8, 12, 24]
    assert found[1] == Cut(12, "drops its cache beyond length 12")
