"""Reading `additional_config`: other projects' settings are ignored, invalid values are refused with an explanation."""

from typing import Any

import pytest

from uag.errors import OptionError
from uag.vllm import Settings


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "finds no draft: additional_config is None. Pass additional_config"),
        ({}, "finds no draft"),
        ({"uag": {}}, "finds no draft"),
        ({"uag": {"draft": ""}}, "finds no draft"),
        ({"uag": "a-draft"}, "finds no draft"),
        ({"uag": {"draft": 3}}, r"\['draft'\] is 3, it must be a string"),
        ({"uag": {"draft": "d", "drafts": 1}}, "unknown settings: 'drafts'. Known are draft, draft_tokenizer"),
        ({"uag": {"draft": "d", "dtype": "int3"}}, "dtype is 'int3', it must be one of"),
        ({"uag": {"draft": "d", "min_confidence": 1.5}}, r"\['min_confidence'\] is 1.5, it must be a number from 0"),
        ({"uag": {"draft": "d", "min_confidence": float("nan")}}, "is nan, it must be a number from 0 to 1"),
        ({"uag": {"draft": "d", "max_cached_tokens": 0}}, "is 0, it must be an integer of at least 1"),
        ({"uag": {"draft": "d", "max_cached_tokens": 1.0}}, "is 1.0, it must be an integer of at least 1"),
        ({"uag": {"draft": "d", "max_cached_tokens": True}}, "is True, it must be an integer"),
    ],
)
def test_wrong_settings_are_refused_with_what_is_due(value: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Settings.read(value)


def test_settings_beside_those_of_others_are_read() -> None:
    settings = Settings.read({"other": 1, "uag": {"draft": "d", "dtype": "bfloat16", "min_confidence": 0}})
    assert (settings.draft, settings.dtype, settings.min_confidence) == ("d", "bfloat16", 0)
