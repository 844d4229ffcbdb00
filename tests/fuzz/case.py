"""One call as plain data, and the difference that it shows."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """A call of `generate`; its `repr` is Python code that recreates it, without default values.

    Attributes:
        target: name of a model in `targets`, or a class and options of its configuration.
        change: name of a change of it in `targets.CHANGES`; empty for none.
        is_fresh: whether the target is a copy that uag has never seen; else uag has assisted it before it was changed.
        source: where candidates come from, see `sources`.
        door: "assistant", "custom_generate" or "install".
        around: names of contexts that the calls are in, see `around.AROUND`.
        rows: prompts, as text or ids (modulo the vocabulary); several are padded on the left.
        options: keyword arguments of `generate` that are plain data.
        extras: names of objects that are made anew for each call, see `options.EXTRAS`.
        settings: keyword arguments of `uag.Assistant`.
        right: share of the candidates, or of the predicted ids, that are right.
        seed: seed of the random generator.
    """

    target: str = "llama"
    change: str = ""
    is_fresh: bool = False
    source: str = "drafter"
    door: str = "assistant"
    around: tuple[str, ...] = ()
    rows: tuple[str | tuple[int, ...], ...] = ((5, 9, 14),)
    options: dict[str, Any] = field(default_factory=lambda: {"max_new_tokens": 12})
    extras: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=lambda: {"num_candidate_tokens": 4})
    right: float = 0.7
    seed: int = 0

    def __repr__(self) -> str:
        pairs = [(each.name, getattr(self, each.name)) for each in dataclasses.fields(self)]
        return f"Case({', '.join(f'{name}={value!r}' for name, value in pairs if value != getattr(_PLAIN, name))})"


_PLAIN = Case()


class DifferenceError(AssertionError):
    """A call with uag differs from plain decoding."""

    def __init__(self, aspect: str, detail: str = "") -> None:
        super().__init__(f"{aspect}: {detail}" if detail else aspect)
        self.aspect = aspect
        self.detail = detail


def script(case: Case, difference: DifferenceError) -> str:
    head = "\n".join(f"# {line}" for line in str(difference).splitlines()[:12])
    imports = "from tests.fuzz.case import Case\nfrom tests.fuzz.comparing import compare"
    return f"{head}\n{imports}\n\nprint(compare({case!r}))\n"
