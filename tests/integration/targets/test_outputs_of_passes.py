"""What a target's pass returns is freed before its next pass: the logits of a long prompt can take gigabytes."""

import weakref
from typing import Any

import pytest

from tests.support.calls import GREEDY, PROMPTS, ROWS, assistant_of, left_padded, pair
from uag.hf import passes


@pytest.mark.usefixtures("layer_by_layer")
@ROWS
@pytest.mark.parametrize("options", [{}, {"return_dict_in_generate": True}, {"cache_implementation": "static"}])
def test_logits_of_a_pass_are_gone_when_the_next_one_runs(
    options: dict[str, Any], num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[weakref.ref[Any]] = []

    def noting(function: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            assert all(known() is None for known in seen)
            found = function(*args, **kwargs)
            outputs = found[0] if isinstance(found, tuple) else found
            seen.append(weakref.ref(outputs.logits))
            return found

        return run

    for name in ("run", "prefill"):
        monkeypatch.setattr(passes, name, noting(getattr(passes, name)))
    assistant = assistant_of()
    assistant.generate(pair()[0], **left_padded(PROMPTS[:num_rows]), **GREEDY | options)
    assert len(seen) > 4
