"""The work folder: the settings of a run and its finished parts."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from uag.errors import OptionError
from uag.measure import Text
from uag.ray import Parts


class WorkFolder:
    """The state from which a killed run resumes; every file is complete or absent.

        settings.json    the settings that the texts and the training depend on
        texts/           outputs of the target, in JSON lines
        checkpoints/     of the training
        summary.json     the result

    Args:
        path: the folder, created if it does not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.checkpoints = path, path / "checkpoints"
        self._parts = Parts(path / "texts", "text_id", "jsonl")

    def begin(self, settings: dict[str, Any]) -> None:
        """Write the settings, or compare them with those in the folder.

        Raises:
            OptionError: the folder was started with other settings.
        """
        settings = json.loads(json.dumps(settings, default=str))
        before = self.read("settings") or settings
        changed = [
            f"{name}: {before.get(name)!r} -> {settings.get(name)!r}"
            for name in before | settings
            if before.get(name) != settings.get(name)
        ]
        if changed:
            raise OptionError(
                f"{str(self.path.parent)!r} was started with other settings ({'; '.join(changed)}). Use the same ones "
                "to continue, or another output folder"
            )
        self.write("settings", settings)

    def read(self, name: str) -> Any:
        """Return the value written under a name, or None."""
        path = self.path / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def write(self, name: str, value: Any) -> None:
        """Write plain data under a name."""
        unfinished = self.path / f"{name}.tmp"
        unfinished.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        unfinished.replace(self.path / f"{name}.json")

    def texts(self) -> dict[str, Text]:
        """Return the finished texts by their ids."""
        texts = {}
        for row in self._parts.rows():
            prompt_ids, output_ids = tuple(row["prompt_ids"]), tuple(row["output_ids"])
            texts[row["text_id"]] = Text(row["text_id"], prompt_ids, row["temperature"], row["seed"], output_ids)
        return texts

    def add(self, texts: Sequence[Text], decoded: Sequence[str]) -> None:
        """Write texts, all or none of them, with their `decoded` outputs for human readers.

        Raises:
            OSError: the disk is full.
            OptionError: another process writes into the folder.
        """
        self._parts.write([asdict(text) | {"text": output} for text, output in zip(texts, decoded, strict=True)])
