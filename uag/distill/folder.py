"""The work folder: what was begun with which settings, and what is finished."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from uag.errors import OptionError


class WorkFolder:
    """What a stopped run goes on with; every file is there whole or not at all.

        settings.json    what the texts and the training depend on
        texts/           the target's texts, JSON lines
        written.json     there once all texts are
        before.json      acceptance of the draft as it came
        checkpoints/     of the training
        summary.json     the result

    Args:
        path: the folder; made by `begin`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.texts, self.checkpoints = path / "texts", path / "checkpoints"

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Write the settings down, or compare them with those that were.

        Raises:
            OptionError: the folder was begun with others.
        """
        now = json.loads(json.dumps(settings, default=str))
        begun = self.read("settings")
        if begun is None:
            self.path.mkdir(parents=True, exist_ok=True)
            self.write("settings", now)
            return
        others = [
            f"{name}={begun.get(name)!r}, now {value!r}" for name, value in now.items() if begun.get(name) != value
        ]
        if others:
            raise OptionError(
                f"{str(self.path.parent)!r} was begun with other settings ({'; '.join(others)}): give the same to go "
                "on, or another output folder"
            )

    def read(self, name: str) -> Any:
        """Return what was written under a name, None where nothing was."""
        path = self.path / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def write(self, name: str, value: Any) -> None:
        """Write plain data under a name."""
        unfinished = self.path / f"{name}.tmp"
        unfinished.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        unfinished.replace(self.path / f"{name}.json")
